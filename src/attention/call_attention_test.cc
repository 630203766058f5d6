// What calls of several rows made of the rows: shares of their last queries against plain loops in
// double, which call a step follows, and what ends a record.
#include "cache/call_attention.h"

#include <gtest/gtest.h>

#include "attention/test_prompts.h"

namespace condense {
namespace {

const PromptWants kCalls{.windows = {}, .last_queries = 0, .last_call = true};

// What the queries of `cells`, the last that see `before` and each other, give by KV head and cell.
std::vector<std::vector<double>> Expected(const Prompts& prompts, int n_kv_heads,
                                          const std::vector<int>& cells, std::vector<int> before) {
  std::vector<std::vector<double>> sums(n_kv_heads);
  const int group = prompts.n_heads() / n_kv_heads;
  for (int cell : cells) {
    before.push_back(cell);
    for (int h = 0; h < prompts.n_heads(); ++h) {
      const std::vector<double> p = prompts.Shares(cell, h, before);
      sums[h / group].resize(p.size());
      for (size_t i = 0; i < p.size(); ++i) sums[h / group][i] += p[i];
    }
  }
  return sums;
}

void ExpectShares(const SeenCall* call, const std::vector<std::vector<double>>& expected) {
  ASSERT_NE(call, nullptr);
  ASSERT_EQ(call->heads.size(), expected.size());
  for (size_t g = 0; g < expected.size(); ++g) {
    for (size_t cell = 0; cell < expected[g].size(); ++cell)
      EXPECT_NEAR(call->heads[g][cell], expected[g][cell], 1e-5 * (1 + expected[g][cell]))
          << g << ' ' << cell;
  }
}

TEST(CallAttentionTest, SharesAreThoseOfPlainLoops) {
  for (const auto& [n_kv_heads, group] : {std::pair(1, 1), std::pair(2, 3), std::pair(1, 7)}) {
    for (float softcap : {0.0f, 4.0f}) {
      Prompts prompts(620, n_kv_heads, group, softcap, /*sinks=*/softcap == 0);
      prompts.wants = kCalls;
      for (int cell = 0; cell < 620; cell += 3) prompts.SetBias(cell, softcap > 0 ? -1.0f : 0.0f);
      // Of a prompt, the last 17 queries; of a verification, all.
      prompts.Prompt(Cells(5, 565), 256);
      ExpectShares(prompts.FindCall(Cells(5, 566)),
                   Expected(prompts, n_kv_heads, Cells(548, 565), Cells(5, 548)));
      EXPECT_TRUE(prompts.FindCall(Cells(5, 566))->of_prompt);
      EXPECT_EQ(prompts.FindCall(Cells(5, 566))->n_base, 544);
      EXPECT_EQ(prompts.FindCall(Cells(5, 566))->n_seen, 560);
      prompts.Prompt(Cells(565, 570), 5, Cells(5, 565));
      ExpectShares(prompts.FindCall(Cells(5, 571)),
                   Expected(prompts, n_kv_heads, Cells(565, 570), Cells(5, 565)));
      EXPECT_FALSE(prompts.FindCall(Cells(5, 571))->of_prompt);
    }
  }
}

TEST(CallAttentionTest, CutsAndThreadsChangeNoBit) {
  Prompts whole(1024, 2, 3);
  whole.wants = kCalls;
  whole.Prompt(Cells(3, 700), 1024);
  const SeenCall* expected = whole.FindCall(Cells(3, 700));
  ASSERT_NE(expected, nullptr);
  for (int cut : {512, 100, 37}) {
    for (int n_threads : {1, 2}) {
      Prompts other(1024, 2, 3);
      other.wants = kCalls;
      other.n_threads = n_threads;
      other.Prompt(Cells(3, 700), cut);
      ASSERT_NE(other.FindCall(Cells(3, 700)), nullptr);
      EXPECT_EQ(other.FindCall(Cells(3, 700))->heads, expected->heads) << cut;
    }
  }
}

// As exact decoding goes: drafts, their verification, rows that it rejects, and so on.
TEST(CallAttentionTest, TheLastVerificationCounts) {
  Prompts prompts(512, 1, 2);
  prompts.wants = kCalls;
  prompts.Prompt(Cells(0, 300), 150);
  for (int cell : {300, 301, 302, 303}) prompts.Step(cell, Cells(0, cell));
  EXPECT_EQ(prompts.FindCall(Cells(0, 304))->first_row, 283) << "the prompt's last queries";
  prompts.Prompt(Cells(300, 304), 4, Cells(0, 300));
  // Two rows are rejected. What it saw of others still counts.
  const std::vector<float> heads = prompts.FindCall(Cells(0, 303))->heads[0];
  for (int cell : {302, 303}) prompts.Step(cell, Cells(0, cell));
  SeenCall* call = prompts.FindCall(Cells(0, 304));
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->first_row, 300);
  EXPECT_EQ(call->heads[0], heads);
  prompts.Prompt(Cells(302, 306), 4, Cells(0, 302));
  EXPECT_EQ(prompts.FindCall(Cells(0, 303))->first_row, 302);
  // Taken back whole: the one before it is gone, the prompt is not.
  EXPECT_EQ(prompts.FindCall(Cells(0, 302))->first_row, 283);
  prompts.Step(302, Cells(0, 302));
  EXPECT_EQ(prompts.FindCall(Cells(0, 303))->first_row, 283);
  // Taken back too.
  EXPECT_EQ(prompts.FindCall(Cells(0, 283)), nullptr);
  prompts.Step(283, Cells(0, 283));
  EXPECT_EQ(prompts.FindCall(Cells(0, 303)), nullptr);
}

TEST(CallAttentionTest, RanksTheRowsThatItSaw) {
  Prompts prompts(512, 2, 2);
  prompts.wants = kCalls;
  prompts.Prompt(Cells(0, 300), 300);
  const std::vector<std::vector<double>> worth =
      Expected(prompts, 2, Cells(283, 300), Cells(0, 283));
  // A freed row's place taken by another is a row of which nothing is known.
  prompts.cache.MarkWritten(0, 7);
  prompts.cache.Stream(0).written.clear();  // by a node of its own
  SeenCall* call = prompts.FindCall(Cells(0, 300));
  ASSERT_NE(call, nullptr);
  for (int n : {20, 100, 1000}) {
    ASSERT_TRUE(call->Rank(n));
    for (int g = 0; g < 2; ++g) {
      // Rows of the call behind its first are none that its first query saw.
      std::vector<int> order = Cells(0, 284);
      order.erase(order.begin() + 7);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return worth[g][a] > worth[g][b]; });
      const std::vector<int32_t>& ranking = call->ranking[g];
      ASSERT_GE(ranking.size(), std::min<size_t>(n, order.size()));
      ASSERT_LE(ranking.size(), order.size());
      for (size_t i = 0; i < ranking.size(); ++i) EXPECT_EQ(ranking[i], order[i]) << n << ' ' << i;
    }
  }
}

