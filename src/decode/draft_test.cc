// Draft sources without a model: matches in the context, and how many tokens are drafted when steps
// cost what they cost here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "decode/draft_length.h"
#include "decode/lookup.h"

namespace condense {
namespace {

NgramIndex IndexOf(const std::vector<Token>& tokens) {
  NgramIndex index;
  for (Token token : tokens) index.Append(token);
  return index;
}

using Tokens = std::vector<Token>;

TEST(Lookup, NothingWithoutAMatch) {
  EXPECT_EQ(NgramIndex().Continuation(4), Tokens());
  EXPECT_EQ(IndexOf({1, 2}).Continuation(4), Tokens());
  EXPECT_EQ(IndexOf({1, 2, 3, 4, 5}).Continuation(4), Tokens());
  EXPECT_EQ(IndexOf({2, 3, 9, 2, 3}).Continuation(4), Tokens()) << "two tokens are no match";
}

TEST(Lookup, WhatFollowedBefore) {
  EXPECT_EQ(IndexOf({1, 2, 3, 7, 8, 9, 1, 2, 3}).Continuation(2), (Tokens{7, 8}));
}

TEST(Lookup, TheLongestMatchThenTheLatest) {
  // 5 1 2 3 -> 40 is longer than the later 1 2 3 -> 60.
  EXPECT_EQ(IndexOf({5, 1, 2, 3, 40, 9, 1, 2, 3, 60, 5, 1, 2, 3}).Continuation(1), (Tokens{40}));
  EXPECT_EQ(IndexOf({1, 2, 3, 40, 1, 2, 3, 60, 1, 2, 3}).Continuation(1), (Tokens{60}));
}

TEST(Lookup, ALoopGoesOn) {
  EXPECT_EQ(IndexOf({1, 2, 1, 2, 1, 2}).Continuation(5), (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(IndexOf({7, 7, 7, 7}).Continuation(3), (Tokens{7, 7, 7}));
}

// Against a search of every earlier place.
TEST(Lookup, EqualsASlowSearch) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Tokens tokens(60);
    for (Token& token : tokens) token = static_cast<Token>(random() % 3);
    int best = -1, best_length = NgramIndex::kLeast - 1;
    for (int end = 58; end >= 0; --end) {
      int length = 0;
      while (length < NgramIndex::kMost && length <= end &&
             tokens[end - length] == tokens[59 - length])
        ++length;
      if (length > best_length) best = end, best_length = length;
    }
    const Tokens found = IndexOf(tokens).Continuation(1);
    ASSERT_EQ(found.size(), best < 0 ? 0u : 1u);
    if (best >= 0) EXPECT_EQ(found[0], tokens[best + 1]) << "round " << round;
  }
}

TEST(RowCosts, LinesBetweenWhatWasSeen) {
  RowCosts costs;
  EXPECT_EQ(costs.Of(3), 0);
  costs.Note(2, 4);
  EXPECT_EQ(costs.Of(1), 4) << "nothing nearer is known";
  costs.Note(6, 8);
  EXPECT_DOUBLE_EQ(costs.Of(3), 5);
  EXPECT_DOUBLE_EQ(costs.Of(9), 8);
  costs.Note(6, 12);
  EXPECT_DOUBLE_EQ(costs.Of(6), 9) << "a running mean";
}

// Seconds of a machine: dense step, n rows, draft step.
struct Machine {
  double first_row = 18, next_row = 6, draft = 11;
  double Rows(int n) const { return first_row + next_row * (n - 1); }
};

// Decodes n_tokens, each draft token agreeing with probability `agreement`; gives dense decoding's
// time over this one's.
double SpeedOver(const Machine& machine, double agreement, int n_tokens, DraftLength& length) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform;
  RowCosts costs;
  for (int n = 1; n <= 17; ++n) costs.Note(n, machine.Rows(n));
  length.NoteDraft(1, machine.draft);
  double seconds = 0;
  int done = 0;
  while (done < n_tokens) {
    const int n = length.Next(costs);
    if (n == 0) {
      seconds += machine.first_row;
      ++done;
      length.NoteUndrafted(costs);
      continue;
    }
    int accepted = 0;
    while (accepted < n && uniform(random) < agreement) ++accepted;
    const double round = n * machine.draft + machine.Rows(n + 1);
    seconds += round;
    done += accepted + 1;
    length.NoteDraft(n, n * machine.draft);
    length.NoteVerified(n, accepted, round, costs);
  }
  return done * machine.first_row / seconds;
}

TEST(DraftLength, DraftsThatNeverAgreeCostLittle) {
  for (const int n_tokens : {256, 1024, 8192}) {
    for (const double draft : {0.0, 8.0, 11.0, 30.0}) {
      DraftLength length(0, 16);
      const Machine machine = {.draft = draft};
      EXPECT_GT(SpeedOver(machine, 0, n_tokens, length), 0.95) << n_tokens << " " << draft;
    }
  }
}

TEST(DraftLength, WhateverTheAcceptanceItCostsLittle) {
  for (double agreement = 0; agreement <= 1; agreement += 0.1) {
    for (const double next_row : {3.0, 6.0, 12.0, 18.0}) {
      DraftLength length(0, 16);
      const Machine machine = {.next_row = next_row};
      EXPECT_GT(SpeedOver(machine, agreement, 1024, length), 0.95) << agreement << " " << next_row;
    }
  }
}

TEST(DraftLength, GoodDraftsGrowLong) {
  DraftLength cheap(0, 16), dear(0, 16);
  EXPECT_GT(SpeedOver({.first_row = 18, .next_row = 3, .draft = 6}, 0.98, 2000, cheap), 1.5);
  RowCosts costs;
  for (int n = 1; n <= 17; ++n) costs.Note(n, 18 + 3 * (n - 1));
  EXPECT_GE(cheap.Next(costs), 8);
  EXPECT_NEAR(cheap.acceptance(), 0.98, 0.06);
  // Half of the drafts agree: short ones, where they pay at all.
  SpeedOver({.first_row = 18, .next_row = 3, .draft = 1}, 0.5, 2000, dear);
  EXPECT_LE(dear.Next(costs), 5);
}

TEST(DraftLength, FreeDraftsPayWhereStepsDoNot) {
  DraftLength steps(0, 16), free(0, 16);
  EXPECT_GT(SpeedOver({.draft = 0}, 0.7, 2000, free), 1.2);
  EXPECT_GT(SpeedOver({.draft = 17}, 0.7, 2000, steps), 0.95);
}

TEST(DraftLength, RestsAndTriesAgain) {
  DraftLength length(0, 16);
  const Machine machine;
  SpeedOver(machine, 0, 8, length);
  EXPECT_TRUE(length.resting());
  RowCosts costs;
  for (int n = 1; n <= 17; ++n) costs.Note(n, machine.Rows(n));
  int n_rested = 0;
  while (length.resting() && n_rested < 2000) {
    EXPECT_EQ(length.Next(costs), 0);
    length.NoteUndrafted(costs);
    ++n_rested;
  }
  EXPECT_FALSE(length.resting());
  EXPECT_GE(n_rested, 32);
  // It agrees now: drafting goes on.
  EXPECT_GT(SpeedOver({.first_row = 18, .next_row = 3, .draft = 6}, 1, 2000, length), 1.5);
}

TEST(DraftLength, AFixedOneStays) {
  DraftLength length(5, 16), clipped(8, 3);
  const Machine machine;
  SpeedOver(machine, 0, 300, length);
  RowCosts costs;
  EXPECT_EQ(length.Next(costs), 5);
  EXPECT_EQ(clipped.Next(costs), 3);
}

}  // namespace
}  // namespace condense
