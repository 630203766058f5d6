// The search and its bounds on figures made by hand; the command whole is app/tune_test.cc's.
#include "lab/tune.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/stats.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(TuneTargetTest, SpellingsRoundTrip) {
  for (const char* text : {"tf=99%", "tf=97.5%", "kl=0.01", "ppl=2%", "ppl=150%"}) {
    const Result<TuneTarget> target = ParseTarget(text);
    ASSERT_TRUE(target.ok()) << target.error();
    EXPECT_EQ(PrintTarget(target.value()), text);
  }
  for (const char* wrong : {"", "tf", "tf=", "tf=99", "tf=100%", "tf=0%", "kl=0", "kl=1%", "ppl=0%",
                            "ppl=2", "kl=nan", "match=99%"}) {
    const Result<TuneTarget> target = ParseTarget(wrong);
    ASSERT_FALSE(target.ok()) << wrong;
    EXPECT_THAT(target.error(), HasSubstr("write tf=99%"));
  }
}

TEST(TuneSearch, FindsTheLeastRungOfEverySize) {
  for (int n : {1, 2, 7, 8}) {
    for (int least = 0; least <= n; ++least) {
      for (int first = 0; first <= n; ++first) {
        RungSearch search(n, first);
        int n_tried = 0;
        for (int rung = search.Next(); rung >= 0; rung = search.Next()) {
          ASSERT_GE(rung, first);
          ASSERT_LT(rung, n);
          search.Tell(rung, rung >= least);
          ASSERT_LE(++n_tried, 5);
        }
        EXPECT_EQ(search.Result(), std::max(first, least)) << n << " " << first;
      }
    }
  }
}

TEST(TuneSearch, KnownRungIsTriedFirst) {
  RungSearch search(8, 3);
  EXPECT_EQ(search.Next(), 3);
  search.Tell(3, true);
  EXPECT_EQ(search.Next(), -1) << "what is below failed on another prefix";
}

TuneSample Sample(int64_t n, int64_t n_match) {
  TuneSample sample;
  sample.n = n;
  sample.n_match = n_match;
  return sample;
}

TEST(TuneBounds, WilsonOneSided) {
  const TuneTarget target;
  // z = 1.6449: with no difference among n the bound is n / (n + z^2).
  const double z = NormalQuantile(0.95);
  EXPECT_NEAR(z, 1.6448536269514722, 1e-12);
  EXPECT_NEAR(NormalQuantile(0.975), kZ95, 1e-12);
  EXPECT_NEAR(BoundOf(target, Sample(268, 268), 0.95, 268), 268 / (268 + z * z), 1e-12);
  EXPECT_TRUE(Meets(target, BoundOf(target, Sample(268, 268), 0.95, 268)));
  EXPECT_FALSE(Meets(target, BoundOf(target, Sample(267, 267), 0.95, 267)));
  EXPECT_FALSE(Meets(target, BoundOf(target, Sample(268, 267), 0.95, 268)));
  // The two-sided interval's lower end is the one-sided bound at 97.5 %.
  EXPECT_NEAR(BoundOf(target, Sample(50, 40), 0.975, 50), WilsonInterval(40, 50).low, 1e-12);
  EXPECT_GT(BoundOf(target, Sample(50, 40), 0.95, 500), BoundOf(target, Sample(50, 40), 0.95, 50));
  EXPECT_EQ(BoundOf(target, Sample(50, 0), 0.95, 50), 0);
}

// A record as compare makes it, of decisions with these values.
PolicyRecord Record(const std::vector<double>& kl, const std::vector<double>& nll) {
  std::vector<TeacherStep> steps;
  for (size_t i = 0; i < kl.size(); ++i) {
    TeacherStep step;
    step.decision = static_cast<int>(i) + 1;
    step.token_sparse = i == 0;
    step.kl = kl[i];
    step.nll_sparse = nll[i];
    steps.push_back(step);
  }
  PolicyRecord record;
  record.teacher = "text";
  record.kv_read_share = 0.1 * static_cast<double>(kl.size());
  record.figures = SummariseTeacher(steps);
  return record;
}

TEST(TuneBounds, PrefixesTogetherAreOneSample) {
  const std::vector<double> kl = {0.1, 0.4, 0.2, 0.9, 0.05}, nll = {0.2, -0.1, 0.3, 0.05, 0.1};
  const TuneSample whole = SampleOf(Record(kl, nll));
  const TuneSample parts[] = {SampleOf(Record({kl[0], kl[1], kl[2]}, {nll[0], nll[1], nll[2]})),
                              SampleOf(Record({kl[3], kl[4]}, {nll[3], nll[4]}))};
  const TuneSample together = Together(parts);
  EXPECT_EQ(whole.n, 5);
  EXPECT_EQ(whole.n_match, 4);
  EXPECT_EQ(together.n, 5);
  EXPECT_EQ(together.n_match, 3) << "each part's first decision differs";
  EXPECT_NEAR(together.kl, whole.kl, 1e-12);
  EXPECT_NEAR(together.kl_squares, whole.kl_squares, 1e-12);
  EXPECT_NEAR(together.nll, whole.nll, 1e-12);
  EXPECT_NEAR(together.nll_squares, whole.nll_squares, 1e-12);
  EXPECT_NEAR(together.read_share, (3 * 0.3 + 2 * 0.2) / 5, 1e-12);
}

TEST(TuneBounds, NormalForTheOthers) {
  const std::vector<double> kl = {0.1, 0.4, 0.2, 0.9}, nll = {0.2, -0.1, 0.3, 0.05};
  const TuneSample sample = SampleOf(Record(kl, nll));
  const TuneTarget by_kl = ParseTarget("kl=1").value(), by_ppl = ParseTarget("ppl=20%").value();
  const double z = NormalQuantile(0.9);
  EXPECT_NEAR(BoundOf(by_kl, sample, 0.9, 4), Mean(kl) + z * StandardError(kl), 1e-12);
  EXPECT_NEAR(BoundOf(by_ppl, sample, 0.9, 4), std::exp(Mean(nll) + z * StandardError(nll)) - 1,
              1e-12);
  EXPECT_TRUE(Meets(by_kl, 1.0));
  EXPECT_FALSE(Meets(by_kl, 1.01));
  const TuneSample one = SampleOf(Record({0.0}, {0.0}));
  EXPECT_FALSE(Meets(by_kl, BoundOf(by_kl, one, 0.9, 1))) << "one decision has no spread";
}

}  // namespace
}  // namespace condense
