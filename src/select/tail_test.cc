// The tail against plain loops: the pseudo-rows of blocks left out as one softmax state a query
// head, its bytes, its budget, and CompKV's choice.
#include "select/tail.h"

#include <cmath>

#include "gtest/gtest.h"
#include "select/slow_frame.h"
#include "select/test_cache.h"
#include "select/test_choice.h"
#include "select/test_rows.h"

namespace condense {
namespace {

constexpr int kRows = 640, kKvHeads = 2, kHeads = 6, kGroup = 3, kDim = 32;

// Sum and weighted value of the pseudo-rows, scaled by exp(-max).
void ExpectTail(TestCache& cache, const SlowFrame& frame, const Selection& selection, bool variance,
                double softcap) {
  const SlowMoments slow(cache, kDim);
  ASSERT_TRUE(selection.has_tail);
  for (int h = 0; h < kHeads; ++h) {
    const int g = h / kGroup;
    const std::span<const uint16_t> set = KRows(selection, selection.per_query_head ? h : g);
    double sum = 0;
    std::vector<double> o(kDim, 0.0);
    for (int b : frame.candidates()) {
      int n = 0;
      for (int row = 16 * b; row < 16 * b + 16; ++row) n += !HasRow(set, row);
      if (n == 0) continue;
      double z = Capped(slow.Mean(h, g, b), softcap);
      if (variance) z += slow.Variance(h, g, b, 4) / 2;
      const double p = n * std::exp(z - selection.tail.max[h]);
      sum += p;
      for (int c = 0; c < kDim; ++c) {
        double value = 0;
        for (int row = 16 * b; row < 16 * b + 16; ++row) value += cache.Value(g, row)[c] / 16;
        o[c] += p * value;
      }
    }
    EXPECT_NEAR(selection.tail.sum[h], sum, 1e-4 * sum);
    EXPECT_GE(selection.tail.sum[h], 1.0f);  // the greatest pseudo-row's is 1
    for (int c = 0; c < kDim; ++c)
      EXPECT_NEAR(selection.tail.o[h * kDim + c], o[c], 1e-4 * (sum + 1));
  }
}

TEST(Tail, IsTheSoftmaxStateOfTheBlocksLeftOut) {
  for (const std::string spec : {"mean:blocks=4", "mean:blocks=0", "random:blocks=4",
                                 "mean:blocks=4,share=per_head", "oracle:blocks=3,share=shared"}) {
    for (const bool variance : {false, true}) {
      for (const float softcap : {0.0f, 5.0f}) {
        TestCache cache(kRows, kKvHeads, kHeads, kDim);
        cache.See({{0, 613}});
        LayerQuery query = cache.Query();
        query.softcap = softcap;
        const std::unique_ptr<Policy> policy =
            Make(spec + (variance ? ",tail=var" : ",tail=on") + ",anchor=3");
        Selection selection, two;
        policy->Select(query, selection);
        ASSERT_FALSE(selection.dense) << spec;
        ExpectTail(cache, SlowFrame(613, 3, 64), selection, variance, softcap);
        query.n_threads = 2;
        policy->Select(query, two);
        EXPECT_TRUE(Same(selection, two));
      }
    }
  }
}

// A choice that is kept: the tail follows the window and the query.
TEST(Tail, IsAnewAtEveryStepOfAReusedChoice) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  const std::unique_ptr<Policy> policy = Make("mean:blocks=4,tail=on,reuse=8");
  Selection selection;
  for (int n = 600; n < 606; ++n) {
    cache.See({{0, n}});
    cache.SetQuery(n);
    policy->Select(cache.Query(), selection);
    ExpectTail(cache, SlowFrame(n, 1, 64), selection, false, 0);
  }
}

TEST(Tail, BytesCountEverySummaryOnce) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  cache.See({{0, 600}});
  const uint64_t all = 34 * kKvHeads, left = (34 - 3) * kKvHeads;  // blocks 0 … 33
  EXPECT_EQ(Select(cache, "mean:blocks=3,tail=on").summary_bytes, (all + left) * 2 * kDim);
  EXPECT_EQ(Select(cache, "random:blocks=3,tail=on").summary_bytes, left * 2 * 2 * kDim);
  EXPECT_EQ(Select(cache, "mean:blocks=0,tail=on").summary_bytes, all * 2 * 2 * kDim);
  EXPECT_EQ(Select(cache, "mean:blocks=3,tail=var").summary_bytes,
            all * 2 * kDim + left * 2 * (kDim + 4));
  EXPECT_EQ(Select(cache, "mass:blocks=3,tail=var").summary_bytes,
            all * 2 * (kDim + 4) + left * 2 * kDim);
}

