// The best of many scores, in the one order that every policy shares: higher score first, then
// lower index; -0 equals +0. By bisection between the least and the greatest, which reads them at
// most 32 times whatever their order, and sorts nothing.
#pragma once

#include <cstdint>

namespace condense {

// Writes the positions of the min(n_best, n) best of scores[0 … n) to `best`, ascending, and
// returns how many; -1 where a score is NaN. keys: scratch, [n]. best: [min(n_best, n)].
int TopScores(const float* scores, int n, int n_best, int32_t* keys, int* best);

}  // namespace condense
