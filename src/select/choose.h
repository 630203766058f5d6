// The choice of one step's distant blocks: scores, sharing across query heads, the best of them.
// What is a candidate, and for how long a choice stays, is the frame's business (select/frame.h).
#pragma once

#include <cstdint>
#include <vector>

#include "select/frame.h"

namespace condense {

// One step's candidates and choice.
struct ChoiceScratch {
  std::vector<uint16_t> always;  // [n_blocks] rows always read
  std::vector<uint16_t> gain;    // [n_blocks] rows that choosing a candidate adds; 0 for others
  std::vector<uint16_t> whole;   // [n_blocks] 0xFFFF for candidates, else 0
  std::vector<int> candidates;   // blocks, ascending
  std::vector<uint16_t> chosen;  // [n_sets, n_blocks] 0xFFFF for chosen blocks
  std::vector<float> scored;     // [n_sets, whole tiles]: where threads shared sets; else empty
};

// Fills s.chosen with `r` of s.candidates (not empty) a set, the best by the options' sharing;
// false where a score was NaN. Bytes of rows that were read to choose but not chosen are added to
// `bytes`.
bool ChooseBlocks(const LayerQuery& query, const FrameOptions& options, const BlockScorer& scorer,
                  int r, ChoiceScratch& s, uint64_t& bytes);

}  // namespace condense
