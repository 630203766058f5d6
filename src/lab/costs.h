// How long the rest of a comparison takes, from what its rows took so far: policies differ by far
// more than budgets do. Pure.
#pragma once

#include <string>
#include <vector>

#include "lab/records.h"

namespace condense {

struct RowCost {
  std::string name;    // the policy's name
  double seconds = 0;  // a whole row
};

// What a finished cell says of the cost of others goes into `done`: nothing where its budget could
// not be met, since it was not run.
void AddCost(const CellRecord& cell, std::vector<RowCost>& done);

// Seconds left, of the row under way and the rows after it; NaN where nothing is known yet.
// `share`: of the row under way's steps, [0, 1].
double EstimateLeft(const std::vector<RowCost>& done, const RowCost& under_way, double share,
                    const std::vector<std::string>& pending);

}  // namespace condense
