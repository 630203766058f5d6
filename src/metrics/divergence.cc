#include "metrics/divergence.h"

#include <algorithm>

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

std::vector<SpanSurvival> SurvivalOfSpans(std::span<const int> dense, std::span<const int> sparse) {
  CONDENSE_CHECK(dense.size() == sparse.size());
  const int n = static_cast<int>(dense.size());
  std::vector<int> agree_from(n + 1, 0);  // decisions from here on without a difference
  for (int i = n - 1; i >= 0; --i)
    agree_from[i] = dense[i] == sparse[i] ? agree_from[i + 1] + 1 : 0;
  std::vector<SpanSurvival> spans;
  for (int length = 1; length <= n; length = length < n ? std::min(2 * length, n) : n + 1) {
    SpanSurvival span{.length = length, .n_spans = n - length + 1};
    int n_kept = 0;
    for (int i = 0; i < span.n_spans; ++i) n_kept += agree_from[i] >= length;
    span.share = static_cast<double>(n_kept) / span.n_spans;
    spans.push_back(span);
  }
  return spans;
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
