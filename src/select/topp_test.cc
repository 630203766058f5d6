// The policy `topp` on made caches, against plain forms in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "select/row_cache.h"
#include "select/slow_frame.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

// The blocks of a step: what is read always, what may be chosen.
struct Blocks {
  RowMask always;
  std::vector<int> candidates;
};
Blocks BlocksOf(const LayerQuery& query, int anchor, int window) {
  Blocks blocks{.always = Always(query, anchor, window), .candidates = {}};
  for (size_t b = 0; b < query.visible.size(); ++b) {
    if (query.visible[b] != 0xFFFF) {
      blocks.always[b] = query.visible[b];
    } else if (blocks.always[b] != 0xFFFF) {
      blocks.candidates.push_back(static_cast<int>(b));
    }
  }
  return blocks;
}

// Estimated shares by block, summed over the group; the rest of the mass is that of `always`.
std::vector<double> BlockWorth(TestCache& cache, const LayerQuery& query, const Blocks& blocks,
                               int kv_head) {
  const SlowMoments slow(cache, query.kv->k_dim);
  std::vector<double> worth(query.visible.size(), 0.0);
  for (int h = kv_head * query.group(); h < (kv_head + 1) * query.group(); ++h) {
    double sum = 0;
    for (int row = 0; row < query.kv->n_rows; ++row) {
      if (HasRow(blocks.always, row)) sum += std::exp(Logit(cache, query, h, row));
    }
    std::vector<double> p(worth.size(), 0.0);
    for (int b : blocks.candidates) {
      const int n = 16 - CountBits(blocks.always[b]);
      p[b] = n * std::exp(Capped(slow.Mean(h, kv_head, b), query.softcap));
      sum += p[b];
    }
    for (int b : blocks.candidates) worth[b] += p[b] / sum;
  }
  return worth;
}

// The best of `order` until `base` and their worth are `target`, at most `most`.
std::vector<int> LeastSet(std::vector<int> order, const std::vector<double>& worth, double base,
                          double target, int most) {
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return worth[a] > worth[b]; });
  int n = 0;
  while (n < std::min<int>(most, static_cast<int>(order.size())) && base < target)
    base += worth[order[n++]];
  order.resize(n);
  return order;
}

TEST(ToppPolicyTest, BlocksEndWhereTheEstimatedMassIsReached) {
  int n_reached = 0, n_capped = 0;
  for (const auto& [n_kv_heads, n_heads] : {std::pair(1, 1), std::pair(2, 6)}) {
    for (float softcap : {0.0f, 5.0f}) {
      for (const auto& [spec, mass, share, anchor, window] :
           {std::tuple("topp", .9, .25, 1, 64),
            std::tuple("topp:mass=60%,budget=50%", .6, .5, 1, 64),
            std::tuple("topp:mass=97%,budget=90%,anchor=20,window=40", .97, .9, 20, 40),
            std::tuple("topp:mass=30%,budget=99%", .3, .99, 1, 64)}) {
        TestCache cache(1900, n_kv_heads, n_heads, 16, 3);
        cache.See({{0, 100}, {113, 900}, {901, 1880}});
        LayerQuery query = cache.Query();
        query.softcap = softcap;
        Selection selection;
        Make(spec)->Select(query, selection);
        ASSERT_FALSE(selection.dense) << spec;
        const Blocks blocks = BlocksOf(query, anchor, window);
        const double row = 2 * 16 * sizeof(float), summary = 2 * 16;
        const auto n = static_cast<double>(blocks.candidates.size());
        const int most = static_cast<int>(
            (share * query.n_visible * row - CountRows(blocks.always) * row - n * summary) /
            (16 * row));
        for (int g = 0; g < n_kv_heads; ++g) {
          const std::vector<double> worth = BlockWorth(cache, query, blocks, g);
          double base = query.group();
          for (double w : worth) base -= w;
          const std::vector<int> chosen =
              LeastSet(blocks.candidates, worth, base, mass * query.group(), most);
          (static_cast<int>(chosen.size()) < most ? n_reached : n_capped) += 1;
          RowMask expected = blocks.always;
          for (int b : chosen) expected[b] = 0xFFFF;
          EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(expected)) << spec << ' ' << g;
        }
        EXPECT_EQ(selection.summary_bytes, static_cast<uint64_t>(n * summary) * n_kv_heads);
      }
    }
  }
  EXPECT_GT(n_reached, 5);
  EXPECT_GT(n_capped, 2);
}

