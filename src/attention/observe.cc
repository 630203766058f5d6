#include "attention/observe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attend.h"
#include "kernels/summary.h"

namespace condense {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct State {
  std::vector<float> o;
  float max = kNegInf, sum = 0.0f, sum_v = 0.0f;

  // Channel d of the output over the state's rows; 0 without any.
  float Output(int d) const { return sum == 0.0f ? 0.0f : o[d] / sum; }
};

// One query and the keys of a chunk that begins with `block`, of `n_blocks` in all.
void SetKeys(const AttentionNode& node, const KvView& view, int kv_head, const float* q, int block,
             size_t n_blocks, AttendArgs& args) {
  args.k = view.KeyRow(kv_head, block * kBlockRows);
  args.k_stride = view.k_row;
  args.k_type = view.k_type;
  args.k_dim = view.k_dim;
  args.n_blocks = std::min<int>(kChunkBlocks, static_cast<int>(n_blocks) - block);
  args.n_queries = 1;
  args.q = q;
  args.scale = node.scale;
  args.softcap = node.softcap;
}

// One query's logits of the rows of `mask`, -inf elsewhere, to `out` ([16 mask.size()]).
void LogitsOfRows(const AttentionNode& node, const KvView& view, int kv_head, const float* q,
                  std::span<const uint16_t> mask, float* out) {
  for (int chunk = 0; chunk < ChunksFor(view.n_rows); ++chunk) {
    const int block = chunk * kChunkBlocks;
    const uint16_t* words = mask.data() + block;
    AttendArgs args;
    SetKeys(node, view, kv_head, q, block, mask.size(), args);
    args.masks = &words;
    RowLogits(args, out + static_cast<size_t>(block) * kBlockRows);
  }
}

// One query over the rows of `mask`, values of those in `v_mask` alone, all chunks merged.
State AttendRows(const AttentionNode& node, const KvView& view, int kv_head, const float* q,
                 std::span<const uint16_t> mask, std::span<const uint16_t> v_mask) {
  State state;
  state.o.assign(view.v_dim, 0.0f);
  std::vector<float> o(view.v_dim);
  for (int chunk = 0; chunk < ChunksFor(view.n_rows); ++chunk) {
    const int block = chunk * kChunkBlocks;
    const uint16_t* words = mask.data() + block;
    const uint16_t* v_words = v_mask.data() + block;
    float max = 0, sum = 0, sum_v = 0;
    AttendArgs args;
    SetKeys(node, view, kv_head, q, block, mask.size(), args);
    args.v = view.ValueRow(kv_head, block * kBlockRows);
    args.v_stride = view.v_row;
    args.v_type = view.v_type;
    args.v_dim = view.v_dim;
    args.masks = &words;
    args.v_masks = &v_words;
    args.o = o.data();
    args.max = &max;
    args.sum = &sum;
    args.sum_v = &sum_v;
    AttendChunk(args);
    MergeState({state.o.data(), &state.max, &state.sum, &state.sum_v},
               {o.data(), &max, &sum, &sum_v}, view.v_dim);
  }
  return state;
}

// The tail's part of one query head's softmax over what is read and the tail.
float TailShare(const Selection& selection, int head, const State& kept) {
  if (!selection.has_tail || selection.tail.sum[head] == 0.0f) return 0.0f;
  const float max = selection.tail.max[head];
  const float top = std::max(max, kept.max);
  const float tail = selection.tail.sum[head] * std::exp(max - top);
  return tail / (tail + kept.sum * std::exp(kept.max - top));
}

}  // namespace

