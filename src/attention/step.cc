#include "attention/step.h"

#include <algorithm>

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
                       std::vector<int>& rows, CodeIndex& codes) {
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
  codes.NoteQueries(queries, node.kv.n_kv_heads);
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
  const uint64_t k_row = node.kv.KeyBytes(), v_row = node.kv.ValueBytes();
  count.dense_bytes = n_visible * heads * (k_row + v_row);
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
