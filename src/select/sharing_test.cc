// The five forms of sharing, and the scorers' formulas, against a naive restatement in double that
// shares no code with the frame: POLICIES.md's sentences as loops over rows.
#include <algorithm>
#include <cmath>
#include <map>

#include "gtest/gtest.h"
#include "select/registry.h"
#include "select/test_cache.h"

namespace condense {
namespace {

constexpr int kRows = 640, kKvHeads = 2, kHeads = 8, kGroup = 4, kDim = 16;
constexpr int kWindow = 70, kBlocks = 3;
constexpr double kScale = 0.0625;

class Naive {
 public:
  explicit Naive(TestCache& cache, int n_visible) : cache_(cache), n_(n_visible) {
    const int window_start = n_ - kWindow;
    for (int b = 0; b * 16 < window_start; ++b) candidates_.push_back(b);
  }

  std::vector<int> Choose(const std::string& policy, const std::string& share, int set) {
    if (share == "shared") return Best(Scores(policy, 0, kHeads), kBlocks);
    const int first = set * kGroup;
    if (share == "kv_group") return Best(Scores(policy, first, first + kGroup), kBlocks);
    if (share == "per_head") return Best(Scores(policy, set, set + 1), kBlocks);
    if (share == "head_union") {
      std::map<int, double> best;
      for (int h = first; h < first + kGroup; ++h) {
        for (const auto& [block, score] : Scores(policy, h, h + 1)) {
          best[block] = best.contains(block) ? std::max(best[block], score) : score;
        }
      }
      return Best(best, kBlocks);
    }
    EXPECT_EQ(share, "rerank");
    const std::vector<int> shortlist = Best(Scores(policy, first, first + kGroup), 4 * kBlocks);
    std::map<int, double> mass;
    for (int h = first; h < first + kGroup; ++h) {
      double total = 0;
      std::map<int, double> sums;
      for (int block : shortlist) {
        for (int row : RowsOf(block)) sums[block] += std::exp(Logit(h, row));
        total += sums[block];
      }
      for (int block : shortlist) mass[block] += sums[block] / total;
    }
    return Best(mass, kBlocks);
  }

  // Rows that choosing the block adds: after the anchor (row 0), before the window.
  std::vector<int> RowsOf(int block) const {
    std::vector<int> rows;
    for (int row = std::max(1, 16 * block); row < std::min(16 * block + 16, n_ - kWindow); ++row) {
      rows.push_back(row);
    }
    return rows;
  }

 private:
  double Dot(int head, int kv_head, int row) const {
    double dot = 0;
    for (int c = 0; c < kDim; ++c) dot += cache_.QueryHead(head)[c] * cache_.Key(kv_head, row)[c];
    return dot;
  }
  double Logit(int head, int row) const { return kScale * Dot(head, head / kGroup, row); }

  // One score per candidate for the heads [first, last) together.
  std::map<int, double> Scores(const std::string& policy, int first, int last) const {
    std::map<int, double> scores;
    for (int block : candidates_) {
      double& score = scores[block];
      if (policy == "mean") {
        // Mean query of the heads, mean centroid of the KV heads they belong to.
        const int g_first = first / kGroup, g_last = (last - 1) / kGroup;
        for (int h = first; h < last; ++h) {
          for (int g = g_first; g <= g_last; ++g) {
            for (int i = 0; i < 16; ++i) score += Dot(h, g, 16 * block + i) / 16;
          }
        }
        score *= kScale / (last - first) / (g_last - g_first + 1);
      } else if (policy == "quest") {
        score = -INFINITY;
        for (int h = first; h < last; ++h) {
          double bound = 0;
          for (int c = 0; c < kDim; ++c) {
            double best = -INFINITY;
            for (int i = 0; i < 16; ++i) {
              best = std::max<double>(
                  best, cache_.QueryHead(h)[c] * cache_.Key(h / kGroup, 16 * block + i)[c]);
            }
            bound += best;
          }
          score = std::max(score, kScale * bound);
        }
      } else {
        for (int h = first; h < last; ++h) {
          double total = 0;
          for (int row = 0; row < n_; ++row) total += std::exp(Logit(h, row));
          for (int row : RowsOf(block)) score += std::exp(Logit(h, row)) / total;
        }
      }
    }
    return scores;
  }

  static std::vector<int> Best(const std::map<int, double>& scores, int n) {
    std::vector<int> blocks;
    for (const auto& [block, score] : scores) blocks.push_back(block);
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](int a, int b) { return scores.at(a) > scores.at(b); });
    blocks.resize(std::min(n, static_cast<int>(blocks.size())));
    std::sort(blocks.begin(), blocks.end());
    return blocks;
  }

