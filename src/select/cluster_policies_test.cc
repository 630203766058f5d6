// What the policies that rank clusters of keys, `tactic` and `retrieval`, have in common.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "select/row_cache.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_clusters.h"

namespace condense {
namespace {

class ClusterPolicyTest : public ::testing::TestWithParam<std::string> {
 protected:
  bool is_tactic() const { return policy_ == "tactic"; }
  std::vector<std::string> Specs() const {
    if (is_tactic()) return {"tactic:mass=70%,budget=60%"};
    return {"retrieval", "retrieval:budget=12%"};
  }

  const std::string policy_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Policies, ClusterPolicyTest, ::testing::Values("tactic", "retrieval"),
                         [](const auto& policy) { return policy.param; });

TEST_P(ClusterPolicyTest, FallsBackWithItsReason) {
  TestCache cache(2048, 2, 4, 16);
  EXPECT_EQ(Select(cache, policy_).reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, policy_ + ":budget=3%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, policy_ + ":budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, policy_ + ":dense_layers=0").reason, Fallback::kLayer);
  // The means are not covered: what is always read, and nothing read to choose.
  const Selection least = Select(cache, policy_ + ":budget=4.5%");
  EXPECT_FALSE(least.dense);
  EXPECT_EQ(ToRanges(KRows(least, 0)), ToRanges(AlwaysWithLoose(cache.Query(), 1, 64)));
  EXPECT_EQ(least.summary_bytes, 0u);
  cache.See({{0, 1023}});
  EXPECT_EQ(Select(cache, policy_).reason, Fallback::kShort);
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    cache.See({{0, 2048}});
    cache.Key(1, 300)[3] = bad;
    cache.index().MarkWritten(300);
    for (int h = 0; h < 4; ++h) cache.QueryHead(h)[3] = 1.0f;
    const Selection selection = Select(cache, policy_);
    EXPECT_EQ(selection.reason, Fallback::kNan);
    EXPECT_TRUE(selection.dense && selection.k_masks.empty());
    EXPECT_EQ(selection.summary_bytes, 0u);
    cache.Hide(300);
    EXPECT_EQ(Select(cache, policy_).reason, Fallback::kNone);
  }
}

TEST_P(ClusterPolicyTest, RowsWithoutAClusterAreRead) {
  RowCache cache({.n_rows = 4096, .n_kv_heads = 2});
  for (int n = 4000; n <= 4096; n += 8) {
    cache.See({{0, n}});
    const Selection selection = Select(cache, policy_ + ":budget=20%");
    ASSERT_FALSE(selection.dense);
    const RowMask always = AlwaysWithLoose(cache.Query(), 1, 64);
    EXPECT_EQ(CountCommonRows(KRows(selection, 1), always), CountRows(always));
  }
}

TEST_P(ClusterPolicyTest, ThreadsChangeNothing) {
  for (const std::string& spec : Specs()) {
    RowCache cache({.n_rows = 4096, .n_kv_heads = 3}), other({.n_rows = 4096, .n_kv_heads = 3});
    const Selection one = Select(cache, spec, 1);
    ASSERT_FALSE(one.dense);
    for (int n_threads : {2, 3, 5}) EXPECT_TRUE(Same(one, Select(other, spec, n_threads))) << spec;
  }
}

// Between two segments that close.
TEST_P(ClusterPolicyTest, AWarmStepAllocatesNothing) {
  constexpr int kFirst = 3968 + 64, kLast = kFirst + 63;
  const std::vector<int> warm_up =
      is_tactic() ? std::vector<int>{kLast} : std::vector<int>{kFirst, kLast};
  for (const std::string& spec : Specs()) {
    RowCache cache({.n_rows = 4096, .n_kv_heads = 3});
    ExpectNoAllocations(cache, spec, warm_up, {kFirst, kLast + 1});
  }
}

}  // namespace
}  // namespace condense
