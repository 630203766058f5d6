// Copies of one stream's rows in one layer at 8 bits a value (q8_0), for policies that read more
// rows for the same bytes. A row is copied lazily, once a query may read it, and again after it was
// written. What is 8 bits in the host's cache already, or has no whole blocks of 32 values, is not
// copied but read there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/row_mask.h"
#include "cache/kv_view.h"

namespace condense {

class RowCopies {
 public:
  void MarkWritten(int row);
  void Forget();
  // Makes the copies of the `visible` rows, by block, current. n_threads: of the host's OpenMP
  // team; changes no bit.
  void Refresh(const KvView& view, std::span<const uint16_t> visible, int n_threads);
  // `view` with the copies in place of what is copied, valid until the next Refresh.
  KvView View(const KvView& view) const;
  // The types that View has, before there are copies.
  static KvView TypesOf(const KvView& view);

  size_t bytes() const;
  uint64_t n_copied() const { return n_copied_; }  // rows

 private:
  void Resize(const KvView& view);
  void Copy(const KvView& view, int row);

  int n_kv_heads_ = 0;
  size_t k_bytes_ = 0, v_bytes_ = 0;  // of a row of one KV head; 0: not copied
  std::vector<std::byte> k_, v_;      // [row][n_kv_heads], as hosts keep them
  RowMask current_;                   // rows whose copies are
  std::vector<int32_t> missing_;      // of the Refresh under way
  uint64_t n_copied_ = 0;
};

}  // namespace condense
