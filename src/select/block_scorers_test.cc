// Scorers by moments of a block's keys against plain loops over its rows, and what they choose
// against a slow restatement of the rule.
#include <cmath>
#include <map>

#include "gtest/gtest.h"
#include "kernels/summary.h"
#include "select/block_mass.h"
#include "select/slow_frame.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

constexpr int kRows = 640, kKvHeads = 2, kHeads = 6, kGroup = 3, kDim = 32;

TEST(BlockMassTest, LogitMomentsMatchPlainLoops) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  const SlowMoments slow(cache, kDim);
  LayerQuery layer = cache.Query();
  for (const VarianceForm form :
       {VarianceForm::kOne, VarianceForm::kGroups, VarianceForm::kChannels}) {
    const int groups = form == VarianceForm::kOne      ? 1
                       : form == VarianceForm::kGroups ? kVarianceGroups
                                                       : kDim;
    layer.index->Refresh(*layer.kv, kMeanKey | NeededFor(form), layer.visible);
    for (int h = 0; h < kHeads; ++h) {
      for (const int first : {0, 16}) {
        const ScoreQuery query{.layer = &layer,
                               .q = cache.QueryHead(h),
                               .kv_head = h / kGroup,
                               .query_head = h,
                               .rows = {},
                               .first_block = first};
        std::vector<float> means(16), variances(16);
        MeanLogits(query, means);
        LogitVariances(query, form, variances);
        for (int i = 0; i < 16; ++i) {
          const double v = slow.Variance(h, h / kGroup, first + i, groups);
          EXPECT_NEAR(means[i], slow.Mean(h, h / kGroup, first + i), 1e-5);
          EXPECT_NEAR(variances[i], v, 1e-5 * v);
        }
      }
    }
  }
}

TEST(BlockMassTest, LogRowsAreLogarithms) {
  EXPECT_EQ(LogRows(0), 0.0f);
  for (int n = 1; n <= kBlockRows; ++n) EXPECT_FLOAT_EQ(LogRows(n), std::log(n));
}

// The score of a block for one query head, from the rule's own words.
double SlowScore(const SlowMoments& slow, const std::string& policy, int h, int block, int n_rows) {
  const int g = h / kGroup;
  if (policy == "unique") return slow.Mean(h, g, block) + 0.5 * slow.Offset(h, g, block);
  if (policy == "unique:form=rms,lambda=2")
    return slow.Mean(h, g, block) + 2 * slow.Offset(h, g, block);
  if (policy == "unique:form=abs") return slow.Mean(h, g, block) + slow.AbsOffset(h, g, block);
  const int groups = policy == "mass:groups=1" ? 1 : policy == "mass:groups=d" ? kDim : 4;
  return std::log(n_rows) + slow.Mean(h, g, block) + slow.Variance(h, g, block, groups) / 2;
}

class Scorers : public ::testing::TestWithParam<std::string> {};

