// Intervals over prompts by resampling: percentile bootstrap (B. Efron, Ann. Statist. 7 (1979) 1).
// Deterministic: the same sample gives the same interval on every machine. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "metrics/stats.h"

namespace condense {

// The 95 % interval of `statistic` over `n_resamples` samples drawn from `sample` with replacement.
// NaN for an empty sample; the value itself, twice, for one.
Interval BootstrapInterval(std::span<const double> sample,
                           const std::function<double(std::span<const double>)>& statistic,
                           int n_resamples = 2000, uint64_t seed = 1);

}  // namespace condense
