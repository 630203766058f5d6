// Sets of cache rows. The canonical form is one 16-bit word per aligned 16-row block: bit i of word
// b stands for row 16 b + i. Row ranges are the form for people, tests and records.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace condense {

inline constexpr int kBlockRows = 16;
// Attention is accumulated per aligned chunk of this many rows, and chunks are merged in index
// order: the same bits for every thread count and number of query rows.
inline constexpr int kChunkRows = 512;
inline constexpr int kChunkBlocks = kChunkRows / kBlockRows;

// Blocks that hold n rows.
constexpr int BlocksFor(int n_rows) { return (n_rows + kBlockRows - 1) / kBlockRows; }
constexpr int ChunksFor(int n_rows) { return (n_rows + kChunkRows - 1) / kChunkRows; }

// The lanes that n > 0 rows leave used in the last block they fill.
constexpr uint16_t LastLanes(int n) {
  return static_cast<uint16_t>(0xFFFF >> (BlocksFor(n) * kBlockRows - n));
}

struct RowRange {
  int begin = 0, end = 0;  // half-open
  bool operator==(const RowRange&) const = default;
};

// One word per block.
using RowMask = std::vector<uint16_t>;

inline bool HasRow(std::span<const uint16_t> mask, int row) {
  return (mask[row / kBlockRows] >> (row % kBlockRows)) & 1;
}
inline void AddRow(std::span<uint16_t> mask, int row) {
  mask[row / kBlockRows] =
      static_cast<uint16_t>(mask[row / kBlockRows] | (1u << (row % kBlockRows)));
}
inline void RemoveRow(std::span<uint16_t> mask, int row) {
  mask[row / kBlockRows] =
      static_cast<uint16_t>(mask[row / kBlockRows] & ~(1u << (row % kBlockRows)));
}
// Without an instruction for it, which not every x86-64 has, std::popcount is a call a word.
inline int CountBits(uint64_t word) {
  word -= (word >> 1) & 0x5555555555555555u;
  word = (word & 0x3333333333333333u) + ((word >> 2) & 0x3333333333333333u);
  word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
  return static_cast<int>((word * 0x0101010101010101u) >> 56);
}
// Calls function(first block, four words as one, the first in the lowest bits) over a mask; the
// last call may cover fewer, its missing words 0.
template <class Function>
inline void ForFourWords(std::span<const uint16_t> mask, const Function& function) {
  size_t b = 0;
  for (; b + 4 <= mask.size(); b += 4) {
    uint64_t four;
    std::memcpy(&four, mask.data() + b, 8);
    function(b, four);
  }
  if (b == mask.size()) return;
  uint64_t rest = 0;
  std::memcpy(&rest, mask.data() + b, 2 * (mask.size() - b));
  function(b, rest);
}
inline int CountRows(std::span<const uint16_t> mask) {
  int n = 0;
  ForFourWords(mask, [&](size_t, uint64_t four) {
    if (four != 0) n += CountBits(four);
  });
  return n;
}
// Rows that are in both; blocks past the end of the shorter hold none.
inline int CountCommonRows(std::span<const uint16_t> a, std::span<const uint16_t> b) {
  int n = 0;
  ForFourWords(a.first(std::min(a.size(), b.size())), [&](size_t at, uint64_t four) {
    uint64_t other = 0;
    std::memcpy(&other, b.data() + at, 2 * std::min<size_t>(4, b.size() - at));
    n += CountBits(four & other);
  });
  return n;
}

// Sets rows [begin, end).
void AddRange(std::span<uint16_t> mask, RowRange range);
// The maximal ranges of set rows, ascending.
std::vector<RowRange> ToRanges(std::span<const uint16_t> mask);
// The first (last) `count` set rows as a mask of their own; all of them where there are fewer.
RowMask FirstRows(std::span<const uint16_t> mask, int count);
RowMask LastRows(std::span<const uint16_t> mask, int count);

}  // namespace condense
