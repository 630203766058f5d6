#include "lab/costs.h"

#include <algorithm>
#include <limits>

namespace condense {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Of a row's steps: before, what its own pace says is no better than others' rows.
constexpr double kTelling = 0.2;

// The mean of rows of this policy, else of all; NaN without any.
double Expected(const std::vector<RowCost>& done, const std::string& name) {
  double own = 0, all = 0;
  int n_own = 0;
  for (const RowCost& row : done) {
    all += row.seconds;
    if (row.name != name) continue;
    own += row.seconds;
    ++n_own;
  }
  if (n_own > 0) return own / n_own;
  return done.empty() ? kUnknown : all / static_cast<double>(done.size());
}

}  // namespace

void AddCost(const CellRecord& cell, std::vector<RowCost>& done) {
  if (cell.state == CellRecord().state) done.push_back({cell.name, cell.seconds});
}

double EstimateLeft(const std::vector<RowCost>& done, const RowCost& under_way, double share,
                    const std::vector<std::string>& pending) {
  std::vector<RowCost> known = done;
  const double whole = share > 0 ? under_way.seconds / share : kUnknown;
  if (known.empty() || share >= kTelling) known.push_back({under_way.name, whole});
  const double own = share >= kTelling ? whole : Expected(known, under_way.name);
  double left = std::max(0.0, own - under_way.seconds);
  if (own != own) left = kUnknown;
  for (const std::string& name : pending) left += Expected(known, name);
  return left;
}

}  // namespace condense
