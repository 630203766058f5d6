#include "attention/workspace.h"

#include <algorithm>
#include <bit>
#include <span>

#include "base/row_mask.h"

namespace condense {
namespace {

// Rows are listed one by one where that makes at most 3 entries of 4 blocks: 16 scattered rows take
// as long as 1.2 blocks of which a few rows are read.
constexpr int kRowEntries = 3, kOfBlocks = 4;

// Appends, per entry of 16 rows, the lanes of `lanes` whose row is in `set`.
void AppendLanes(const uint16_t* set, std::span<const int32_t> rows,
                 std::span<const uint16_t> lanes, std::vector<uint16_t>& masks) {
  const int32_t* row = rows.data();
  for (uint16_t counted : lanes) {
    uint32_t in_set = 0;
    for (int lane = 0; lane < kBlockRows; ++lane, ++row)
      in_set |= ((uint32_t{set[*row / kBlockRows]} >> (*row % kBlockRows)) & 1) << lane;
    masks.push_back(static_cast<uint16_t>(in_set & counted));
  }
}

}  // namespace

void BlockChoice::List(const Selection& selection, int kv_head, int group) {
  blocks.clear();
  rows.clear();
  k_masks.clear();
  v_masks.clear();
  any_.clear();
  logits = nullptr;
  one_mask = !selection.per_query_head;
  if (selection.has_logits) return TakeRows(selection, kv_head);
  const int n_sets = one_mask ? 1 : group;
  const int first = one_mask ? kv_head : kv_head * group;
  if (one_mask) {
    const std::span mask(selection.KMask(first), static_cast<size_t>(selection.n_blocks));
    ForFourWords(mask, [&](size_t b, uint64_t four) {
      for (; four != 0; four >>= kBlockRows, ++b) {
        if ((four & 0xFFFF) == 0) continue;
        blocks.push_back(static_cast<int32_t>(b));
        any_.push_back(static_cast<uint16_t>(four));
      }
    });
  } else {
    for (int b = 0; b < selection.n_blocks; ++b) {
      uint32_t any = 0;
      for (int set = 0; set < n_sets; ++set) any |= selection.KMask(first + set)[b];
      if (any == 0) continue;
      blocks.push_back(b);
      any_.push_back(static_cast<uint16_t>(any));
    }
  }
  n_blocks = static_cast<int>(blocks.size());
  const int n_rows = CountRows(any_);
  if (kOfBlocks * BlocksFor(n_rows) <= kRowEntries * n_blocks)
    return ListRows(selection, first, n_sets, n_rows);
  for (int set = first; set < first + n_sets; ++set) {
    for (int32_t b : blocks) k_masks.push_back(selection.KMask(set)[b]);
  }
  if (selection.v_masks.empty()) return;
  for (int set = first; set < first + n_sets; ++set) {
    for (int32_t b : blocks) v_masks.push_back(selection.VMask(set)[b]);
  }
}

// The list as the policy made it.
void BlockChoice::TakeRows(const Selection& selection, int kv_head) {
  const Selection::KeyLogits& known = selection.logits[kv_head];
  n_blocks = static_cast<int>(known.lanes.size());
  rows = known.rows;
  k_masks = known.lanes;
  logits = known.logits.data();
  logits_stride = known.stride;
  if (!selection.v_masks.empty()) v_masks = known.v_lanes;
}

void BlockChoice::ListRows(const Selection& selection, int first_set, int n_sets, int n_rows) {
  n_blocks = BlocksFor(n_rows);
  const size_t n_lanes = static_cast<size_t>(n_blocks) * kBlockRows;
  rows.resize(n_lanes + 3);
  int32_t* to = rows.data();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int32_t row = blocks[i] * kBlockRows;
    uint32_t any = any_[i];
    const int n = CountBits(any);
    // Four at a time whether there are four or not: how many there are cannot be predicted.
    for (int done = 0; done < n; done += 4) {
      for (int j = 0; j < 4; ++j, any &= any - 1)
        to[done + j] = row + std::countr_zero(any | 0x10000);
    }
    to += n;
  }
  rows.resize(n_lanes);
  std::fill(to, rows.data() + n_lanes, to[-1]);
  std::vector<uint16_t>& lanes = any_;  // which has served
  lanes.assign(static_cast<size_t>(n_blocks), 0xFFFF);
  if (!lanes.empty()) lanes.back() = LastLanes(n_rows);
  if (one_mask) {
    k_masks = lanes;
  } else {
    for (int set = 0; set < n_sets; ++set)
      AppendLanes(selection.KMask(first_set + set), rows, lanes, k_masks);
  }
  if (!selection.v_masks.empty()) {
    for (int set = 0; set < n_sets; ++set)
      AppendLanes(selection.VMask(first_set + set), rows, lanes, v_masks);
  }
  blocks.clear();
}

}  // namespace condense