TEST(ToppPolicyTest, RowsAreTheLeastThatHoldTheMass) {
  int n_reached = 0, n_capped = 0;
  for (const auto& [spec, mass, share] :
       {std::tuple("topp:by=row,mass=50%,budget=90%", .5, .9),
        std::tuple("topp:by=row,mass=95%,budget=99%", .95, .99),
        std::tuple("topp:by=row,mass=99%,budget=54%", .99, .54)}) {
    for (int n_heads : {1, 2, 6}) {
      const int n_kv_heads = n_heads == 1 ? 1 : 2;
      TestCache cache(1800, n_kv_heads, n_heads, 16, 11);
      cache.See({{0, 700}, {713, 1800}});
      const LayerQuery query = cache.Query();
      const Selection selection = Select(cache, spec);
      ASSERT_FALSE(selection.dense) << spec;
      const RowMask always = Always(query, 1, 64);
      // Every key is read; what is left of the budget buys values.
      const int most =
          static_cast<int>(2 * share * query.n_visible - query.n_visible - CountRows(always));
      uint64_t n_unread = 0;
      for (int g = 0; g < n_kv_heads; ++g) {
        const std::vector<double> worth = Worth(cache, query, g);
        const std::vector<int> rows = RowsOutside(query, always);
        double base = query.group();
        for (int row : rows) base -= worth[row];
        const std::vector<int> chosen = LeastSet(rows, worth, base, mass * query.group(), most);
        (static_cast<int>(chosen.size()) < most ? n_reached : n_capped) += 1;
        RowMask expected = always;
        for (int row : chosen) AddRow(expected, row);
        EXPECT_EQ(ToRanges(KRows(selection, g)), ToRanges(expected)) << spec << ' ' << n_heads;
        n_unread += query.n_visible - CountRows(expected);
      }
      EXPECT_EQ(selection.summary_bytes, n_unread * 16 * sizeof(float));
    }
  }
  EXPECT_GT(n_reached, 0);
  EXPECT_GT(n_capped, 0);
}

// Keys at 8 bits choose nearly what exact ones do.
TEST(ToppPolicyTest, RowsBy8BitsHoldNearlyTheMass) {
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32, KvType::kQ8_0}) {
    RowCache cache({.n_rows = 3000, .n_kv_heads = 2, .group = 3, .type = type});
    for (int h = 0; h < 6; ++h) cache.LookFor(h, {100 + h, 900 + 7 * h, 2000 - h});
    const Selection by_q8 = Select(cache, "topp:by=row_q8,mass=80%,budget=95%");
    const Selection by_row = Select(cache, "topp:by=row,mass=80%,budget=95%");
    ASSERT_FALSE(by_q8.dense || by_row.dense);
    uint64_t n_read = 0;
    for (int g = 0; g < 2; ++g) {
      const std::vector<double> worth = cache.Worth(g);
      double mass = 0, exact_mass = 0;
      for (int row = 0; row < 3000; ++row) {
        mass += HasRow(KRows(by_q8, g), row) ? worth[row] / 3 : 0;
        exact_mass += HasRow(KRows(by_row, g), row) ? worth[row] / 3 : 0;
      }
      EXPECT_GE(exact_mass, 0.8);
      EXPECT_NEAR(mass, exact_mass, 0.005);
      n_read += CountRows(KRows(by_q8, g));
    }
    EXPECT_LT(n_read, 3000u);
    const uint64_t keys_read = type == KvType::kQ8_0 ? 6000 - n_read : 6000;
    EXPECT_EQ(by_q8.summary_bytes, keys_read * KvBytes(KvType::kQ8_0, 64));
  }
}

// A copy follows its row.
TEST(ToppPolicyTest, RowsBy8BitsSeeWhatIsWritten) {
  RowCache cache({.n_rows = 2048, .n_kv_heads = 1, .group = 1});
  const std::string spec = "topp:by=row_q8,mass=20%,budget=80%";
  cache.Rewrite(500, 7, /*apart=*/3.0f);
  cache.MarkWritten(500);
  cache.LookFor(0, {500});
  EXPECT_TRUE(HasRow(KRows(Select(cache, spec), 0), 500));
  cache.Rewrite(500, 8);
  cache.MarkWritten(500);
  EXPECT_FALSE(HasRow(KRows(Select(cache, spec), 0), 500));
}

