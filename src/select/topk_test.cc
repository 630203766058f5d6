// The policy `topk` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

using Ranges = std::vector<RowRange>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// `rows` of them are chosen, `always` among them, and none that is left out is worth more than one
// that is chosen, but for rounding.
void ExpectBest(const LayerQuery& query, const Selection& selection, int set, const RowMask& always,
                const std::vector<double>& worth, int n_rows) {
  const std::span<const uint16_t> chosen = KRows(selection, set);
  EXPECT_EQ(CountRows(chosen), n_rows);
  EXPECT_EQ(CountCommonRows(chosen, query.visible), n_rows);
  EXPECT_EQ(CountCommonRows(chosen, always), CountRows(always));
  double least_in = kInf, most_out = 0;
  for (size_t r = 0; r < worth.size(); ++r) {
    const int row = static_cast<int>(r);
    if (!HasRow(query.visible, row) || HasRow(always, row)) continue;
    if (HasRow(chosen, row)) {
      least_in = std::min(least_in, worth[r]);
    } else {
      most_out = std::max(most_out, worth[r]);
    }
  }
  EXPECT_GT(least_in, most_out * (1 - 1e-4));
  EXPECT_GT(most_out, 0);
}

// Whole numbers: logits are exact, so one head's order is, equal logits included.
TEST(TopkPolicyTest, OneHeadReadsExactlyTheBestRows) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    TestCache cache(1900, 2, 2, 16, seed);
    cache.See({{0, 100}, {113, 900}, {901, 1003 + static_cast<int>(seed) * 33}});
    const LayerQuery query = cache.Query();
    for (const auto& [spec, anchor, window, rows] :
         {std::tuple("topk", 1, 64, 193), std::tuple("topk:tokens=66", 1, 64, 66),
          std::tuple("topk:tokens=700,anchor=0,window=70", 0, 70, 700),
          std::tuple("topk:tokens=65", 1, 64, 65),
          std::tuple("topk:tokens=999,anchor=30,window=1", 30, 1, 999)}) {
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense);
      const RowMask always = Always(query, anchor, window);
      for (int g = 0; g < 2; ++g) {
        const RowMask best =
            WithBest(query, always, Worth(cache, query, g), rows - CountRows(always));
        EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(best)) << spec << ' ' << seed;
      }
    }
  }
}

TEST(TopkPolicyTest, GroupsReadTheRowsOfTheMostMass) {
  for (int n_kv_heads : {1, 2, 3}) {
    for (int group : {2, 3, 7}) {
      for (float softcap : {0.0f, 5.0f}) {
        TestCache cache(1500, n_kv_heads, n_kv_heads * group, 32, 7);
        cache.See({{5, 400}, {411, 1480}});
        LayerQuery query = cache.Query();
        query.softcap = softcap;
        Selection selection;
        Make("topk:tokens=150")->Select(query, selection);
        ASSERT_FALSE(selection.dense || selection.per_query_head);
        ASSERT_EQ(selection.k_masks.size(), n_kv_heads * query.visible.size());
        for (int g = 0; g < n_kv_heads; ++g) {
          ExpectBest(query, selection, g, Always(query, 1, 64), Worth(cache, query, g), 150);
        }
      }
    }
  }
}

TEST(TopkPolicyTest, EveryTypeHeadSizeAndGroup) {
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0, KvType::kF32}) {
    for (int dim : {64, 96, 256}) {
      for (int group : {1, 3, 8}) {
        RowCache cache({.n_rows = 2048, .n_kv_heads = 2, .group = group, .dim = dim, .type = type});
        cache.See({{0, 700}, {712, 2000}});
        const Selection selection = Select(cache, "topk:tokens=160");
        ASSERT_FALSE(selection.dense);
        const LayerQuery query = cache.Query();
        for (int g = 0; g < 2; ++g)
          ExpectBest(query, selection, g, Always(query, 1, 64), cache.Worth(g), 160);
      }
    }
  }
}

// A row that one head of a group alone looks for.
TEST(TopkPolicyTest, EveryHeadOfAGroupIsHeard) {
  RowCache cache({.n_rows = 2048, .n_kv_heads = 2, .group = 4});
  std::vector<int> needles;
  for (int h = 0; h < cache.n_query_heads(); ++h) {
    needles.push_back(1 + h * 237);
    cache.Rewrite(needles[h], h, /*apart=*/3.0f);
    cache.LookFor(h, {needles[h]});
  }
  const Selection selection = Select(cache, "topk:tokens=69");
  for (int h = 0; h < cache.n_query_heads(); ++h)
    EXPECT_TRUE(HasRow(KRows(selection, h / 4), needles[h])) << h;
}

