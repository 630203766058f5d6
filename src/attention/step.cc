#include "attention/step.h"

#include <algorithm>
#include <cstring>

namespace condense {

void FindDecodeRows(const AttentionNode& node, const Visibility& visibility, int stream,
                    std::span<const int> written_rows, std::vector<uint8_t>& is_decode) {
  const int n_blocks = BlocksFor(node.kv.n_rows);
  std::fill(is_decode.begin(), is_decode.end(), 0);
  if (visibility.n_mask_heads() != 1) return;
  if (node.n_rows == 1) {
    is_decode[0] = 1;
    return;
  }
  RowMask written(n_blocks, 0);
  for (int row : written_rows) {
    if (row < node.kv.n_rows) AddRow(written, row);
  }
  std::vector<int> blocks;
  for (int b = 0; b < n_blocks; ++b) {
    if (written[b] != 0) blocks.push_back(b);
  }
  for (int r = 0; r < node.n_rows; ++r) {
    const uint16_t* visible = visibility.Row(stream, 0, r);
    int n = 0, own_block = 0;
    uint16_t own = 0;
    for (int b : blocks) {
      const auto seen = static_cast<uint16_t>(visible[b] & written[b]);
      if (seen == 0) continue;
      n += CountBits(seen);
      own_block = b;
      own = seen;
    }
    if (n != 1) continue;
    int seen_by = 0;
    for (int other = 0; other < node.n_rows && seen_by < 2; ++other) {
      seen_by += (visibility.Row(stream, 0, other)[own_block] & own) != 0;
    }
    is_decode[r] = seen_by == 1;
  }
}

void NotePromptQueries(const AttentionNode& node, int stream, const std::vector<uint8_t>& is_decode,
                       bool with_products, std::vector<int>& rows, CodeIndex& codes) {
  rows.clear();
  for (int r = 0; r < node.n_rows; ++r) {
    if (!is_decode[r]) rows.push_back(r);
  }
  QueryRows queries;
  queries.q = node.q + stream * node.q_stream;
  queries.q_row = node.q_row;
  queries.q_head = node.q_head;
  queries.rows = rows;
  queries.n_heads = node.n_query_heads;
  queries.k_dim = node.kv.k_dim;
  codes.NoteQueries(queries, node.kv.n_kv_heads, with_products);
}

void CopyQuery(const AttentionNode& node, int stream, int row, int head, float* to) {
  std::memcpy(to, node.q + stream * node.q_stream + head * node.q_head + row * node.q_row,
              sizeof(float) * node.kv.k_dim);
}

void SelectStep(const DecodeStep& step, const Policy& policy, StreamCache& cache,
                std::vector<float>& query, Selection& selection) {
  selection.Reset();
  if (policy.is_dense()) return;
  if (!cache.writes_seen) {
    selection.reason = Fallback::kUntracked;
    return;
  }
  if (step.has_bias) {
    selection.reason = Fallback::kBias;
    return;
  }
  bool continued = false;
  SequenceState* state = &cache.Sequence(step.visible, step.n_visible, &continued);
  // Rows that grew by what was just written: two whole blocks in rotation. Else: all.
  const bool current = cache.index.SpotCheck(step.view, continued ? 2 : -1) &&
                       (!step.node.check_all_blocks || cache.index.CheckLastRows(step.view));
  if (!current) {
    cache.codes.Forget();
    cache.copies.Forget();
    cache.prompts.Forget();
    cache.calls.Forget();
    cache.ForgetChoices();
    state = &cache.Sequence(step.visible, step.n_visible, &continued);
  }
  query.resize(static_cast<size_t>(step.node.n_query_heads) * step.view.k_dim);
  for (int h = 0; h < step.node.n_query_heads; ++h)
    CopyQuery(step.node, step.stream, step.row, h, &query[h * step.view.k_dim]);
  LayerQuery layer;
  layer.layer = step.node.layer;
  layer.kv = &step.view;
  layer.index = &cache.index;
  layer.codes = &cache.codes;
  layer.copies = &cache.copies;
  layer.prompts = &cache.prompts;
  layer.calls = &cache.calls;
  layer.visible = step.visible;
  layer.n_visible = step.n_visible;
  for (int written : cache.written) {
    if (written < step.view.n_rows && HasRow(step.visible, written)) layer.newest_row = written;
  }
  layer.q = query.data();
  layer.n_query_heads = step.node.n_query_heads;
  layer.scale = step.node.scale;
  layer.softcap = step.node.softcap;
  layer.memory = &state->memory;
  layer.n_threads = step.n_threads;
  policy.Select(layer, selection);
}

StepCount CountStep(const AttentionNode& node, const Policy& policy, const Selection& selection,
                    size_t n_blocks, int n_visible) {
  const int group = node.n_query_heads / node.kv.n_kv_heads;
  StepCount count;
  count.layer = node.layer;
  count.sparse = !selection.dense;
  count.policy_dense = policy.is_dense();
  count.reason = selection.reason;
  count.visible_rows = n_visible;
  const uint64_t heads = node.kv.n_kv_heads;
  count.dense_bytes = n_visible * heads * (node.kv.KeyBytes() + node.kv.ValueBytes());
  const KvView& read = selection.ReadFrom(node.kv);
  const uint64_t k_row = read.KeyBytes(), v_row = read.ValueBytes();
  count.summary_bytes = selection.summary_bytes;
  if (selection.dense) {
    count.unique_rows = n_visible * heads;
    count.nominal_rows = static_cast<uint64_t>(n_visible) * node.n_query_heads;
    count.k_bytes = count.unique_rows * k_row;
    count.v_bytes = count.unique_rows * v_row;
    return count;
  }
  uint64_t v_rows = 0;
  for (int g = 0; g < node.kv.n_kv_heads; ++g) {
    const auto set = [&](const uint16_t* mask) { return std::span(mask, n_blocks); };
    if (!selection.per_query_head) {
      const int k_rows = CountRows(set(selection.KMask(g)));
      count.nominal_rows += static_cast<uint64_t>(group) * k_rows;
      count.unique_rows += k_rows;
      v_rows += selection.v_masks.empty() ? k_rows : CountRows(set(selection.VMask(g)));
      continue;
    }
    for (size_t b = 0; b < n_blocks; ++b) {
      uint16_t k_any = 0, v_any = 0;
      for (int h = 0; h < group; ++h) {
        k_any = static_cast<uint16_t>(k_any | selection.KMask(g * group + h)[b]);
        v_any = static_cast<uint16_t>(v_any | selection.VMask(g * group + h)[b]);
      }
      if (k_any == 0) continue;
      count.unique_rows += CountBits(k_any);
      v_rows += CountBits(v_any);
    }
    for (int h = 0; h < group; ++h)
      count.nominal_rows += CountRows(set(selection.KMask(g * group + h)));
  }
  count.k_bytes = count.unique_rows * k_row;
  count.v_bytes = v_rows * v_row;
  return count;
}

}  // namespace condense
