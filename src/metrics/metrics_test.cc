// Every metric against numbers worked out by hand (the working is in the comments).
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "metrics/bootstrap.h"
#include "metrics/divergence.h"
#include "metrics/logits.h"
#include "metrics/stats.h"
#include "metrics/teacher.h"

namespace condense {
namespace {

TEST(Stats, MeanAndStandardError) {
  const std::vector<double> sample = {2, 4, 4, 6};
  EXPECT_DOUBLE_EQ(Mean(sample), 4);
  // Squares 4 + 0 + 0 + 4 = 8; variance 8/3; standard error sqrt(8/3/4) = sqrt(2/3).
  EXPECT_DOUBLE_EQ(StandardError(sample), std::sqrt(2.0 / 3.0));
  EXPECT_DOUBLE_EQ(Maximum(sample), 6);
  EXPECT_TRUE(std::isnan(Mean({})));
  EXPECT_TRUE(std::isnan(Maximum({})));
  const std::vector<double> one = {1};
  EXPECT_TRUE(std::isnan(StandardError(one)));
}

TEST(Stats, BootstrapOfTheMeanIsWideAsTheNormalIntervalOfIt) {
  std::vector<double> sample;
  for (int i = 0; i < 100; ++i) sample.push_back(i);
  const Interval interval = BootstrapInterval(sample, Mean);
  // Deviation of 0 … 99 with n: sqrt((100² - 1) / 12) = 28.866; of the mean 2.8866; 1.96 of it
  // 5.658. The quantiles of 2,000 draws are good to about 3 % of that.
  EXPECT_NEAR(interval.low, 49.5 - 5.658, 0.5);
  EXPECT_NEAR(interval.high, 49.5 + 5.658, 0.5);
  EXPECT_EQ(BootstrapInterval(sample, Mean).low, interval.low) << "drawn alike every time";
  const std::vector<double> one = {7};
  EXPECT_EQ(BootstrapInterval(one, Mean).low, 7);
  EXPECT_EQ(BootstrapInterval(one, Mean).high, 7);
  EXPECT_TRUE(std::isnan(BootstrapInterval({}, Mean).low));
}

TEST(Stats, QuantilesInterpolate) {
  const std::vector<double> sample = {40, 10, 30, 20};
  // Positions in the sorted list: 0.25 * 3 = 0.75 -> 17.5; 1.5 -> 25; 2.25 -> 32.5.
  const Quartiles quartiles = QuartilesOf(sample);
  EXPECT_DOUBLE_EQ(quartiles.low, 17.5);
  EXPECT_DOUBLE_EQ(quartiles.median, 25);
  EXPECT_DOUBLE_EQ(quartiles.high, 32.5);
  EXPECT_DOUBLE_EQ(Quantile(sample, 0), 10);
  EXPECT_DOUBLE_EQ(Quantile(sample, 1), 40);
  const std::vector<double> one = {7};
  EXPECT_DOUBLE_EQ(Quantile(one, 0.99), 7);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
}

TEST(Stats, BinomialUpperBound) {
  // Clopper-Pearson's upper limits in Newcombe 1998 (Statistics in Medicine 17, 857), table I.
  EXPECT_NEAR(BinomialUpperBound(81, 263, 0.975), 0.3676, 5e-5);
  EXPECT_NEAR(BinomialUpperBound(15, 148, 0.975), 0.1617, 5e-5);
  EXPECT_NEAR(BinomialUpperBound(0, 20, 0.975), 0.1684, 5e-5);
  EXPECT_NEAR(BinomialUpperBound(1, 29, 0.975), 0.1776, 5e-5);
  // Without a success: 1 - 0.05^(1/n).
  EXPECT_NEAR(BinomialUpperBound(0, 299, 0.95), 1 - std::pow(0.05, 1.0 / 299), 1e-9);
  EXPECT_EQ(BinomialUpperBound(0, 0, 0.95), 1);
  EXPECT_EQ(BinomialUpperBound(7, 7, 0.95), 1);
  EXPECT_LT(BinomialUpperBound(400, 100000, 0.95), 0.0044);
}

TEST(Stats, WilsonInterval) {
  // Wilson's interval of 81 in 263, Newcombe 1998 (Statistics in Medicine 17, 857), table I:
  // 0.2553 to 0.3662; of 15 in 148: 0.0624 to 0.1605; of 0 in 20: 0 to 0.1611; of 1 in 29: 0.0061
  // to 0.1718.
  const auto expect = [](int k, int n, double low, double high) {
    const Interval interval = WilsonInterval(k, n);
    EXPECT_NEAR(interval.low, low, 5e-5) << k << " of " << n;
    EXPECT_NEAR(interval.high, high, 5e-5) << k << " of " << n;
  };
  expect(81, 263, 0.2553, 0.3662);
  expect(15, 148, 0.0624, 0.1605);
  expect(0, 20, 0, 0.1611);
  expect(1, 29, 0.0061, 0.1718);
  EXPECT_EQ(WilsonInterval(20, 20).high, 1.0);
  EXPECT_NEAR(WilsonInterval(20, 20).low, 1 - 0.1611, 5e-5);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0.0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1.0);
}

TEST(Logits, TopTwo) {
  const std::vector<float> rising = {-1, 0.5f, 3, 2};
  EXPECT_EQ(FindTopTwo(rising).token, 2);
  EXPECT_DOUBLE_EQ(FindTopTwo(rising).margin, 1);
  const std::vector<float> falling = {5, 3, 4.5f, 1};
  EXPECT_EQ(FindTopTwo(falling).token, 0);
  EXPECT_DOUBLE_EQ(FindTopTwo(falling).margin, 0.5);
  const std::vector<float> tie = {1, 7, 7, 0};
  EXPECT_EQ(FindTopTwo(tie).token, 1) << "the lowest id among equals";
  EXPECT_DOUBLE_EQ(FindTopTwo(tie).margin, 0);
}

TEST(Logits, LikelihoodOfKnownDistribution) {
  // exp = 1, 2, 5 of a sum of 8.
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  EXPECT_NEAR(LogSumExp(logits), std::log(8.0), 1e-6);
  const std::vector<double> weights = SoftmaxWeights(logits);
  ASSERT_EQ(weights.size(), logits.size());
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_NEAR(weights[i], std::exp(logits[i]) / 8, 1e-7);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 1), std::log(4.0), 1e-6);
  // Large logits must not overflow; a constant shift changes nothing.
  const std::vector<float> shifted = {1000, 1000, 1000, 1000};
  EXPECT_NEAR(NegativeLogLikelihood(shifted, 3), std::log(4.0), 1e-12);
}

