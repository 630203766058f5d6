// One layer's keys and values of one stream as the host keeps them: a read-only view. Rows are
// cells of the host's cache; which of them a query may see is the mask's business, not the view's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/kv_type.h"

namespace condense {

struct KvView {
  KvType k_type = KvType::kF16, v_type = KvType::kF16;
  const std::byte* k = nullptr;  // row 0 of KV head 0
  const std::byte* v = nullptr;
  size_t k_row = 0, k_head = 0, v_row = 0, v_head = 0;  // strides in bytes
  int n_rows = 0, n_kv_heads = 0, k_dim = 0, v_dim = 0;

  const std::byte* KeyRow(int kv_head, int row) const { return k + kv_head * k_head + row * k_row; }
  const std::byte* ValueRow(int kv_head, int row) const {
    return v + kv_head * v_head + row * v_row;
  }
  // Bytes of one row of one KV head.
  size_t KeyBytes() const { return KvBytes(k_type, k_dim); }
  size_t ValueBytes() const { return KvBytes(v_type, v_dim); }
};

// By eight bytes of each row's key it is noticed that rows changed unseen: those of a KV head that
// rotates with the block.
inline int WatchedHead(const KvView& view, int block) { return block % view.n_kv_heads; }
inline uint64_t KeyWord(const KvView& view, int kv_head, int row) {
  uint64_t word;
  std::memcpy(&word, view.KeyRow(kv_head, row), sizeof(word));
  return word;
}

}  // namespace condense
