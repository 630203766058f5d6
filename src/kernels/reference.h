// The kernels' results in double with plain loops: what tests and fuzzers compare the fast kernels
// with. Slow on purpose; takes the same arguments as kernels/attend.h and kernels/summary.h.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attend.h"
#include "kernels/summary.h"

namespace condense {

// The `n` stored values at `row`, exactly.
// Where lane row % 16 of block row / 16 lies in the cache.
size_t CacheRow(const AttendArgs& args, int row);
std::vector<double> ReferenceRow(const std::byte* row, KvType type, int n);

// [n_queries][16 n_blocks]; -inf where the mask bit is 0.
std::vector<std::vector<double>> ReferenceLogits(const AttendArgs& args);

struct ReferenceState {
  std::vector<double> o;  // [v_dim], not normalised
  std::vector<double>
      o_abs;  // [v_dim]: sum of exp(logit - max) |v|, the magnitude for error bounds
  double max = 0, sum = 0, sum_v = 0;
};
// One state per query. args.o, max, sum and sum_v are not used.
std::vector<ReferenceState> ReferenceAttend(const AttendArgs& args);

ReferenceState ReferenceMerge(const ReferenceState& a, const ReferenceState& b);

struct ReferenceStats {
  std::vector<double> mean, min, max, var;  // [dim]
};
ReferenceStats ReferenceSummarizeRows(const std::byte* rows, size_t stride, KvType type, int n,
                                      int dim);

// [16 n_tiles]
std::vector<double> ReferenceScoreMean(const uint16_t* tiles, int n_tiles, int dim, const float* q,
                                       double scale);
std::vector<double> ReferenceScoreMinMax(const uint16_t* min_tiles, const uint16_t* max_tiles,
                                         int n_tiles, int dim, const float* q, double scale);

}  // namespace condense
