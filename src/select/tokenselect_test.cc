// The policy `tokenselect` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

using Ranges = std::vector<RowRange>;

// Each row's worth: the greatest of the `pool` rows of the list around it.
std::vector<double> Pooled(const std::vector<double>& worth, const std::vector<int>& rows,
                           int pool) {
  std::vector<double> pooled = worth;
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    for (int j = i - pool / 2; j <= i + pool / 2; ++j) {
      if (j >= 0 && j < static_cast<int>(rows.size()))
        pooled[rows[i]] = std::max(pooled[rows[i]], worth[rows[j]]);
    }
  }
  return pooled;
}

// Whole numbers: with one head, the order of the votes is exact.
TEST(TokenSelectPolicyTest, ReadsTheRowsThatAllHeadsVoteFor) {
  for (const auto& [n_kv_heads, n_heads] : {std::pair(1, 1), std::pair(2, 4), std::pair(3, 3)}) {
    for (const auto& [spec, tokens, anchor, window, pool] :
         {std::tuple("tokenselect:tokens=210", 210, 10, 40, 1),
          std::tuple("tokenselect:tokens=300,anchor=0,window=7", 300, 0, 7, 1),
          std::tuple("tokenselect:tokens=400,anchor=3,pool=5", 400, 3, 76, 5),
          std::tuple("tokenselect:tokens=100,anchor=50,window=50", 100, 50, 50, 1)}) {
      TestCache cache(1900, n_kv_heads, n_heads, 16, 5);
      cache.See({{0, 100}, {113, 900}, {901, 1880}});
      const LayerQuery query = cache.Query();
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense) << spec;
      const RowMask always = Always(query, anchor, window);
      const std::vector<int> middle = RowsOutside(query, always);
      const std::vector<double> votes =
          Pooled(Shares(cache, query, 0, n_heads, middle), middle, pool);
      const RowMask best = WithBest(query, always, votes, tokens - CountRows(always));
      for (int g = 0; g < n_kv_heads; ++g)
        EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(best)) << spec << ' ' << n_heads;
      // All other keys were read to choose.
      EXPECT_EQ(selection.summary_bytes,
                static_cast<uint64_t>(query.n_visible - tokens) * n_kv_heads * 16 * sizeof(float));
    }
  }
}

// What the first and the last rows hold of the mass does not weigh in the vote: a head that looks
// at nothing but them votes as loudly as another.
TEST(TokenSelectPolicyTest, TheVoteIsTakenAmongTheMiddleRows) {
  TestCache cache(1000, 1, 2, 16);
  for (int row = 0; row < 1000; ++row) std::fill_n(cache.Key(0, row), 16, 0.0f);
  for (int c = 0; c < 16; ++c) {
    cache.QueryHead(0)[c] = c == 0 ? 8.0f : 0.0f;
    cache.QueryHead(1)[c] = c == 1 ? 8.0f : 0.0f;
  }
  cache.Key(0, 0)[0] = 100.0f;   // nearly all of the first head's mass
  cache.Key(0, 500)[0] = 12.0f;  // its only middle row
  for (int row = 600; row < 640; ++row) cache.Key(0, row)[1] = 12.0f;
  const Selection selection = Select(cache, "tokenselect:tokens=12,anchor=1,window=10");
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (Ranges{{0, 1}, {500, 501}, {990, 1000}}));
}

TEST(TokenSelectPolicyTest, PoolReadsTheRowsAround) {
  TestCache cache(1000, 1, 1, 16);
  for (int row = 0; row < 1000; ++row) std::fill_n(cache.Key(0, row), 16, 0.0f);
  cache.QueryHead(0)[0] = 8.0f;
  cache.Key(0, 500)[0] = 8.0f;
  cache.See({{0, 499}, {500, 501}, {520, 1000}});
  const Selection selection = Select(cache, "tokenselect:tokens=16,anchor=1,window=10,pool=5");
  EXPECT_EQ(ToRanges(KRows(selection, 0)),
            (Ranges{{0, 1}, {497, 499}, {500, 501}, {520, 522}, {990, 1000}}));
}