void ObserveStep(const AttentionNode& node, const KvView& view, int stream, int row,
                 std::span<const uint16_t> visible, const Selection& selection, int n_threads,
                 const AttentionSink& sink) {
  const int group = node.n_query_heads / view.n_kv_heads;
  const int v_dim = view.v_dim;
  std::vector<Observation> all(node.n_query_heads);
  const size_t n_logits = visible.size() * kBlockRows;
  std::vector<float> logits(sink.observe_logits ? n_logits * node.n_query_heads : 0);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, 1)
  for (int g = 0; g < view.n_kv_heads; ++g) {
    float value_norm_max = 0.0f;
    std::array<float, 256> value;
    BlockStats stats;
    stats.mean = value.data();
    for (int r = 0; r < view.n_rows; ++r) {
      if (!HasRow(visible, r)) continue;
      SummarizeRows(view.ValueRow(g, r), view.v_row, view.v_type, 1, v_dim, stats);
      float norm = 0.0f;
      for (int d = 0; d < v_dim; ++d) norm += value[d] * value[d];
      value_norm_max = std::max(value_norm_max, norm);
    }
    value_norm_max = std::sqrt(value_norm_max);
    RowMask dropped(visible.size()), no_value(visible.size());
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const float* q = reinterpret_cast<const float*>(node.q + stream * node.q_stream +
                                                      h * node.q_head + row * node.q_row);
      const int set = selection.per_query_head ? h : g;
      const std::span<const uint16_t> read(selection.KMask(set), visible.size());
      const std::span<const uint16_t> valued(selection.VMask(set), visible.size());
      for (size_t b = 0; b < visible.size(); ++b) {
        dropped[b] = static_cast<uint16_t>(visible[b] & ~read[b]);
        no_value[b] = static_cast<uint16_t>(read[b] & ~valued[b]);
      }
      const State kept = AttendRows(node, view, g, q, read, valued);
      const State rest = AttendRows(node, view, g, q, dropped, dropped);
      const State full = AttendRows(node, view, g, q, visible, visible);
      // Rows read without their values: what a value in their stead takes and puts.
      const State unvalued = AttendRows(node, view, g, q, no_value, no_value);
      const float delta =
          unvalued.sum == 0.0f ? 0.0f : unvalued.sum * std::exp(unvalued.max - kept.max) / kept.sum;
      const float* stead = selection.rest_value.empty()
                               ? nullptr
                               : selection.rest_value.data() + static_cast<size_t>(h) * v_dim;
      Observation& seen = all[h];
      seen.layer = node.layer;
      seen.query_head = h;
      seen.kv_head = g;
      seen.visible_rows = CountRows(visible);
      seen.rows_read = CountRows(read);
      seen.read = read;
      if (sink.observe_logits) {
        float* own = logits.data() + h * n_logits;
        LogitsOfRows(node, view, g, q, visible, own);
        seen.logits = {own, n_logits};
      }
      seen.value_norm_max = value_norm_max;
      const float dropped_sum = rest.sum == 0.0f ? 0.0f : rest.sum * std::exp(rest.max - full.max);
      const float epsilon = dropped_sum / full.sum;
      const float sink_sum = node.sinks ? std::exp(node.sinks[h] - full.max) : 0.0f;
      seen.omitted_mass = std::clamp(dropped_sum / (full.sum + sink_sum), 0.0f, 1.0f);
      const float tail_share = TailShare(selection, h, kept);
      const float* tail =
          tail_share == 0.0f ? nullptr : selection.tail.o.data() + static_cast<size_t>(h) * v_dim;
      float error = 0, norm = 0, identity = 0;
      for (int d = 0; d < v_dim; ++d) {
        const float o_full = full.Output(d);
        const float in_stead = stead != nullptr ? stead[d] : 0.0f;
        const float o_out =
            kept.sum == 0.0f ? 0.0f : (kept.o[d] + (kept.sum - kept.sum_v) * in_stead) / kept.sum;
        const float replaced = delta * (unvalued.Output(d) - in_stead);
        const float o_kept = o_out + replaced;  // with the values of all rows read
        const float residual = o_full - o_out - replaced - epsilon * (rest.Output(d) - o_kept);
        const float moved =
            tail != nullptr ? tail_share * (tail[d] / selection.tail.sum[h] - o_out) : 0.0f;
        const float difference = o_full - (o_out + moved);
        error += difference * difference;
        norm += o_full * o_full;
        identity += residual * residual;
      }
      seen.output_error = std::sqrt(error);
      seen.output_norm = std::sqrt(norm);
      seen.identity_error = std::sqrt(identity);
    }
  }
  sink.on_observations(all);
}

}  // namespace condense