TEST(ToppPolicyTest, ReadsAtMostItsBudget) {
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (const char* by : {"block", "row", "row_q8"}) {
      for (double percent : {5.0, 12.0, 60.0, 75.0}) {
        RowCache cache({.n_rows = 2048, .n_kv_heads = 3, .group = 2, .type = type});
        cache.See({{0, 700}, {707, 2040}});
        const std::string spec =
            std::string("topp:mass=100%,by=") + by + ",budget=" + std::to_string(percent) + "%";
        const Selection selection = Select(cache, spec);
        const LayerQuery query = cache.Query();
        if (percent < 50 && (by[0] == 'r')) {
          EXPECT_EQ(selection.reason, Fallback::kBudget) << spec;
          EXPECT_EQ(selection.summary_bytes, 0u);
          continue;
        }
        ASSERT_FALSE(selection.dense) << spec;
        const double row = RowBytes(*query.kv), bytes = BytesRead(selection, *query.kv);
        const double allowed = percent / 100 * query.n_visible * 3 * row;
        EXPECT_LE(bytes, allowed) << spec;
        // Blocks that the anchor or the window cuts buy less than they are counted for.
        EXPECT_GT(bytes, allowed - 3 * (by[0] == 'r' ? 1 : 3 * 16) * row) << spec;
      }
    }
  }
}

TEST(ToppPolicyTest, FallsBackWithItsReason) {
  TestCache cache(1000, 2, 4, 16);
  EXPECT_EQ(Select(cache, "topp").reason, Fallback::kNone);
  EXPECT_EQ(Select(cache, "topp:budget=6%").reason, Fallback::kBudget);
  EXPECT_EQ(Select(cache, "topp:budget=100%").reason, Fallback::kShort);
  EXPECT_EQ(Select(cache, "topp:dense_layers=0-3").reason, Fallback::kLayer);
  // The summaries are not covered: the rows that are always read, and nothing read to choose.
  const Selection least = Select(cache, "topp:budget=8%");
  EXPECT_FALSE(least.dense);
  EXPECT_EQ(CountRows(KRows(least, 0)), 65);
  EXPECT_EQ(least.summary_bytes, 0u);
  cache.See({{0, 64}});
  EXPECT_EQ(Select(cache, "topp:budget=99%").reason, Fallback::kBudget);
  cache.See({{0, 1000}});
  cache.Key(1, 300)[3] = std::numeric_limits<float>::quiet_NaN();
  cache.index().MarkWritten(300);
  cache.QueryHead(2)[3] = 1.0f;
  for (const char* spec : {"topp", "topp:by=row,budget=75%"}) {
    const Selection selection = Select(cache, spec);
    EXPECT_EQ(selection.reason, Fallback::kNan) << spec;
    EXPECT_TRUE(selection.dense && selection.k_masks.empty());
    EXPECT_EQ(selection.summary_bytes, 0u);
  }
}

TEST(ToppPolicyTest, ThreadsChangeNothing) {
  for (const char* spec : {"topp:mass=70%,budget=60%", "topp:by=row,mass=70%,budget=80%",
                           "topp:by=row_q8,mass=70%,budget=80%"}) {
    RowCache cache({.n_rows = 3000, .n_kv_heads = 3}), other({.n_rows = 3000, .n_kv_heads = 3});
    const Selection one = Select(cache, spec, 1);
    ASSERT_FALSE(one.dense);
    for (int n_threads : {2, 3, 5}) EXPECT_TRUE(Same(one, Select(other, spec, n_threads))) << spec;
  }
}

TEST(ToppPolicyTest, AWarmStepAllocatesNothing) {
  for (const char* spec : {"topp:mass=70%,budget=60%", "topp:by=row,mass=70%,budget=80%",
                           "topp:by=row_q8,mass=70%,budget=80%"}) {
    RowCache cache({.n_rows = 3000, .n_kv_heads = 3});
    ExpectNoAllocations(cache, spec, {3000, 2960}, {2961, 3000});
  }
}

TEST(ToppPolicyTest, SpecsSayWhatIsWrong) {
  EXPECT_EQ(ErrorOf("topp:mass=0%"), "topp: mass=0% is out of range: 0.01% to 100%");
  EXPECT_EQ(ErrorOf("topp:mass=0.9"), "topp: mass: '0.9' is no percentage (such as 5%)");
  EXPECT_THAT(ErrorOf("topp:by=rows"), ::testing::HasSubstr("did you mean 'row'"));
  EXPECT_THAT(ErrorOf("topp:by=row"), ::testing::HasSubstr("give a budget above that"));
  EXPECT_THAT(ErrorOf("topp:tokens=193"), ::testing::HasSubstr("has no key 'tokens'"));
  EXPECT_EQ(SpecOf("topp"), "topp:mass=90%,budget=25%");
  EXPECT_EQ(SpecOf("topp:by=row,budget=75%"), "topp:mass=90%,budget=75%,by=row");
}

}  // namespace
}  // namespace condense