TEST(TopkPolicyTest, TiesGoToTheLowerRow) {
  TestCache cache(1000, 1, 2, 16);
  for (int row = 0; row < 1000; ++row) std::fill_n(cache.Key(0, row), 16, 0.0f);
  cache.See({{3, 50}, {70, 990}});
  EXPECT_EQ(ToRanges(KRows(Select(cache, "topk:tokens=165"), 0)),
            (Ranges{{3, 50}, {70, 124}, {926, 990}}));
  // A better row far behind; -0 equals +0.
  for (int c = 0; c < 16; ++c) {
    for (int h = 0; h < 2; ++h) cache.QueryHead(h)[c] = 1.0f;
    cache.Key(0, 900)[c] = 0.5f;
    cache.Key(0, 80)[c] = -0.0f;
  }
  EXPECT_EQ(ToRanges(KRows(Select(cache, "topk:tokens=165"), 0)),
            (Ranges{{3, 50}, {70, 123}, {900, 901}, {926, 990}}));
}

TEST(TopkPolicyTest, ANewestRowBeforeTheWindowIsRead) {
  TestCache cache(1000, 2, 2, 16);
  LayerQuery query = cache.Query();
  query.newest_row = 500;
  for (int c = 0; c < 16; ++c) {  // worth nothing
    for (int g = 0; g < 2; ++g) cache.Key(g, 500)[c] = cache.QueryHead(g)[c] > 0 ? -8.0f : 8.0f;
  }
  for (const auto& [spec, rows] : {std::pair("topk:tokens=65", 66), std::pair("topk", 193)}) {
    Selection selection;
    Make(spec)->Select(query, selection);
    ASSERT_FALSE(selection.dense);
    for (int g = 0; g < 2; ++g) {
      EXPECT_TRUE(HasRow(KRows(selection, g), 500));
      EXPECT_EQ(CountRows(KRows(selection, g)), rows);
    }
    EXPECT_EQ(selection.summary_bytes, 2u * (1000 - rows) * 16 * sizeof(float));
  }
  // Anchor, window and newest row are all there is.
  cache.See({{0, 1}, {500, 501}, {936, 1000}});
  query = cache.Query();
  query.newest_row = 500;
  Selection selection;
  Make("topk:tokens=65")->Select(query, selection);
  EXPECT_EQ(selection.reason, Fallback::kShort);
}

TEST(TopkPolicyTest, ReadsWhatItsBudgetSays) {
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (double percent : {5.0, 8.0, 30.0, 99.9}) {
      for (int n : {1400, 1801, 2040}) {
        RowCache cache({.n_rows = 2048, .n_kv_heads = 3, .group = 2, .type = type});
        cache.See({{0, 700}, {707, n + 7}});
        const std::string spec = "topk:budget=" + std::to_string(percent) + "%";
        const Selection selection = Select(cache, spec);
        ASSERT_FALSE(selection.dense) << spec << ' ' << n;
        EXPECT_TRUE(selection.v_masks.empty());  // V of the same rows
        EXPECT_TRUE(selection.rest_value.empty());
        const LayerQuery query = cache.Query();
        const auto key = static_cast<double>(query.kv->KeyBytes());
        const double row = key + static_cast<double>(query.kv->ValueBytes());
        int n_rows = 0;
        for (int g = 0; g < 3; ++g) n_rows += CountRows(KRows(selection, g));
        const double allowed = percent / 100 * n * 3 * row;
        EXPECT_LE(n_rows * row, allowed + 1e-6);
        EXPECT_GT(n_rows * row, allowed - 3 * row);
        // The other keys were read to choose.
        EXPECT_EQ(static_cast<double>(selection.summary_bytes), (3 * n - n_rows) * key);
      }
    }
  }
}

TEST(TopkPolicyTest, FallsBackWithItsReason) {
  TestCache cache(1000, 2, 4, 16);
  cache.See({{0, 193}});
  EXPECT_EQ(Select(cache, "topk").reason, Fallback::kShort);
  cache.See({{0, 194}});
  EXPECT_EQ(Select(cache, "topk").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "topk:tokens=194").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "topk:budget=8%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "topk:budget=33%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "topk:budget=34%").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "topk:budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "topk:dense_layers=0").reason, Fallback::kLayer);
  EXPECT_EQ(Select(cache, "topk:dense_layers=1-2").reason, Fallback::kNone);
  cache.See({{0, 1}});
  EXPECT_EQ(Select(cache, "topk").reason, Fallback::kShort);
}

