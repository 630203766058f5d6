// Eight bytes of the keys of some rows, by which it is noticed that the rows changed behind the
// graph's back (a state loaded, a context shifted).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes_of.h"
#include "base/row_mask.h"
#include "cache/kv_view.h"

namespace condense {

class KeyWords {
 public:
  // Room for the rows of so many blocks.
  void Reserve(size_t n_blocks) {
    if (rows_.size() >= n_blocks) return;
    words_.resize(n_blocks * kBlockRows, 0);
    rows_.resize(n_blocks, 0);
  }
  // The row's stored key is the one to compare with from now on.
  void Note(const KvView& view, int row) {
    words_[row] = KeyWord(view, WatchedHead(view, row / kBlockRows), row);
    AddRow(rows_, row);
  }
  // The row is another's now.
  void Drop(int row) {
    if (static_cast<size_t>(row) / kBlockRows < rows_.size()) RemoveRow(rows_, row);
  }
  void Clear() { std::fill(rows_.begin(), rows_.end(), 0); }

  // [n_blocks] The rows that were noted and not dropped.
  std::span<const uint16_t> rows() const { return rows_; }
  // Whether all of them hold the keys that they held.
  bool Same(const KvView& view) const {
    for (size_t b = 0; b < rows_.size(); ++b) {
      if (rows_[b] == 0) continue;
      const int block = static_cast<int>(b), head = WatchedHead(view, block);
      for (int r = 0; r < kBlockRows; ++r) {
        const int row = block * kBlockRows + r;
        if (!HasRow(rows_, row)) continue;
        if (row >= view.n_rows || KeyWord(view, head, row) != words_[row]) return false;
      }
    }
    return true;
  }
  size_t bytes() const { return BytesOf(words_) + BytesOf(rows_); }

 private:
  std::vector<uint64_t> words_;  // by row
  std::vector<uint16_t> rows_;   // by block
};

}  // namespace condense
