// The rows that a step of a row-choosing policy sees, by how it may treat them: read always, known
// by the codes of their closed segment, or neither. Segments are 64 aligned rows, so one 64-bit
// word of the visibility mask each. Rules: docs/POLICIES.md, `condense`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "select/policy.h"

namespace condense {

struct RowParts {
  // Closed segments, ascending: those before the window of which enough rows are visible, and not
  // the one that the newest row went to. Their visible rows are candidates by their codes.
  std::vector<int32_t> segments;
  // [n_blocks] Anchor, window and newest row: K and V are read.
  std::vector<uint16_t> always;
  // [n_blocks] Other visible rows, without a code: those between the last closed segment and the
  // window (up to 63), the newest row's neighbours, and the few of segments that hold other
  // sequences' or freed rows. Their K is read always, V like a candidate's.
  std::vector<uint16_t> loose;
  // Visible rows of `segments` that are not in `always`: candidates. Whole segments: [4
  // n_segments].
  std::vector<uint16_t> coded;
  int n_always = 0, n_loose = 0, n_coded = 0;
  std::vector<uint16_t> noticed;  // scratch, [n_blocks]
};

// Allocates nothing once the vectors have grown to the cache's size.
void FindRowParts(const LayerQuery& query, int anchor, int window, RowParts& parts);

// So that rows of parts.segments which change unseen are noticed: fingerprints of their whole
// blocks, other sequences' rows among them, since the graph's own writes are no news.
void NoticeSegments(const LayerQuery& query, RowParts& parts);

}  // namespace condense