// Two sequences in the same nodes, rows by turns: each has what it has alone.
TEST(CallAttentionTest, SequencesKeepTheirOwn) {
  const std::vector<int> a = Cells(0, 300, 2), b = Cells(1, 301, 2);
  Prompts both(320, 2, 2), only_a(320, 2, 2), only_b(320, 2, 2);
  for (Prompts* each : {&both, &only_a, &only_b}) each->wants = kCalls;
  both.ByTurns(a, b, 100);
  only_a.Prompt(a, 50);
  only_b.Prompt(b, 50);
  EXPECT_EQ(both.FindCall(a)->heads, only_a.FindCall(a)->heads);
  EXPECT_EQ(both.FindCall(b)->heads, only_b.FindCall(b)->heads);
}

TEST(CallAttentionTest, AForgottenCacheIsComparedFirst) {
  Prompts prompts(512, 2, 2);
  prompts.wants = kCalls;
  const std::vector<int> cells = Cells(0, 300);
  prompts.Prompt(cells, 150);
  prompts.cache.Forget();
  ASSERT_NE(prompts.FindCall(cells), nullptr) << "nothing was written";
  for (int kv_head : {0, 1}) prompts.Key(123, kv_head)[0] += 1;
  ASSERT_NE(prompts.FindCall(cells), nullptr) << "nobody said so";
  prompts.cache.Forget();
  EXPECT_EQ(prompts.FindCall(cells), nullptr);
}

TEST(CallAttentionTest, NothingIsKeptWhereNobodyAsks) {
  Prompts prompts(512, 1, 2);
  prompts.Prompt(Cells(0, 300), 150);
  EXPECT_EQ(prompts.FindCall(Cells(0, 300)), nullptr);
  EXPECT_EQ(prompts.cache.Stream(0).calls.bytes(), 0u);
  prompts.wants = kCalls;
  const size_t before = prompts.cache.bytes();
  prompts.Prompt(Cells(300, 400), 100, Cells(0, 300));
  EXPECT_GE(prompts.cache.bytes(), before + 512 * (sizeof(float) + sizeof(uint64_t)));
}

// However long it goes on.
TEST(CallAttentionTest, ASequenceKeepsTwoRecords) {
  Prompts prompts(512, 1, 2);
  prompts.wants = kCalls;
  prompts.Prompt(Cells(0, 300), 150);
  prompts.Prompt(Cells(300, 304), 4, Cells(0, 300));
  const size_t bytes = prompts.cache.Stream(0).calls.bytes();
  for (int cell = 304; cell < 400; cell += 4)
    prompts.Prompt(Cells(cell, cell + 4), 4, Cells(0, cell));
  EXPECT_EQ(prompts.cache.Stream(0).calls.bytes(), bytes);
}

}  // namespace
}  // namespace condense
