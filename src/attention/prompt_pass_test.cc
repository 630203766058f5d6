// What a prompt's queries made of the rows: column sums against plain loops in double, the same
// bits however the prompt is cut and on how many threads, and what ends a record.
#include "attention/prompt_pass.h"

#include <gtest/gtest.h>

#include "attention/test_prompts.h"

namespace condense {
namespace {

void ExpectSums(const SeenPrompt* record, int window,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_NE(record, nullptr);
  const SeenPrompt::Sums* sums = record->SumsOf(window);
  ASSERT_NE(sums, nullptr);
  ASSERT_EQ(sums->heads.size(), expected.size());
  for (size_t h = 0; h < expected.size(); ++h) {
    for (size_t cell = 0; cell < expected[h].size(); ++cell) {
      // 24 bits a query, and logits of some ten multiply-adds.
      EXPECT_NEAR(SeenPrompt::Sum(*sums, static_cast<int>(h), static_cast<int>(cell)),
                  expected[h][cell], 1e-5 * (1 + expected[h][cell]))
          << h << ' ' << cell;
    }
  }
}

TEST(PromptPassTest, SumsAreThoseOfPlainLoops) {
  for (const auto& [n_kv_heads, group] : {std::pair(1, 1), std::pair(2, 3), std::pair(1, 7)}) {
    for (float softcap : {0.0f, 4.0f}) {
      // Sinks take mass of the output's, not of the shares among rows.
      Prompts prompts(620, n_kv_heads, group, softcap, /*sinks=*/softcap == 0);
      prompts.wants.windows = {0, 50};
      const std::vector<int> cells = Cells(5, 605);
      prompts.Prompt(cells, 256);
      for (const auto& [window, expected] : prompts.Reference(cells, prompts.wants.windows))
        ExpectSums(prompts.Find(cells), window, expected);
    }
  }
}

TEST(PromptPassTest, AMasksBiasCounts) {
  Prompts prompts(200, 1, 2);
  for (int cell = 0; cell < 200; cell += 3) prompts.SetBias(cell, -1.5f);
  const std::vector<int> cells = Cells(0, 180);
  prompts.Prompt(cells, 60);
  ExpectSums(prompts.Find(cells), 0, prompts.Reference(cells, {0}).at(0));
}

TEST(PromptPassTest, CutsAndThreadsChangeNoBit) {
  const std::vector<int> cells = Cells(3, 700);
  Prompts whole(1024, 2, 3);
  whole.wants = {.windows = {0, 64}, .last_queries = 40};
  whole.Prompt(cells, 1024);
  const SeenPrompt* expected = whole.Find(cells);
  ASSERT_NE(expected, nullptr);
  for (int cut : {512, 100, 37, 17}) {
    for (int n_threads : {1, 2}) {
      Prompts other(1024, 2, 3);
      other.wants = whole.wants;
      other.n_threads = n_threads;
      // 697 rows: none is left alone, which would be a decode step.
      other.Prompt(cells, cut);
      const SeenPrompt* record = other.Find(cells);
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(record->n_queries, expected->n_queries);
      for (int window : {0, 64})
        EXPECT_EQ(record->SumsOf(window)->heads, expected->SumsOf(window)->heads) << cut;
      ASSERT_EQ(record->n_last, 40);
      for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(record->LastQuery(i).q, expected->LastQuery(i).q);
        EXPECT_EQ(record->LastQuery(i).visible, expected->LastQuery(i).visible);
      }
    }
  }
}

TEST(PromptPassTest, LastQueriesAreTheLast) {
  Prompts prompts(256, 1, 2);
  prompts.wants = {.windows = {}, .last_queries = 8};
  prompts.Prompt(Cells(0, 5), 5);
  EXPECT_EQ(prompts.Find(Cells(0, 5))->n_last, 5);
  prompts.Prompt(Cells(5, 130), 50, Cells(0, 5));
  const SeenPrompt* record = prompts.Find(Cells(0, 130));
  ASSERT_EQ(record->n_last, 8);
  for (int i = 0; i < 8; ++i) {
    const int cell = 122 + i;
    EXPECT_EQ(record->LastQuery(i).q[3], prompts.Query(cell, 0)[3]);
    EXPECT_EQ(CountRows(record->LastQuery(i).visible), cell + 1);
  }
}

// Two prompts in the same nodes, rows by turns: each has what it has alone.
TEST(PromptPassTest, SequencesKeepTheirOwn) {
  const std::vector<int> a = Cells(0, 300, 2), b = Cells(1, 301, 2);
  Prompts both(320, 2, 2), only_a(320, 2, 2), only_b(320, 2, 2);
  both.ByTurns(a, b, 100);
  only_a.Prompt(a, 50);
  only_b.Prompt(b, 50);
  EXPECT_EQ(both.Find(a)->SumsOf(0)->heads, only_a.Find(a)->SumsOf(0)->heads);
  EXPECT_EQ(both.Find(b)->SumsOf(0)->heads, only_b.Find(b)->SumsOf(0)->heads);
}

TEST(PromptPassTest, APromptEndsWithItsNewestRow) {
  Prompts prompts(512, 1, 2);
  const std::vector<int> cells = Cells(0, 300);
  prompts.Prompt(cells, 150);
  // Steps that follow see it; who does not see its last row does not.
  EXPECT_NE(prompts.Find(Cells(0, 320)), nullptr);
  EXPECT_EQ(prompts.Find(Cells(0, 299)), nullptr);
  // A freed row's place taken by another is a row of which nothing is known.
  prompts.cache.MarkWritten(0, 7);
  prompts.cache.Stream(0).written.clear();  // by a node of its own
  const SeenPrompt* record = prompts.Find(cells);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(SeenPrompt::Sum(*record->SumsOf(0), 1, 7), 0.0f);
  EXPECT_GT(SeenPrompt::Sum(*record->SumsOf(0), 1, 8), 0.0f);
  // Another prompt over the end of the first.
  prompts.Prompt(Cells(250, 340), 90, Cells(0, 250));
  record = prompts.Find(Cells(0, 340));
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->n_queries, 90);
}