TEST(Logits, KlOfKnownDistributions) {
  // p = (1/2, 1/2), q = (1/4, 3/4): KL = 1/2 log 2 + 1/2 log(2/3) = 1/2 log(4/3).
  const std::vector<float> p = {0, 0};
  const std::vector<float> q = {0, std::log(3.0f)};
  const LogitComparison comparison = CompareLogits(p, q, 1);
  EXPECT_NEAR(comparison.kl, 0.5 * std::log(4.0 / 3.0), 1e-7);
  EXPECT_NEAR(comparison.nll_dense, std::log(2.0), 1e-12);
  EXPECT_NEAR(comparison.nll_sparse, std::log(4.0 / 3.0), 1e-7);
  EXPECT_NEAR(comparison.delta, std::log(3.0), 1e-7);
  EXPECT_EQ(comparison.dense.token, 0);
  EXPECT_EQ(comparison.sparse.token, 1);
  EXPECT_EQ(CompareLogits(q, q, 0).kl, 0);
}

TEST(Logits, KlIsNeverNegativeAndZeroUnderAShift) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> dense(300), sparse(300), moved(300);
    for (int i = 0; i < 300; ++i) {
      dense[i] = normal(random);
      sparse[i] = dense[i] + 0.01f * normal(random);
      moved[i] = dense[i] + 4;
    }
    EXPECT_GE(CompareLogits(dense, sparse, 0).kl, 0);
    EXPECT_NEAR(CompareLogits(dense, moved, 0).kl, 0, 1e-6);
  }
}

