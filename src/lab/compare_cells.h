// Cells of an experiment that are the rows of one comparison (lab/compare.h): a prefix, a cell a
// row, told apart by their parameter `policy`.
#pragma once

#include <span>

#include "base/result.h"
#include "lab/compare.h"
#include "lab/experiment.h"
#include "lab/prefix_spec.h"

namespace condense {

// Runs the cells, of one group. Of `spec` the prompt and its continuation are filled in here, and
// where it has no cells, those that the parameter `policy` names; n_generate and the timing are the
// experiment's. A kept cell of the group was compared with
// the same dense tokens, or nothing more is run.
Status RunCompareCells(GroupRun& run, const LabPrefix& prefix, CompareSpec spec,
                       std::span<const Cell> cells);

}  // namespace condense