// Drafts are steps that are taken back; the call of a few rows that verifies them tells nothing of
// the prompt, and its rejected rows take nothing of it with them.
TEST(PromptPassTest, AVerificationIsNoPrompt) {
  Prompts prompts(512, 1, 2);
  prompts.wants = {.windows = {0}, .last_queries = 8};
  prompts.Prompt(Cells(0, 300), 150);
  const auto sums = prompts.Find(Cells(0, 300))->SumsOf(0)->heads;
  for (int cell : {300, 301, 302}) prompts.Step(cell, Cells(0, cell));
  prompts.Prompt(Cells(300, 317), 17, Cells(0, 300));
  prompts.Step(302, Cells(0, 302));
  const SeenPrompt* record = prompts.Find(Cells(0, 303));
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->newest_row, 299);
  EXPECT_EQ(record->n_queries, 300);
  EXPECT_EQ(record->SumsOf(0)->heads, sums);
  ASSERT_EQ(record->n_last, 8);
  EXPECT_EQ(CountRows(record->LastQuery(7).visible), 300);
  // More rows are a later turn.
  prompts.Prompt(Cells(303, 321), 18, Cells(0, 303));
  record = prompts.Find(Cells(0, 321));
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->newest_row, 320);
  EXPECT_EQ(record->n_queries, 318);
  // Before a step follows, a few rows are the prompt's end.
  prompts.Prompt(Cells(321, 325), 4, Cells(0, 321));
  EXPECT_EQ(prompts.Find(Cells(0, 325))->n_queries, 322);
}

TEST(PromptPassTest, AForgottenCacheIsComparedFirst) {
  Prompts prompts(512, 2, 2);
  const std::vector<int> cells = Cells(0, 300);
  prompts.Prompt(cells, 150);
  const auto sums = prompts.Find(cells)->SumsOf(0)->heads;
  prompts.cache.Forget();
  ASSERT_NE(prompts.Find(cells), nullptr) << "nothing was written";
  EXPECT_EQ(prompts.Find(cells)->SumsOf(0)->heads, sums);
  for (int kv_head : {0, 1}) prompts.Key(123, kv_head)[0] += 1;
  ASSERT_NE(prompts.Find(cells), nullptr) << "nobody said so";
  prompts.cache.Forget();
  EXPECT_EQ(prompts.Find(cells), nullptr);
}

TEST(PromptPassTest, NothingIsKeptWhereNobodyAsks) {
  Prompts prompts(512, 1, 2);
  prompts.wants = {};
  prompts.Prompt(Cells(0, 300), 150);
  EXPECT_EQ(prompts.Find(Cells(0, 300)), nullptr);
  EXPECT_EQ(prompts.cache.Stream(0).prompts.bytes(), 0u);
  const size_t before = prompts.cache.bytes();
  prompts.wants.windows = {0};
  prompts.Prompt(Cells(300, 400), 100, Cells(0, 300));
  // Sums of 512 rows and two heads.
  EXPECT_GE(prompts.cache.bytes(), before + 512 * 2 * sizeof(float));
}

TEST(PromptPassTest, WantsAddUp) {
  PromptWants wants;
  EXPECT_TRUE(wants.empty());
  wants.Add({.windows = {64}, .last_queries = 1});
  wants.Add({.windows = {0}, .last_queries = 32});
  wants.Add({.windows = {64}, .last_queries = 8});
  EXPECT_EQ(wants, (PromptWants{.windows = {0, 64}, .last_queries = 32}));
  EXPECT_TRUE(wants.of_prompts());
  PromptWants calls{.windows = {}, .last_queries = 0, .last_call = true};
  EXPECT_FALSE(calls.empty() || calls.of_prompts());
  wants.Add(calls);
  EXPECT_TRUE(wants.last_call);
}

}  // namespace
}  // namespace condense
