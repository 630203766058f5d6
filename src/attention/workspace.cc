#include "attention/workspace.h"

#include <span>

#include "base/row_mask.h"

namespace condense {

void BlockChoice::List(const Selection& selection, int kv_head, int group) {
  blocks.clear();
  k_masks.clear();
  v_masks.clear();
  one_mask = !selection.per_query_head;
  const int n_sets = one_mask ? 1 : group;
  const int first = one_mask ? kv_head : kv_head * group;
  const auto n_blocks = static_cast<size_t>(selection.n_blocks);
  if (one_mask) {
    ForFourWords(std::span(selection.KMask(first), n_blocks), [&](size_t b, uint64_t four) {
      for (; four != 0; four >>= kBlockRows, ++b) {
        if ((four & 0xFFFF) != 0) blocks.push_back(static_cast<int32_t>(b));
      }
    });
  } else {
    for (size_t b = 0; b < n_blocks; ++b) {
      uint32_t any = 0;
      for (int set = 0; set < n_sets; ++set) any |= selection.KMask(first + set)[b];
      if (any != 0) blocks.push_back(static_cast<int32_t>(b));
    }
  }
  for (int set = 0; set < n_sets; ++set) {
    for (int32_t b : blocks) k_masks.push_back(selection.KMask(first + set)[b]);
  }
  if (selection.v_masks.empty()) return;
  for (int set = 0; set < n_sets; ++set) {
    for (int32_t b : blocks) v_masks.push_back(selection.VMask(first + set)[b]);
  }
}

}  // namespace condense
