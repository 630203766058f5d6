#include "base/row_mask.h"

#include <algorithm>

namespace condense {

void AddRange(std::span<uint16_t> mask, RowRange range) {
  int row = range.begin;
  while (row < range.end) {
    const int block = row / kBlockRows;
    const int first = row % kBlockRows;
    const int last = std::min(range.end - block * kBlockRows, kBlockRows);
    const uint32_t bits = ((1u << last) - 1u) & ~((1u << first) - 1u);
    mask[block] = static_cast<uint16_t>(mask[block] | bits);
    row = (block + 1) * kBlockRows;
  }
}

std::vector<RowRange> ToRanges(std::span<const uint16_t> mask) {
  std::vector<RowRange> ranges;
  const int n_rows = static_cast<int>(mask.size()) * kBlockRows;
  for (int row = 0; row < n_rows; ++row) {
    if (row % kBlockRows == 0 && mask[row / kBlockRows] == 0) {
      row += kBlockRows - 1;
      continue;
    }
    if (!HasRow(mask, row)) continue;
    if (!ranges.empty() && ranges.back().end == row) {
      ++ranges.back().end;
    } else {
      ranges.push_back({row, row + 1});
    }
  }
  return ranges;
}

RowMask FirstRows(std::span<const uint16_t> mask, int count) {
  RowMask out(mask.size(), 0);
  for (size_t b = 0; b < mask.size() && count > 0; ++b) {
    uint32_t word = mask[b];
    while (word != 0 && count > 0) {
      const uint32_t lowest = word & (~word + 1u);
      out[b] = static_cast<uint16_t>(out[b] | lowest);
      word ^= lowest;
      --count;
    }
  }
  return out;
}

RowMask LastRows(std::span<const uint16_t> mask, int count) {
  RowMask out(mask.size(), 0);
  for (size_t b = mask.size(); b-- > 0 && count > 0;) {
    uint32_t word = mask[b];
    while (word != 0 && count > 0) {
      const uint32_t highest = std::bit_floor(word);
      out[b] = static_cast<uint16_t>(out[b] | highest);
      word ^= highest;
      --count;
    }
  }
  return out;
}

}  // namespace condense