  TestCache& cache_;
  int n_;
  std::vector<int> candidates_;
};

using PolicyAndShare = std::tuple<std::string, std::string>;
class Sharing : public ::testing::TestWithParam<PolicyAndShare> {};

TEST_P(Sharing, ChoosesWhatTheNaiveFormChooses) {
  const auto& [name, share] = GetParam();
  const Result<BoundPolicy> bound = MakePolicy(name + ":blocks=3,window=70,share=" + share);
  ASSERT_TRUE(bound.ok()) << bound.error();
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    TestCache cache(kRows, kKvHeads, kHeads, kDim, seed);
    const int n = kRows - static_cast<int>(seed) * 7;
    cache.See({{0, n}});
    Naive naive(cache, n);
    Selection selection;
    bound.value().policy->Select(cache.Query(), selection);
    ASSERT_FALSE(selection.dense);
    ASSERT_EQ(selection.per_query_head, share == "per_head");
    const int n_sets = selection.per_query_head ? kHeads : kKvHeads;
    for (int set = 0; set < n_sets; ++set) {
      RowMask expected(BlocksFor(kRows), 0);
      AddRow(expected, 0);
      AddRange(expected, {n - kWindow, n});
      const int last_full = n / 16;
      if (n % 16 != 0) AddRange(expected, {16 * last_full, n});
      for (int block : naive.Choose(name, share, set)) {
        for (int row : naive.RowsOf(block)) AddRow(expected, row);
      }
      EXPECT_EQ(ToRanges(KRows(selection, set)), ToRanges(expected))
          << "seed " << seed << " set " << set;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Sharing,
    ::testing::Combine(::testing::Values("mean", "quest", "oracle"),
                       ::testing::Values("shared", "kv_group", "head_union", "rerank", "per_head")),
    [](const auto& param) { return std::get<0>(param.param) + "_" + std::get<1>(param.param); });

// Bytes read to choose: summaries of the candidates, and K rows that were read but not chosen.
TEST(SummaryBytes, CountWhatWasReadToChoose) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  cache.See({{0, 600}});
  const int candidates = 34;  // blocks 0 … 33: the window of 64 starts at row 536
  auto bytes = [&](const std::string& spec, Selection* selection) {
    MakePolicy(spec).value().policy->Select(cache.Query(), *selection);
    EXPECT_FALSE(selection->dense);
    return selection->summary_bytes;
  };
  Selection selection;
  EXPECT_EQ(bytes("mean:blocks=3", &selection), candidates * kKvHeads * 16u * 2);
  EXPECT_EQ(bytes("quest:blocks=3", &selection), candidates * kKvHeads * 32u * 2);
  EXPECT_EQ(bytes("random:blocks=3", &selection), 0u);
  for (const char* spec : {"oracle:blocks=3", "oracle:blocks=3,share=per_head"}) {
    const uint64_t to_choose = bytes(spec, &selection);
    uint64_t rows = 0;
    const int per_kv_head = selection.per_query_head ? kGroup : 1;
    for (int g = 0; g < kKvHeads; ++g) {
      RowMask any(BlocksFor(kRows), 0);
      for (int i = 0; i < per_kv_head; ++i) {
        for (size_t b = 0; b < any.size(); ++b) {
          any[b] = static_cast<uint16_t>(any[b] | selection.KMask(g * per_kv_head + i)[b]);
        }
      }
      rows += CountRows(any);
    }
    EXPECT_EQ(to_choose, (600u * kKvHeads - rows) * 64) << spec;
  }
}

TEST(Random, DrawsDifferBySeedLayerHeadAndStepAndRepeat) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  auto masks = [&](const std::string& spec, int layer, int n) {
    cache.See({{0, n}});
    LayerQuery query = cache.Query();
    query.layer = layer;
    Selection selection;
    MakePolicy(spec).value().policy->Select(query, selection);
    EXPECT_FALSE(selection.dense);
    return selection.k_masks;
  };
  const auto first = masks("random:seed=7", 3, 600);
  EXPECT_EQ(first, masks("random:seed=7", 3, 600));
  EXPECT_NE(first, masks("random:seed=8", 3, 600));
  EXPECT_NE(first, masks("random:seed=7", 4, 600));
  EXPECT_NE(first, masks("random:seed=7", 3, 599));
  const size_t half = first.size() / 2;
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + half, first.begin() + half));
}

}  // namespace
}  // namespace condense
