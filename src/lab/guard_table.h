// Tables of the experiment `guard`: what was certified, what the guard did on other texts beside
// it, and every way of decoding beside the others. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/experiment.h"
#include "metrics/stats.h"

namespace condense {

std::vector<LabTable> GuardTables(std::span<const FinishedCell> cells);

// The two-sided 95 % interval of a share of which `n_seen` were seen among `n`: Clopper-Pearson's,
// as the promise it stands beside.
Interval ExactInterval(int64_t n_seen, int64_t n);

}  // namespace condense
