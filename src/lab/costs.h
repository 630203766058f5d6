// How long the rest of a comparison takes, from what its rows took so far: policies differ by far
// more than budgets do. Pure.
#pragma once

#include <string>
#include <vector>

namespace condense {

struct RowCost {
  std::string name;    // the policy's name
  double seconds = 0;  // a whole row
};

// Seconds left, of the row under way and the rows after it; NaN where nothing is known yet.
// `share`: of the row under way's steps, [0, 1].
double EstimateLeft(const std::vector<RowCost>& done, const RowCost& under_way, double share,
                    const std::vector<std::string>& pending);

}  // namespace condense