// Rows of 32 f32, K and V: 256 bytes a row and head.
TEST(Tail, ByteBudgetsBuyIt) {
  TestCache cache(1024, kKvHeads, kHeads, kDim);
  cache.See({{0, 960}});
  const double dense = 960 * 256 * kKvHeads;
  for (const std::string policy : {"mean", "random", "compkv", "mass", "oracle"}) {
    for (const std::string tail : {"on", "var"}) {
      for (double share : {0.08, 0.1, 0.12, 0.15, 0.2, 0.4}) {
        const Selection selection = Select(
            cache, policy + ":tail=" + tail + ",budget=" + std::to_string(100 * share) + "%");
        ASSERT_FALSE(selection.dense);
        uint64_t rows = 0;
        for (int g = 0; g < kKvHeads; ++g) rows += CountRows(KRows(selection, g));
        double bytes = static_cast<double>(rows) * 256 + selection.summary_bytes;
        if (policy == "oracle") bytes -= 128.0 * (960 * kKvHeads - rows);
        EXPECT_LE(bytes, share * dense) << policy << tail << share;
        if (share > 0.15) {
          EXPECT_TRUE(selection.has_tail);
          EXPECT_GT(bytes, share * dense - 2 * 16 * 256 * kKvHeads) << policy << tail << share;
        }
      }
    }
  }
  // Anchor, window and nothing else.
  const Selection selection = Select(cache, "mean:tail=on,budget=7%");
  EXPECT_FALSE(selection.has_tail);
  EXPECT_EQ(selection.summary_bytes, 0u);
}

TEST(Tail, ALogitThatIsNotFiniteMakesTheStepDense) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  cache.QueryHead(4)[0] = std::nanf("");
  EXPECT_EQ(Select(cache, "random:tail=on").reason, Fallback::kNan);
  cache.QueryHead(4)[0] = INFINITY;
  const Selection selection = Select(cache, "random:tail=on");
  EXPECT_EQ(selection.reason, Fallback::kNan);
  EXPECT_FALSE(selection.has_tail);
}

TEST(Tail, AWarmStepAllocatesNothing) {
  for (const char* spec : {"mean:tail=on", "mean:tail=var,share=per_head", "compkv"}) {
    TestCache cache(2048, 3, 9, 64);
    ExpectNoAllocations(cache, spec, {2048}, {2048, 2049});
  }
}

TEST(Compkv, ChoosesWhatTheSlowFormChooses) {
  for (const int groups : {1, 4, kDim}) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      TestCache cache(kRows, kKvHeads, kHeads, kDim, seed);
      const int n = kRows - static_cast<int>(seed) * 7;
      cache.See({{0, n}});
      const SlowMoments slow(cache, kDim);
      const SlowFrame frame(n, 16, 32);
      const Selection selection =
          Select(cache, "compkv:blocks=5,groups=" +
                            (groups == kDim ? std::string("d") : std::to_string(groups)));
      ASSERT_FALSE(selection.dense);
      for (int g = 0; g < kKvHeads; ++g) {
        std::map<int, double> scores;
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
          std::map<int, double> mass;
          double sum = 0;
          for (int b : frame.candidates()) {
            mass[b] =
                frame.Gain(b) * std::exp(slow.Mean(h, g, b) + slow.Variance(h, g, b, groups) / 2);
            sum += mass[b];
          }
          for (int b : frame.candidates())
            scores[b] += mass[b] / sum * slow.Variance(h, g, b, groups);
        }
        frame.ExpectBest(scores, 5, KRows(selection, g));
      }
      ExpectTail(cache, frame, selection, false, 0);
    }
  }
}

TEST(Compkv, ReadsTheFirstBlockAndTheNewestTwo) {
  TestCache cache(kRows, kKvHeads, kHeads, kDim);
  const Selection selection = Select(cache, "compkv:blocks=0");
  EXPECT_EQ(ToRanges(KRows(selection, 0)), (std::vector<RowRange>{{0, 16}, {608, 640}}));
  EXPECT_EQ(SpecOf("compkv"), "compkv:blocks=8");
  EXPECT_EQ(SpecOf("compkv:tail=off"), "compkv:blocks=8,tail=off");
  EXPECT_EQ(ErrorOf("mean:tail=yes"), "mean: tail=yes is unknown (off, on, var)");
}

}  // namespace
}  // namespace condense
