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

// Scores, none of them NaN, and ids of candidates; those below 0 are none.
struct ScoreList {
  const float* scores = nullptr;
  const int32_t* ids = nullptr;
  int n = 0;
};

// Where the best of several lists end: their scores reach `least`, those of others do not, or are
// equal to it where not all_ties.
struct TopCut {
  float least = 0;
  bool all_ties = true;
};

// Of the candidates of several lists, those in the list before first where scores are equal: how
// many of each are among the n_best best of all. n_best: at least 1, at most as many as there are
// candidates. guess: about where the cut may be, which saves time; the outcome does not depend on
// it, but for how far `least` is below the least score that is taken.
TopCut TopOfLists(const ScoreList* lists, int n_lists, int n_best, float guess, int* n_taken);

// Writes the ids of a list's n_taken best in their order in the list; `cut` and n_taken as
// TopOfLists returned them. ids: room for n_taken + 16.
void TakeTop(const ScoreList& list, TopCut cut, int n_taken, int32_t* ids);

}  // namespace condense
