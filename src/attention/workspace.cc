#include "attention/workspace.h"

#include <bit>
#include <span>

#include "base/row_mask.h"

namespace condense {
namespace {

// Rows are listed one by one where that makes at most 3 entries of 4 blocks.
constexpr int kRowEntries = 3, kOfBlocks = 4;

// Bits of `word` at the set bits of `any`, pushed together, from bit `at` of `to` on: at most 31.
uint32_t PackBits(uint32_t any, uint32_t word, int at) {
  uint32_t packed = 0;
  for (; any != 0; any &= any - 1, ++at) packed |= ((word >> std::countr_zero(any)) & 1) << at;
  return packed;
}

}  // namespace

void BlockChoice::List(const Selection& selection, int kv_head, int group) {
  blocks.clear();
  rows.clear();
  k_masks.clear();
  v_masks.clear();
  any_.clear();
  one_mask = !selection.per_query_head;
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

void BlockChoice::ListRows(const Selection& selection, int first_set, int n_sets, int n_rows) {
  n_blocks = BlocksFor(n_rows);
  rows.resize(static_cast<size_t>(n_blocks) * kBlockRows);
  int32_t* to = rows.data();
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (uint32_t any = any_[i]; any != 0; any &= any - 1)
      *to++ = blocks[i] * kBlockRows + std::countr_zero(any);
  }
  std::fill(to, rows.data() + rows.size(), to[-1]);
  const auto pack = [&](const uint16_t* set, std::vector<uint16_t>& masks) {
    uint32_t lanes = 0;  // the entry in work, and what is past its end
    int n = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      lanes |= PackBits(any_[i], set[blocks[i]], n);
      n += CountBits(any_[i]);
      if (n < kBlockRows) continue;
      masks.push_back(static_cast<uint16_t>(lanes));
      lanes >>= kBlockRows;
      n -= kBlockRows;
    }
    if (n > 0) masks.push_back(static_cast<uint16_t>(lanes));
  };
  if (one_mask) {
    k_masks.assign(static_cast<size_t>(n_blocks), 0xFFFF);
    if (const int rest = n_rows % kBlockRows; rest != 0)
      k_masks.back() = static_cast<uint16_t>((1u << rest) - 1);
  } else {
    for (int set = 0; set < n_sets; ++set) pack(selection.KMask(first_set + set), k_masks);
  }
  if (!selection.v_masks.empty()) {
    for (int set = 0; set < n_sets; ++set) pack(selection.VMask(first_set + set), v_masks);
  }
  blocks.clear();
}

}  // namespace condense
