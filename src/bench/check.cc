#include "bench/check.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference.h"

namespace condense {
namespace {

constexpr double kUnit = 0x1p-24;      // rounding error of one FP32 operation, relative
constexpr double kTiny = 4096e-37;     // what flushed exponentials may add up to
constexpr int kSumRoundings = 96 + 8;  // lanes and tree of a chunk's sum, an exponential
constexpr int kScaleRoundings = 128;   // a state brought to another maximum

// Largest error of a logit: a chain of half the channels, each rounded twice at most; for q8_0,
// half a step of the query a channel, in 16-bit steps per 32 channels.
double LogitBound(const AttendArgs& args) {
  const int n_terms = args.k_dim / 2 + 3;
  double largest = 0;
  for (int row = 0; row < args.n_blocks * kBlockRows; ++row) {
    if (((args.masks[0][row / kBlockRows] >> (row % kBlockRows)) & 1) == 0) continue;
    const std::vector<double> k =
        ReferenceRow(args.k + row * args.k_stride, args.k_type, args.k_dim);
    double magnitude = 0, steps = 0;
    for (int c = 0; c < args.k_dim; ++c) magnitude += std::fabs(k[c] * args.q[c]);
    for (int c = 0; args.k_type == KvType::kQ8_0 && c < args.k_dim; c += kQ8BlockValues) {
      double most = 0, keys = 0;
      for (int i = c; i < c + kQ8BlockValues; ++i) {
        most = std::max(most, std::fabs(double{args.q[i]}));
        keys += std::fabs(k[i]);
      }
      steps += most / 65534 * keys;
    }
    largest = std::max(largest, args.scale * (n_terms * kUnit * magnitude + steps));
  }
  return largest;
}

}  // namespace

void CheckOutput(const KvView& view, const CheckedQuery& query, const float* out,
                 CheckResult& result) {
  ReferenceState state;
  double logit_bound = 0;
  // Merging in order scales each chunk once, and what came before wherever the maximum rises.
  int n_chunks = 0, n_scalings = 1;
  const int n_blocks = BlocksFor(view.n_rows);
  for (int block = 0; block < n_blocks; block += kChunkBlocks) {
    const uint16_t* k_words = query.k_mask.data() + block;
    const uint16_t* v_words = query.v_mask.data() + block;
    AttendArgs args;
    args.n_blocks = std::min(kChunkBlocks, n_blocks - block);
    if (CountRows({k_words, static_cast<size_t>(args.n_blocks)}) == 0) continue;
    args.k = view.KeyRow(query.kv_head, block * kBlockRows);
    args.v = view.ValueRow(query.kv_head, block * kBlockRows);
    args.k_stride = view.k_row, args.v_stride = view.v_row;
    args.k_type = view.k_type, args.v_type = view.v_type;
    args.k_dim = view.k_dim, args.v_dim = view.v_dim;
    args.n_queries = 1;
    args.q = query.q;
    args.masks = &k_words, args.v_masks = &v_words;
    args.scale = query.scale;
    const ReferenceState chunk = ReferenceAttend(args)[0];
    n_scalings += n_chunks > 0 && chunk.max > state.max;
    state = n_chunks == 0 ? chunk : ReferenceMerge(state, chunk);
    logit_bound = std::max(logit_bound, LogitBound(args));
    ++n_chunks;
  }
  const int n_rows = CountRows(query.k_mask);
  const int n_roundings =
      kSumRoundings + std::min(n_rows, kChunkRows) + n_chunks + n_scalings * kScaleRoundings;
  const double relative = 2 * logit_bound + n_roundings * kUnit;
  for (int c = 0; c < view.v_dim; ++c) {
    double expected = 0, magnitude = 0;
    if (state.sum > 0) {
      const double rest =
          query.rest_value == nullptr ? 0.0 : (state.sum - state.sum_v) * query.rest_value[c];
      expected = (state.o[c] + rest) / state.sum;
      magnitude = (state.o_abs[c] + std::fabs(rest)) / state.sum;
    }
    const double error = std::fabs(out[c] - expected);
    // The numerator's error, and the normaliser's.
    const double bound = relative * (magnitude + std::fabs(expected)) + kTiny;
    // Not "error > bound", which NaN passes.
    if (!(error <= bound)) result.ok = false;
    if (result.n_values == 0 || !(error * result.bound <= result.error * bound)) {
      result.error = error;
      result.bound = bound;
    }
    ++result.n_values;
  }
}

}  // namespace condense
