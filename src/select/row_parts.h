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
  // Wholly visible segments before the window, ascending: their rows are candidates by their codes.
  std::vector<int32_t> segments;
  // [n_blocks] Anchor, window and newest row: K and V are read. The window is the last `window`
  // visible rows and what else is visible in their segments, which are not closed.
  std::vector<uint16_t> always;
  // [n_blocks] Visible rows of segments that are neither: the query does not see the others of
  // their segment, so no code is kept for them. Their K is read always, V like a candidate's.
  std::vector<uint16_t> loose;
  // Rows of `segments` that are not in `always`: candidates. Whole segments: [4 n_segments].
  std::vector<uint16_t> coded;
  int n_always = 0, n_loose = 0, n_coded = 0;
};

// Allocates nothing once the vectors have grown to the cache's size.
void FindRowParts(const LayerQuery& query, int anchor, int window, RowParts& parts);

}  // namespace condense
