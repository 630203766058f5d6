#include "metrics/divergence.h"

#include "base/result.h"

namespace condense {

std::optional<int> FirstDifference(std::span<const int> dense, std::span<const int> sparse) {
  CONDENSE_CHECK(dense.size() == sparse.size());
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != sparse[i]) return static_cast<int>(i) + 1;
  }
  return std::nullopt;
}

std::optional<int> FirstSignificantDifference(std::span<const int> dense,
                                              std::span<const int> sparse,
                                              std::span<const double> dense_margins,
                                              double threshold) {
  CONDENSE_CHECK(dense.size() == sparse.size() && dense.size() == dense_margins.size());
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != sparse[i] && dense_margins[i] >= threshold) return static_cast<int>(i) + 1;
  }
  return std::nullopt;
}

MarginCases CountMarginCases(std::span<const MarginCase> decisions) {
  MarginCases cases;
  for (const MarginCase& decision : decisions) {
    const bool held = decision.delta < decision.margin / 2;
    int& count = held ? (decision.equal ? cases.held_equal : cases.held_different)
                      : (decision.equal ? cases.open_equal : cases.open_different);
    ++count;
  }
  return cases;
}

}  // namespace condense
