// The policy `retrieval` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_clusters.h"
#include "select/test_rows.h"

namespace condense {
namespace {

// The first `n` rows of the ranked lists.
std::vector<int> ProbedRows(const std::vector<SlowCluster>& lists, int n) {
  std::vector<int> rows;
  for (const SlowCluster& list : lists) {
    for (int row : list.rows) {
      if (static_cast<int>(rows.size()) < n) rows.push_back(row);
    }
  }
  return rows;
}

// `always` and the n_best of the probed rows by their shares among these and `always`.
RowMask WithBestProbed(TestCache& cache, const LayerQuery& query, int kv_head,
                       const RowMask& always, const std::vector<int>& probed, int n_best) {
  std::vector<int> known = probed;
  for (int row = 0; row < query.kv->n_rows; ++row) {
    if (HasRow(always, row)) known.push_back(row);
  }
  const int group = query.group();
  const std::vector<double> worth =
      Shares(cache, query, kv_head * group, (kv_head + 1) * group, known);
  std::vector<int> order = probed;
  std::sort(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return worth[a] > worth[b]; });
  RowMask rows = always;
  for (int i = 0; i < n_best; ++i) AddRow(rows, order[i]);
  return rows;
}

TEST(RetrievalPolicyTest, ReadsTheBestOfTheProbedRows) {
  for (const auto& [n_kv_heads, n_heads] : {std::pair(1, 1), std::pair(2, 6)}) {
    for (const auto& [spec, tokens, probe] :
         {std::tuple("retrieval", 193, 32), std::tuple("retrieval:tokens=160,probe=3", 160, 3),
          std::tuple("retrieval:tokens=700,probe=4", 700, 4),
          std::tuple("retrieval:tokens=300,probe=100000", 300, 100000)}) {
      TestCache cache(2300, n_kv_heads, n_heads, 32, 3);
      cache.See({{0, 700}, {713, 1900}, {1901, 2280}});
      const LayerQuery query = cache.Query();
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense) << spec;
      const RowMask always = AlwaysWithLoose(query, 1, 64);
      const int n_best = tokens - CountRows(always);
      size_t bytes = 0;
      for (int g = 0; g < n_kv_heads; ++g) {
        const std::vector<SlowCluster> lists = RankedClusters(cache, query, g, always);
        int n_asked = 0;
        for (int i = 0; i < std::min<int>(probe, static_cast<int>(lists.size())); ++i)
          n_asked += lists[i].size;
        const std::vector<int> probed = ProbedRows(lists, std::max(n_asked, n_best));
        EXPECT_EQ(ToRanges(KRows(selection, g)),
                  ToRanges(WithBestProbed(cache, query, g, always, probed, n_best)))
            << spec << ' ' << g;
        bytes += RankBytes(query, g) + probed.size() * 2 + (probed.size() - n_best) * 128;
      }
      EXPECT_EQ(selection.summary_bytes, bytes) << spec;
    }
  }
}

// With every list probed, it is `topk`.
TEST(RetrievalPolicyTest, ProbingAllIsTopk) {
  RowCache cache({.n_rows = 4096, .n_kv_heads = 2, .group = 3});
  cache.See({{0, 64 * 60 + 64}});  // no row without a list
  const Selection all = Select(cache, "retrieval:probe=1000000");
  const Selection topk = Select(cache, "topk");
  ASSERT_FALSE(all.dense);
  EXPECT_EQ(all.k_masks, topk.k_masks);
}

TEST(RetrievalPolicyTest, ReadsWhatItsBudgetSays) {
  for (KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kF32}) {
    for (double percent : {9.0, 20.0, 70.0, 97.0}) {
      for (const char* probe : {"1", "32", "1000"}) {
        RowCache cache({.n_rows = 4096, .n_kv_heads = 3, .group = 2, .type = type});
        cache.See({{0, 700}, {712, 4000}});
        const std::string spec = "retrieval:budget=" + std::to_string(percent) + "%,probe=" + probe;
        const Selection selection = Select(cache, spec);
        ASSERT_FALSE(selection.dense) << spec;
        const LayerQuery query = cache.Query();
        const double row = RowBytes(*query.kv), bytes = BytesRead(selection, *query.kv);
        const double allowed = percent / 100 * query.n_visible * 3 * row;
        EXPECT_LE(bytes, allowed) << spec;
        EXPECT_GT(bytes, allowed - 3 * 1.1 * row) << spec;
      }
    }
  }
}

TEST(RetrievalPolicyTest, FallsBackWithItsReason) {
  TestCache cache(2048, 2, 4, 16);
  EXPECT_EQ(Select(cache, "retrieval").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "retrieval:budget=3%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "retrieval:budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "retrieval:tokens=2048").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "retrieval:dense_layers=0").reason, Fallback::kLayer);
  // The means are not covered: what is always read, and nothing read to choose.
  const Selection least = Select(cache, "retrieval:budget=4.5%");
  EXPECT_FALSE(least.dense);
  EXPECT_EQ(ToRanges(KRows(least, 0)), ToRanges(AlwaysWithLoose(cache.Query(), 1, 64)));
  EXPECT_EQ(least.summary_bytes, 0u);
  cache.See({{0, 1023}});
  EXPECT_EQ(Select(cache, "retrieval").reason, Fallback::kShort);
  cache.See({{0, 2048}});
  cache.Key(1, 300)[3] = std::numeric_limits<float>::quiet_NaN();
  cache.index().MarkWritten(300);
  for (int h = 0; h < 4; ++h) cache.QueryHead(h)[3] = 1.0f;
  const Selection selection = Select(cache, "retrieval");
  EXPECT_EQ(selection.reason, Fallback::kNan);
  EXPECT_TRUE(selection.dense && selection.k_masks.empty());
  EXPECT_EQ(selection.summary_bytes, 0u);
  cache.Hide(300);
  EXPECT_EQ(Select(cache, "retrieval").reason, Fallback::kNone);
}

TEST(RetrievalPolicyTest, ThreadsChangeNothing) {
  for (const char* spec : {"retrieval", "retrieval:budget=12%"}) {
    RowCache cache({.n_rows = 4096, .n_kv_heads = 3}), other({.n_rows = 4096, .n_kv_heads = 3});
    const Selection one = Select(cache, spec, 1);
    ASSERT_FALSE(one.dense);
    for (int n_threads : {2, 3, 5}) EXPECT_TRUE(Same(one, Select(other, spec, n_threads)));
  }
}

// Between two segments that close.
TEST(RetrievalPolicyTest, AWarmStepAllocatesNothing) {
  for (const char* spec : {"retrieval", "retrieval:budget=12%"}) {
    RowCache cache({.n_rows = 4096, .n_kv_heads = 3});
    ExpectNoAllocations(cache, spec, {3968 + 64, 3968 + 64 + 63}, {3968 + 64, 3968 + 64 + 64});
  }
}

TEST(RetrievalPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(
      ErrorOf("retrieval:tokens=127"),
      "retrieval: tokens=127 is less than anchor + window + 63, 128 rows that are always read");
  EXPECT_EQ(ErrorOf("retrieval:tokens=193,budget=8%"),
            "retrieval: tokens and budget exclude each other: give one of them");
  EXPECT_EQ(ErrorOf("retrieval:probe=0"), "retrieval: probe=0 is out of range: 1 to 1000000");
  EXPECT_EQ(SpecOf("retrieval"), "retrieval:tokens=193");
  EXPECT_EQ(SpecOf("retrieval:probe=64,budget=8%"), "retrieval:budget=8%,probe=64");
}

}  // namespace
}  // namespace condense
