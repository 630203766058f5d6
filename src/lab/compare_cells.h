// Cells of an experiment that are the rows of one comparison (lab/compare.h): a prefix, a cell a
// row, told apart by their parameter `policy`.
#pragma once

#include <map>
#include <span>
#include <string>

#include "base/result.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/experiment.h"
#include "lab/prefix_spec.h"

namespace condense {

// The row of each cell, by its id; dense and the control need none.
using RowsOfCells = std::map<std::string, CompareCell>;

// Runs the cells, of one group. Of `spec` the prompt, its continuation and its cells are filled in
// here; n_generate and the timing are the experiment's. Budgets may come to the same policy: its
// row is run once, and is that of all their cells. A kept cell of the group was compared with the
// same dense tokens, or nothing more is run.
Status RunCompareCells(GroupRun& run, const LabPrefix& prefix, CompareSpec spec,
                       const RowsOfCells& rows, std::span<const Cell> cells);

}  // namespace condense