TEST(TokenSelectPolicyTest, EveryTypeReadsItsTokens) {
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0, KvType::kF32}) {
    RowCache cache({.n_rows = 3000, .n_kv_heads = 2, .group = 3, .type = type});
    const Selection selection = Select(cache, "tokenselect");
    ASSERT_FALSE(selection.dense);
    EXPECT_EQ(CountRows(KRows(selection, 0)), 2688);
    EXPECT_EQ(ToRanges(KRows(selection, 0)), ToRanges(KRows(selection, 1)));
    EXPECT_EQ(CountCommonRows(KRows(selection, 0), Always(cache.Query(), 128, 512)), 640);
  }
}

TEST(TokenSelectPolicyTest, ANewestRowBeforeTheWindowIsRead) {
  TestCache cache(1000, 2, 2, 16);
  LayerQuery query = cache.Query();
  query.newest_row = 500;
  for (int c = 0; c < 16; ++c) {  // worth nothing
    for (int g = 0; g < 2; ++g) cache.Key(g, 500)[c] = cache.QueryHead(g)[c] > 0 ? -8.0f : 8.0f;
  }
  for (const auto& [spec, rows] : {std::pair("tokenselect:tokens=60,anchor=20,window=40", 61),
                                   std::pair("tokenselect:tokens=193", 193)}) {
    Selection selection;
    Make(spec)->Select(query, selection);
    ASSERT_FALSE(selection.dense);
    EXPECT_TRUE(HasRow(KRows(selection, 1), 500));
    EXPECT_EQ(CountRows(KRows(selection, 1)), rows);
  }
}

TEST(TokenSelectPolicyTest, FallsBackWithItsReason) {
  TestCache cache(1000, 2, 4, 16);
  cache.See({{0, 193}});
  EXPECT_EQ(Select(cache, "tokenselect:tokens=193").reason, Fallback::kShort);
  cache.See({{0, 194}});
  EXPECT_EQ(Select(cache, "tokenselect:tokens=193").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "tokenselect").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "tokenselect:tokens=193,dense_layers=0").reason, Fallback::kLayer);
  cache.See({{0, 1000}});
  cache.QueryHead(3)[3] = 1.0f;
  cache.Key(1, 300)[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Select(cache, "tokenselect:tokens=193").reason, Fallback::kNan);
  cache.Hide(300);
  EXPECT_EQ(Select(cache, "tokenselect:tokens=193").reason, Fallback::kNone);
}

TEST(TokenSelectPolicyTest, ThreadsChangeNothing) {
  RowCache cache({.n_rows = 3000, .n_kv_heads = 3});
  const std::string spec = "tokenselect:tokens=400,pool=3";
  const Selection one = Select(cache, spec, 1);
  ASSERT_FALSE(one.dense);
  for (int n_threads : {2, 3, 5}) EXPECT_TRUE(Same(one, Select(cache, spec, n_threads)));
}

TEST(TokenSelectPolicyTest, AWarmStepAllocatesNothing) {
  RowCache cache({.n_rows = 3000, .n_kv_heads = 3});
  ExpectNoAllocations(cache, "tokenselect:tokens=400,pool=3", {3000}, {2960, 3000});
}

TEST(TokenSelectPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("tokenselect:tokens=193,window=512"),
            "tokenselect: tokens=193 is less than anchor + window, 521 rows that are always read");
  EXPECT_EQ(ErrorOf("tokenselect:pool=4"),
            "tokenselect: pool=4 is even: as many rows count before a row as after it, so give an "
            "odd number");
  EXPECT_EQ(ErrorOf("tokenselect:anchor=-1"),
            "tokenselect: anchor=-1 is out of range: 0 to 1000000");
  EXPECT_THAT(ErrorOf("tokenselect:budget=8%"), ::testing::HasSubstr("has no key 'budget'"));
  EXPECT_EQ(SpecOf("tokenselect"), "tokenselect:tokens=2688");
  EXPECT_EQ(SpecOf("tokenselect:anchor=auto,window=64,tokens=193"),
            "tokenselect:tokens=193,window=64");
}

}  // namespace
}  // namespace condense
