// The best of many scores, in the one order that every policy shares: higher score first, then
// lower index; -0 equals +0. Sorts nothing: of many scores a sample says where the last taken one
// must lie, one pass collects the few that lie there, and these are bisected; of few scores, or
// where the sample was wrong (many equal scores), all are, which reads them at most 32 times.
#pragma once

#include <cstdint>

namespace condense {

// Writes the positions of the min(n_best, n) best of scores[0 … n) to `best`, ascending, and
// returns how many; -1 where a score is NaN. keys: scratch, [n]. best: [min(n_best, n)].
int TopScores(const float* scores, int n, int n_best, int32_t* keys, int* best);

}  // namespace condense