TEST_P(Scorers, ChooseWhatTheSlowFormChooses) {
  const std::string& policy = GetParam();
  const bool mass = policy.starts_with("mass");
  for (const std::string share : {"kv_group", "per_head", "shared"}) {
    const std::string spec = policy + (policy.find(':') == std::string::npos ? ":" : ",") +
                             "blocks=5,window=70,share=" + share;
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      TestCache cache(kRows, kKvHeads, kHeads, kDim, seed);
      const int n = kRows - static_cast<int>(seed) * 7;
      cache.See({{0, n}});
      const SlowMoments slow(cache, kDim);
      const SlowFrame frame(n, 1, 70);
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense);
      const int n_sets = share == "per_head" ? kHeads : kKvHeads;
      for (int set = 0; set < n_sets; ++set) {
        const int heads = share == "per_head" ? 1 : share == "shared" ? kHeads : kGroup;
        const int first = share == "shared" ? 0 : set * heads;
        const std::map<int, double> scores = frame.OverHeads(
            first, heads, mass,
            [&](int h, int block) { return SlowScore(slow, policy, h, block, frame.Gain(block)); });
        frame.ExpectBest(scores, 5, KRows(selection, set));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Scorers,
                         ::testing::Values("unique", "unique:form=rms,lambda=2", "unique:form=abs",
                                           "mass", "mass:groups=1", "mass:groups=d"),
                         [](const auto& param) { return std::to_string(param.index); });

// Of each candidate, Σ_j p_j ‖v_j − o‖ over the rows that choosing it adds.
std::map<int, double> SlowValueWorth(TestCache& cache, const SlowFrame& frame, int h) {
  const int g = h / kGroup;
  const LayerQuery query = cache.Query();
  const std::vector<int> rows = VisibleRows(query);
  const std::vector<double> p = Shares(cache, query, h, h + 1, rows);
  std::vector<double> o(kDim, 0.0);
  for (int row : rows) {
    for (int c = 0; c < kDim; ++c) o[c] += p[row] * cache.Value(g, row)[c];
  }
  std::map<int, double> worth;
  for (int b : frame.candidates()) {
    for (int row = 16 * b; row < 16 * b + 16; ++row) {
      if (frame.IsRead(row)) continue;
      double squares = 0;
      for (int c = 0; c < kDim; ++c)
        squares += (cache.Value(g, row)[c] - o[c]) * (cache.Value(g, row)[c] - o[c]);
      worth[b] += p[row] * std::sqrt(squares);
    }
  }
  return worth;
}

TEST(OracleByValue, ChoosesWhatTheSlowFormChooses) {
  bool differs = false;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    TestCache cache(kRows, kKvHeads, kHeads, kDim, seed);
    const int n = kRows - static_cast<int>(seed) * 7;
    cache.See({{0, n}});
    const SlowFrame frame(n, 1, 70);
    const Selection selection = Select(cache, "oracle:blocks=5,window=70,by=value");
    for (int g = 0; g < kKvHeads; ++g) {
      std::map<int, double> scores;
      for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
        for (const auto& [b, worth] : SlowValueWorth(cache, frame, h)) scores[b] += worth;
      }
      frame.ExpectBest(scores, 5, KRows(selection, g));
    }
    EXPECT_TRUE(Same(selection, Select(cache, "oracle:blocks=5,window=70,by=value", 2)));
    const Selection by_mass = Select(cache, "oracle:blocks=5,window=70");
    differs = differs || by_mass.k_masks != selection.k_masks;
    // K and V of every row that is not read show in the counters.
    EXPECT_GT(selection.summary_bytes, by_mass.summary_bytes);
    uint64_t rows = 0;
    for (int g = 0; g < kKvHeads; ++g) rows += n - CountRows(KRows(selection, g));
    EXPECT_EQ(selection.summary_bytes, rows * 2 * 4 * kDim);
  }
  EXPECT_TRUE(differs);
}

TEST(ScorerBytes, CountTheBytesOfTheirSummaries) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  cache.See({{0, 600}});
  const uint64_t blocks = 34 * kKvHeads;  // 0 … 33: the window of 64 starts at row 536
  EXPECT_EQ(Select(cache, "unique:blocks=3").summary_bytes, blocks * 2 * (kDim + 1));
  EXPECT_EQ(Select(cache, "unique:blocks=3,form=abs").summary_bytes, blocks * 2 * 2 * kDim);
  EXPECT_EQ(Select(cache, "mass:blocks=3").summary_bytes, blocks * 2 * (kDim + 4));
  EXPECT_EQ(Select(cache, "mass:blocks=3,groups=1").summary_bytes, blocks * 2 * (kDim + 1));
  EXPECT_EQ(Select(cache, "mass:blocks=3,groups=d").summary_bytes, blocks * 2 * 2 * kDim);
}

TEST(ScorerKeys, BadKeysNameTheWayOut) {
  EXPECT_EQ(ErrorOf("mass:groups=2"), "mass: groups=2 is unknown (1, 4, d)");
  EXPECT_EQ(ErrorOf("unique:form=abs,lambda=1"), "unique: lambda is read only with form=rms");
  EXPECT_EQ(ErrorOf("oracle:by=values"),
            "oracle: by=values is unknown; did you mean 'value'? (mass, value)");
  EXPECT_EQ(ErrorOf("unique:lambda=-1"), "unique: lambda=-1 is out of range: 0 to 100");
}

}  // namespace
}  // namespace condense
