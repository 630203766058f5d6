// The best of scored blocks, in the one order that every policy shares: higher score first, then
// lower index; -0 equals +0; a NaN makes the ranking void.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace condense {

// `best` gets the positions of the min(n, scores.size()) best scores, in no particular order.
// Returns false, with `best` empty, where a score is NaN. `keys` is scratch.
bool BestScores(std::span<const float> scores, int n, std::vector<uint64_t>& keys,
                std::vector<int>& best);

}  // namespace condense