TEST(TopkPolicyTest, NanIsDense) {
  for (float bad : {kNan, kInf}) {
    for (int row : {0, 300, 980}) {  // anchor, candidate, window
      TestCache cache(1000, 2, 4, 16);
      cache.Key(1, row)[3] = bad;
      for (int h = 0; h < 4; ++h) cache.QueryHead(h)[3] = 1.0f;
      const Selection selection = Select(cache, "topk");
      EXPECT_TRUE(selection.dense) << row;
      EXPECT_EQ(selection.reason, Fallback::kNan) << row;
      EXPECT_TRUE(selection.k_masks.empty());
      EXPECT_EQ(selection.summary_bytes, 0u);
      cache.Hide(row);  // rows that are not seen say nothing
      EXPECT_FALSE(Select(cache, "topk").dense) << row;
    }
  }
  // A logit of -inf is a row worth nothing.
  TestCache cache(1000, 1, 1, 16);
  cache.Key(0, 300)[3] = -kInf;
  cache.QueryHead(0)[3] = 1.0f;
  const Selection selection = Select(cache, "topk:tokens=999");
  ASSERT_FALSE(selection.dense);
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 300}, {301, 1000}}));
}

TEST(TopkPolicyTest, ThreadsChangeNothing) {
  for (int n_kv_heads : {1, 3}) {
    RowCache cache({.n_rows = 3000, .n_kv_heads = n_kv_heads});
    cache.See({{0, 1000}, {1003, 2999}});
    const Selection one = Select(cache, "topk:budget=8%", 1);
    ASSERT_FALSE(one.dense);
    for (int n_threads : {2, 3, 5}) {
      const Selection other = Select(cache, "topk:budget=8%", n_threads);
      EXPECT_EQ(one.k_masks, other.k_masks) << n_threads;
      EXPECT_EQ(one.summary_bytes, other.summary_bytes);
    }
  }
}

// No choice of as many rows holds more mass; the heaviest blocks' do not.
TEST(TopkPolicyTest, HoldsMoreMassThanTheHeaviestBlocks) {
  RowCache cache({.n_rows = 4096, .n_kv_heads = 2, .group = 3});
  const Selection rows = Select(cache, "topk:budget=8%"),
                  blocks = Select(cache, "oracle:budget=8%");
  ASSERT_FALSE(rows.dense || blocks.dense);
  for (int g = 0; g < 2; ++g) {
    const std::vector<double> worth = cache.Worth(g);
    double of_rows = 0, of_blocks = 0;
    for (int r = 0; r < 4096; ++r) {
      if (HasRow(KRows(rows, g), r)) of_rows += worth[r];
      if (HasRow(KRows(blocks, g), r)) of_blocks += worth[r];
    }
    EXPECT_GT(of_rows, 1.2 * of_blocks);
  }
}

TEST(TopkPolicyTest, AWarmStepAllocatesNothing) {
  RowCache cache({.n_rows = 3000, .n_kv_heads = 3});
  ExpectNoAllocations(cache, "topk:budget=8%", {3000}, {2900, 3000});
}

TEST(TopkPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("topk:tokens=193,budget=8%"),
            "topk: tokens and budget exclude each other: give one of them");
  EXPECT_EQ(ErrorOf("topk:tokens=64"),
            "topk: tokens=64 is less than anchor + window, 65 rows that are always read");
  EXPECT_EQ(ErrorOf("topk:budget=8"), "topk: budget: '8' is no percentage (such as 5%)");
  EXPECT_EQ(ErrorOf("topk:budget=0%"), "topk: budget=0% is out of range: 0.01% to 100%");
  EXPECT_EQ(ErrorOf("topk:window=0"), "topk: window=0 is out of range: 1 to 1000000");
  EXPECT_EQ(ErrorOf("topk:anchor=1025"), "topk: anchor=1025 is out of range: 0 to 1024");
  EXPECT_THAT(ErrorOf("topk:blocks=8"), ::testing::HasSubstr("has no key 'blocks'"));
  EXPECT_EQ(SpecOf("topk"), "topk:tokens=193");
  EXPECT_EQ(SpecOf("topk:window=64,budget=8.0%"), "topk:budget=8%");
  EXPECT_EQ(SpecOf("topk:tokens=97,anchor=0,dense_layers=0-1"),
            "topk:tokens=97,anchor=0,dense_layers=0-1");
}

}  // namespace
}  // namespace condense
