// Sets of cache rows. The canonical form is one 16-bit word per aligned 16-row block: bit i of word
// b stands for row 16 b + i. Row ranges are the form for people, tests and records.
#pragma once

#include <bit>
#include <cstdint>
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
inline int CountRows(std::span<const uint16_t> mask) {
  int n = 0;
  for (uint16_t word : mask) n += std::popcount(word);
  return n;
}

// Sets rows [begin, end).
void AddRange(std::span<uint16_t> mask, RowRange range);
// The maximal ranges of set rows, ascending.
std::vector<RowRange> ToRanges(std::span<const uint16_t> mask);
// The first (last) `count` set rows as a mask of their own; all of them where there are fewer.
RowMask FirstRows(std::span<const uint16_t> mask, int count);
RowMask LastRows(std::span<const uint16_t> mask, int count);
// Highest set row, or -1.
int LastRow(std::span<const uint16_t> mask);
// Lowest set row, or -1.
int FirstRow(std::span<const uint16_t> mask);

}  // namespace condense