TEST(Divergence, FirstDifferenceCountsFromOne) {
  const std::vector<int> dense = {5, 6, 7, 8};
  EXPECT_EQ(FirstDifference(dense, dense), std::nullopt);
  EXPECT_EQ(FirstDifference(dense, std::vector<int>{9, 6, 7, 8}), 1);
  EXPECT_EQ(FirstDifference(dense, std::vector<int>{5, 6, 0, 0}), 3);
  EXPECT_EQ(FirstDifference({}, {}), std::nullopt);
}

TEST(Divergence, SignificantDifferenceSkipsSmallMargins) {
  const std::vector<int> dense = {5, 6, 7, 8};
  const std::vector<int> sparse = {5, 0, 7, 0};
  EXPECT_EQ(FirstSignificantDifference(dense, sparse, std::vector<double>{9, 0.2, 9, 0.25}), 4);
  EXPECT_EQ(FirstSignificantDifference(dense, sparse, std::vector<double>{9, 0.25, 9, 9}), 2);
  EXPECT_EQ(FirstSignificantDifference(dense, sparse, std::vector<double>{9, 0.1, 9, 0.24}),
            std::nullopt);
  EXPECT_EQ(FirstSignificantDifference(dense, sparse, std::vector<double>{9, 0.1, 9, 0.24}, 0.05),
            2);
}

TEST(Divergence, SpansWithoutADifference) {
  // Decisions 3 and 8 differ.
  const std::vector<int> dense = {1, 2, 3, 4, 5, 6, 7, 8}, sparse = {1, 2, 0, 4, 5, 6, 7, 0};
  const std::vector<SpanSurvival> spans = SurvivalOfSpans(dense, sparse);
  ASSERT_EQ(spans.size(), 4u);
  const int lengths[] = {1, 2, 4, 8}, n_spans[] = {8, 7, 5, 1}, kept[] = {6, 4, 1, 0};
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].length, lengths[i]);
    EXPECT_EQ(spans[i].n_spans, n_spans[i]);
    EXPECT_DOUBLE_EQ(spans[i].share, static_cast<double>(kept[i]) / n_spans[i]);
  }
  EXPECT_TRUE(SurvivalOfSpans({}, {}).empty());
  EXPECT_EQ(SurvivalOfSpans(std::vector<int>(5, 1), std::vector<int>(5, 1)).back().length, 5);
}

TEST(Divergence, FourMarginCases) {
  const std::vector<MarginCase> decisions = {
      {.margin = 1.0, .delta = 0.49, .equal = true}, {.margin = 1.0, .delta = 0.5, .equal = true},
      {.margin = 1.0, .delta = 2.0, .equal = false}, {.margin = 0.0, .delta = 0.0, .equal = true},
      {.margin = 3.0, .delta = 1.0, .equal = false},
  };
  const MarginCases cases = CountMarginCases(decisions);
  EXPECT_EQ(cases.held_equal, 1);
  EXPECT_EQ(cases.open_equal, 2) << "the condition is strict";
  EXPECT_EQ(cases.open_different, 1);
  EXPECT_EQ(cases.held_different, 1);
}

// delta < gamma / 2 suffices for an equal greedy token: no random pair may contradict it.
TEST(Divergence, MarginConditionSufficesOnRandomLogits) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1);
  std::vector<MarginCase> decisions;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> dense(20), sparse(20);
    const float noise = 0.5f * std::abs(normal(random));
    for (int i = 0; i < 20; ++i) {
      dense[i] = normal(random);
      sparse[i] = dense[i] + noise * normal(random);
    }
    const LogitComparison c = CompareLogits(dense, sparse, 0);
    decisions.push_back({c.dense.margin, c.delta, c.dense.token == c.sparse.token});
  }
  const MarginCases cases = CountMarginCases(decisions);
  EXPECT_EQ(cases.held_different, 0);
  EXPECT_GT(cases.held_equal, 50);
  EXPECT_GT(cases.open_equal, 50);
  EXPECT_GT(cases.open_different, 50);
}

