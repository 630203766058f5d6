#include "select/row_parts.h"

#include <algorithm>

#include "cache/code_index.h"

namespace condense {
namespace {

constexpr int kSegmentBlocks = kSegmentRows / kBlockRows;

// Of a segment of which a query sees fewer rows, the codes are no cheaper to read than these rows'
// keys, or not by much (324 bytes a head, keys of 64 f16 values 128 each).
constexpr int kLeastVisible = 8;

void OrSegment(std::span<uint16_t> mask, int segment, uint64_t word) {
  for (size_t b = static_cast<size_t>(segment) * kSegmentBlocks; word != 0; ++b, word >>= 16) {
    mask[b] = static_cast<uint16_t>(mask[b] | (word & 0xFFFF));
  }
}

}  // namespace

void FindRowParts(const LayerQuery& query, int anchor, int window, RowParts& parts) {
  const std::span<const uint16_t> visible = query.visible;
  const int n_blocks = static_cast<int>(visible.size());
  const int n_segments = (n_blocks + kSegmentBlocks - 1) / kSegmentBlocks;
  parts.segments.clear();
  parts.always.assign(n_blocks, 0);
  parts.loose.assign(n_blocks, 0);
  parts.coded.assign(static_cast<size_t>(n_segments) * kSegmentBlocks, 0);
  parts.n_always = parts.n_loose = parts.n_coded = 0;

  int window_begin = n_segments;  // segment
  int window_left = window;
  while (window_begin > 0 && window_left > 0) {
    window_left -= CountBits(SegmentRows(visible, --window_begin));
  }
  const int newest = query.newest_row >= 0 && query.newest_row < n_blocks * kBlockRows &&
                             HasRow(visible, query.newest_row)
                         ? query.newest_row / kSegmentRows
                         : -1;
  int anchor_left = anchor;
  for (int s = 0; s < n_segments; ++s) {
    const uint64_t word = SegmentRows(visible, s);
    if (word == 0) continue;
    uint64_t always = 0;
    for (; anchor_left > 0 && always != word; --anchor_left) {
      const uint64_t rest = word & ~always;
      always |= rest & (~rest + 1);
    }
    if (s >= window_begin) {
      // Of the first of these segments, the window may leave out as many rows as it came to spare.
      uint64_t rows = word;
      if (s == window_begin) {
        for (; window_left < 0; ++window_left) rows &= rows - 1;
      }
      always |= rows;
    }
    if (s == newest) always |= uint64_t{1} << (query.newest_row % kSegmentRows);
    if (s < window_begin && s != newest && CountBits(word) >= kLeastVisible) {
      parts.segments.push_back(s);
      OrSegment(parts.coded, s, word & ~always);
      parts.n_coded += CountBits(word & ~always);
    } else {
      OrSegment(parts.loose, s, word & ~always);
      parts.n_loose += CountBits(word & ~always);
    }
    OrSegment(parts.always, s, always);
    parts.n_always += CountBits(always);
  }
}

void NoticeSegments(const LayerQuery& query, RowParts& parts) {
  parts.noticed.assign(query.visible.size(), 0);
  for (int32_t segment : parts.segments) {
    const size_t first = static_cast<size_t>(segment) * kSegmentBlocks;
    std::fill_n(parts.noticed.begin() + static_cast<ptrdiff_t>(first),
                std::min<size_t>(kSegmentBlocks, parts.noticed.size() - first), 0xFFFF);
  }
  query.index->Refresh(*query.kv, kFingerprint, parts.noticed);
}

}  // namespace condense
