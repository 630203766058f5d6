// `infllm` against plain loops: representatives by the prompt's column sums, blocks by their keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

constexpr int kKvHeads = 2, kHeads = 6, kGroup = 3, kDim = 32;

// A prompt of rows [0, n), its sums random, or equal where `equal`.
void TakePrompt(TestCache& cache, const Policy& policy, int n, bool equal = false) {
  RowMask visible(BlocksFor(cache.view().n_rows), 0);
  SeenPrompt* record = nullptr;
  for (int row = 0; row < n; ++row) {
    AddRow(visible, row);
    record = &cache.prompts().Take(cache.view(), policy.prompt_wants(), kHeads, row, visible);
  }
  std::mt19937 random(4);
  for (std::vector<float>& of_head : record->sums.front().heads) {
    for (int row = 0; row < n; ++row)
      of_head[row] = equal ? 1.0f : static_cast<float>(random() % 1000);
  }
}

// The four rows that stand for rows[begin, end).
std::vector<int> Representatives(const std::vector<int>& rows, int begin, int end, int kv_head,
                                 const SeenPrompt* record, int window) {
  std::vector<int> block(rows.begin() + begin, rows.begin() + end);
  std::vector<double> votes;
  for (int row : block) {
    votes.push_back(0);
    for (int h = kv_head * kGroup; record != nullptr && h < (kv_head + 1) * kGroup; ++h)
      votes.back() += SeenPrompt::Sum(*record->SumsOf(window), h, row);
  }
  const int n = static_cast<int>(block.size());
  if (n < 4 || *std::max_element(votes.begin(), votes.end()) == 0)
    return {block[0], block[n / 4], block[n / 2], block[3 * n / 4]};
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return votes[a] > votes[b]; });
  std::vector<int> best;
  for (int i = 0; i < 4; ++i) best.push_back(block[order[i]]);
  return best;
}

// What a step of `tokens` rows reads.
RowMask Expected(TestCache& cache, const SeenPrompt* record, int anchor, int window, int tokens) {
  const LayerQuery query = cache.Query();
  const std::vector<int> rows = VisibleRows(query);
  const int n = static_cast<int>(rows.size()), end = n - window;
  RowMask mask(query.visible.size(), 0);
  for (int i = 0; i < n; ++i) {
    if (i < anchor || i >= end) AddRow(mask, rows[i]);
  }
  std::vector<std::pair<double, int>> blocks;  // score, first
  for (int begin = anchor; begin < end; begin += 128) {
    double score = 0;
    for (int g = 0; g < kKvHeads; ++g) {
      for (int row : Representatives(rows, begin, std::min(begin + 128, end), g, record, window)) {
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
          for (int c = 0; c < kDim; ++c)
            score += double(cache.QueryHead(h)[c]) * cache.Key(g, row)[c];
        }
      }
    }
    blocks.emplace_back(score, begin);
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const int n_best = std::min<int>((tokens - anchor - window) / 128, blocks.size());
  for (int i = 0; i < n_best; ++i) {
    for (int r = blocks[i].second; r < std::min(blocks[i].second + 128, end); ++r)
      AddRow(mask, rows[r]);
  }
  for (int i = end; i-- > anchor && CountRows(mask) < tokens;) AddRow(mask, rows[i]);
  return mask;
}

TEST(InfllmPolicyTest, ReadsWhatPlainLoopsRead) {
  struct Case {
    const char* spec;
    int anchor, window, tokens;
  };
  for (const Case& c : {Case{"infllm", 64, 64, 385}, Case{"infllm:tokens=600", 64, 64, 600},
                        Case{"infllm:tokens=500,anchor=0,window=100", 0, 100, 500},
                        Case{"infllm:tokens=250,anchor=128", 128, 64, 250}}) {
    const std::unique_ptr<Policy> policy = Make(c.spec);
    for (bool with_prompt : {true, false}) {
      TestCache cache(1400, kKvHeads, kHeads, kDim);
      if (with_prompt) TakePrompt(cache, *policy, 1000);
      for (int seed = 1; seed < 8; ++seed) {
        cache.SetQuery(seed);
        cache.See({{0, 1003}, {1010, 1100 + 30 * seed}});
        const LayerQuery query = cache.Query();
        const SeenPrompt* record = cache.prompts().Find(*query.kv, query.visible);
        ASSERT_EQ(record != nullptr, with_prompt);
        Selection selection;
        policy->Select(query, selection);
        ASSERT_FALSE(selection.dense || selection.per_query_head);
        const RowMask expected = Expected(cache, record, c.anchor, c.window, c.tokens);
        for (int g = 0; g < kKvHeads; ++g)
          EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(expected)) << c.spec << ' ' << seed;
      }
    }
  }
}

