// The policy `retrieval` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
    RowCache cache({.n_rows = 4096, .n_kv_heads = 3, .group = 2, .type = type});
    cache.See({{0, 700}, {712, 4000}});
    for (double percent : {9.0, 20.0, 70.0, 97.0}) {
      for (const char* probe : {"1", "32", "1000"}) {
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

TEST(RetrievalPolicyTest, AsManyTokensAsRowsAreDense) {
  TestCache cache(2048, 2, 4, 16);
  EXPECT_EQ(Select(cache, "retrieval:tokens=2048").reason, Fallback::kShort);
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
