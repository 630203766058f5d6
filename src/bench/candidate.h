// `condense bench candidate`: full-sequence attention over given candidates (arXiv 2602.06317,
// table 5). For every query position the last 64 rows and two distant whole blocks are supplied, 96
// rows; choosing them is not part of it. Against dense causal attention of the same sequence, ours
// and ggml's, in calls of 512 query rows as a host's prefill makes them: all of them, or a sample
// spread evenly over the positions and scaled by pairs.
#pragma once

#include <vector>

#include "bench/options.h"

namespace condense {

// options.shape gives heads and types; n_rows is taken from `rows`, one table each.
Status CheckCandidate(const BenchOptions& options, const std::vector<int>& rows);
Result<BenchOutcome> BenchCandidate(const BenchOptions& options, const std::vector<int>& rows,
                                    const BenchControl& control);

}  // namespace condense