// The lower rows of equal votes, the lower blocks of equal scores.
TEST(InfllmPolicyTest, TiesGoToTheLower) {
  const std::unique_ptr<Policy> policy = Make("infllm:tokens=320");
  TestCache cache(1000, kKvHeads, kHeads, kDim);
  for (int row = 0; row < 1000; ++row) {
    for (int g = 0; g < kKvHeads; ++g) std::fill_n(cache.Key(g, row), kDim, 0.0f);
  }
  TakePrompt(cache, *policy, 1000, /*equal=*/true);
  EXPECT_EQ(ToRanges(KRows(Select(cache, "infllm:tokens=320"), 0)),
            (std::vector<RowRange>{{0, 192}, {872, 1000}}));
  // The first four rows of a block speak for it, the fifth does not.
  for (int c = 0; c < kDim; ++c) cache.Key(0, 64 + 2 * 128 + 3)[c] = cache.QueryHead(0)[c];
  for (int c = 0; c < kDim; ++c) cache.Key(0, 64 + 4 * 128 + 4)[c] = 8 * cache.QueryHead(0)[c];
  float own = 0;
  for (int h = 0; h < kGroup; ++h) {
    for (int c = 0; c < kDim; ++c) own += cache.QueryHead(0)[c] * cache.QueryHead(h)[c];
  }
  ASSERT_GT(own, 0) << "the made queries have changed: take another seed";
  EXPECT_EQ(ToRanges(KRows(Select(cache, "infllm:tokens=320"), 0)),
            (std::vector<RowRange>{{0, 64}, {320, 448}, {872, 1000}}));
}

TEST(InfllmPolicyTest, ABudgetIsOfBytes) {
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (double percent : {8.0, 20.0, 60.0}) {
      RowCache cache({.n_rows = 3000, .n_kv_heads = 2, .group = 3, .type = type});
      const Selection selection = Select(cache, "infllm:budget=" + std::to_string(percent) + "%");
      ASSERT_FALSE(selection.dense);
      const KvView& kv = *cache.Query().kv;
      const double row = RowBytes(kv), bytes = BytesRead(selection, kv);
      const double allowed = percent / 100 * 3000 * 2 * row;
      EXPECT_LE(bytes, allowed);
      // Representatives that came to lie in the widened window are paid for twice.
      EXPECT_GT(bytes, allowed - 2 * 8 * row);
    }
  }
}

TEST(InfllmPolicyTest, FallsBackWithItsReason) {
  TestCache cache(1000, 2, 6, 32);
  EXPECT_EQ(Select(cache, "infllm:tokens=1000").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "infllm:budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "infllm:budget=12%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "infllm:budget=13%").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "infllm:budget=13%").summary_bytes, 0u) << "nothing to choose";
  EXPECT_EQ(Select(cache, "infllm:dense_layers=0").reason, Fallback::kLayer);
  // Rows 0, 32, 64, 96 of a block stand for it where nobody voted.
  cache.Key(1, 64 + 128 + 32)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Select(cache, "infllm").reason, Fallback::kNan);
}

TEST(InfllmPolicyTest, ThreadsChangeNothingAndAWarmStepAllocatesNothing) {
  RowCache cache({.n_rows = 3000, .n_kv_heads = 3});
  const Selection one = Select(cache, "infllm:budget=20%", 1);
  ASSERT_FALSE(one.dense);
  EXPECT_TRUE(Same(one, Select(cache, "infllm:budget=20%", 2)));
  ExpectNoAllocations(cache, "infllm:budget=20%", {3000}, {2900, 3000});
}

TEST(InfllmPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("infllm:tokens=100"),
            "infllm: tokens=100 is less than anchor + window, 128 rows that are always read");
  EXPECT_EQ(ErrorOf("infllm:tokens=500,budget=8%"),
            "infllm: tokens and budget exclude each other: give one of them");
  EXPECT_EQ(ErrorOf("infllm:window=0"), "infllm: window=0 is out of range: 1 to 1000000");
  EXPECT_EQ(SpecOf("infllm"), "infllm:tokens=385");
  EXPECT_EQ(SpecOf("infllm:anchor=128,budget=20%,window=64"), "infllm:budget=20%,anchor=128");
}

}  // namespace
}  // namespace condense