TEST(Teacher, FiguresOfThreeDecisions) {
  const std::vector<TeacherStep> steps = {
      {.decision = 1,
       .token_target = 4,
       .token_dense = 4,
       .token_sparse = 4,
       .nll_dense = std::log(2.0),
       .nll_sparse = std::log(4.0),
       .kl = 0.1,
       .margin_dense = 2,
       .delta = 0.5,
       .omitted_mass = 0.1,
       .omitted_mass_max = 0.4},
      {.decision = 2,
       .token_target = 5,
       .token_dense = 5,
       .token_sparse = 6,
       .nll_dense = std::log(4.0),
       .nll_sparse = std::log(8.0),
       .kl = 0.4,
       .margin_dense = 0.3,
       .delta = 0.5,
       .omitted_mass = 0.2,
       .omitted_mass_max = 0.3},
      {.decision = 3,
       .token_target = 7,
       .token_dense = 7,
       .token_sparse = 7,
       .nll_dense = std::log(8.0),
       .nll_sparse = std::log(16.0),
       .kl = 0.1,
       .margin_dense = 0.1,
       .delta = 0.5,
       .omitted_mass = 0.6,
       .omitted_mass_max = 0.9},
  };
  const TeacherFigures figures = SummariseTeacher(steps);
  EXPECT_EQ(figures.n_decisions, 3);
  EXPECT_DOUBLE_EQ(figures.match, 2.0 / 3.0);
  EXPECT_NEAR(figures.ppl_dense, 4, 1e-12);   // (2 * 4 * 8)^(1/3)
  EXPECT_NEAR(figures.ppl_sparse, 8, 1e-12);  // (4 * 8 * 16)^(1/3)
  EXPECT_NEAR(figures.ppl_ratio, 2, 1e-12);
  EXPECT_NEAR(figures.kl_mean, 0.2, 1e-15);
  EXPECT_DOUBLE_EQ(figures.kl_median, 0.1);
  EXPECT_NEAR(figures.kl_p99, 0.394, 1e-12);  // position 1.98: 0.1 + 0.98 * 0.3
  EXPECT_DOUBLE_EQ(figures.kl_max, 0.4);
  EXPECT_NEAR(figures.kl_stderr, 0.1, 1e-15);  // squares 0.01 + 0.04 + 0.01; sqrt(0.06 / 2 / 3)
  // Probabilities fall by 1/4, 1/8, 1/16.
  EXPECT_NEAR(figures.delta_p_mean, -(0.25 + 0.125 + 0.0625) / 3, 1e-12);
  EXPECT_NEAR(figures.delta_p_rms, std::sqrt((0.0625 + 0.015625 + 0.00390625) / 3), 1e-12);
  EXPECT_NEAR(figures.omitted_mass_mean, 0.3, 1e-15);
  EXPECT_DOUBLE_EQ(figures.omitted_mass_max, 0.9);
  EXPECT_DOUBLE_EQ(figures.largest_margin_at_difference, 0.3);
  EXPECT_EQ(figures.margins.held_equal, 1);
  EXPECT_EQ(figures.margins.open_different, 1);
  EXPECT_EQ(figures.margins.open_equal, 1);
}

TEST(Teacher, IntervalOfThePerplexityRatio) {
  // Changes of 0.1, 0.2, 0.3 nats: mean 0.2, deviation 0.1.
  std::vector<TeacherStep> steps(3);
  for (int i = 0; i < 3; ++i) steps[i].nll_sparse = 0.1 * (i + 1);
  const TeacherFigures figures = SummariseTeacher(steps);
  const double half = 1.959963984540054 * 0.1 / std::sqrt(3.0);
  EXPECT_NEAR(figures.ppl_interval.low, std::exp(0.2 - half), 1e-12);
  EXPECT_NEAR(figures.ppl_interval.high, std::exp(0.2 + half), 1e-12);
}

TEST(Teacher, LayerBound) {
  // 2 * 0.1 * 15 = 3 and 2 * 0.5 * 4 = 4: sqrt(9 + 16).
  const std::vector<HeadOmission> heads = {{0.1, 15}, {0.5, 4}};
  EXPECT_DOUBLE_EQ(LayerBound(heads), 5);
  EXPECT_EQ(LayerBound({}), 0);
}

}  // namespace
}  // namespace condense
