#include "attention/step.h"

#include <algorithm>
#include <bit>

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
      n += std::popcount(seen);
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
  for (uint64_t g = 0; g < heads; ++g) {
    for (size_t b = 0; b < n_blocks; ++b) {
      uint16_t k_any = 0, v_any = 0;
      if (selection.per_query_head) {
        for (int h = 0; h < group; ++h) {
          const int set = static_cast<int>(g) * group + h;
          k_any = static_cast<uint16_t>(k_any | selection.KMask(set)[b]);
          v_any = static_cast<uint16_t>(v_any | selection.VMask(set)[b]);
          count.nominal_rows += std::popcount(selection.KMask(set)[b]);
        }
      } else {
        k_any = selection.KMask(static_cast<int>(g))[b];
        v_any = selection.VMask(static_cast<int>(g))[b];
        count.nominal_rows += static_cast<uint64_t>(group) * std::popcount(k_any);
      }
      count.unique_rows += std::popcount(k_any);
      v_rows += std::popcount(v_any);
    }
  }
  count.k_bytes = count.unique_rows * k_row;
  count.v_bytes = v_rows * v_row;
  return count;
}

}  // namespace condense
