// The rule of `condense calibrate` on decisions made by hand, and its files; the measurement whole
// is app/calibrate_test.cc's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/calibrate.h"
#include "lab/guard_file.h"
#include "lab/guard_rule.h"
#include "metrics/stats.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

// `n` decisions with margins 0.01, 0.02, …, of which those below `unsure` differ alternately.
GuardSample Sample(const std::string& teacher, int n, double unsure) {
  GuardSample sample{teacher, {}};
  for (int i = 1; i <= n; ++i) {
    const double margin = 0.01 * i;
    sample.decisions.push_back(
        {.margin = margin, .equal = margin > unsure || i % 2 == 0, .mass_mean = 0.1});
  }
  return sample;
}

TEST(GuardRule, HowManyMayDiffer) {
  // Without a difference 1 % takes ln 0.05 / ln 0.99 = 298.07 decisions.
  EXPECT_EQ(LeastDecisions(0.01, 0.95), 299);
  EXPECT_EQ(MostThatMayDiffer(0.01, 298, 0.95), -1);
  EXPECT_EQ(MostThatMayDiffer(0.01, 299, 0.95), 0);
  const int64_t most = MostThatMayDiffer(0.01, 1530, 0.95);
  EXPECT_LE(BinomialUpperBound(most, 1530, 0.95), 0.01);
  EXPECT_GT(BinomialUpperBound(most + 1, 1530, 0.95), 0.01);
}

TEST(GuardRule, CandidatesDescendAndKeepTheWorstTeacher) {
  const std::vector<GuardSample> samples = {Sample("greedy", 1000, 0.4), Sample("text", 1000, 2)};
  const std::vector<double> thresholds = ChooseCandidates(samples, 0.05, 2000, 0.95);
  ASSERT_FALSE(thresholds.empty());
  for (size_t i = 0; i < thresholds.size(); ++i) {
    if (i > 0) EXPECT_LT(thresholds[i], thresholds[i - 1]);
    for (const GuardSample& sample : samples) {
      int n_differ = 0;
      for (const GuardDecision& d : sample.decisions)
        n_differ += !d.equal && d.margin >= thresholds[i];
      EXPECT_LE(n_differ, 50);
    }
  }
  // Nothing ever differs: every step may be taken.
  const std::vector<GuardSample> equal = {Sample("text", 100, 0)};
  EXPECT_EQ(ChooseCandidates(equal, 0.05, 200, 0.95), std::vector<double>{0});
}

TEST(GuardRule, CertifiesInTheOrderFixedBeforehand) {
  const auto tally = [](double bound) { return GuardTally{"text", 100, 0, 0, bound}; };
  using Tallies = std::vector<std::vector<GuardTally>>;
  EXPECT_EQ(Certified(Tallies{{tally(0.004)}, {tally(0.009)}, {tally(0.02)}}, 0.01), 1u);
  EXPECT_EQ(Certified(Tallies{{tally(0.02)}, {tally(0.009)}}, 0.01), std::nullopt)
      << "one that held behind one that failed is luck";
  EXPECT_EQ(Certified(Tallies{{tally(0.004), tally(0.02)}}, 0.01), std::nullopt)
      << "every teacher's must hold";
  EXPECT_EQ(Certified(Tallies{}, 0.01), std::nullopt);
}

TEST(GuardRule, RiskAtAFallbackRate) {
  const std::vector<GuardSample> samples = {Sample("text", 100, 0.2)};
  // Ten differ, at margins 0.01, 0.03, … 0.19: the ten least hold five of them.
  EXPECT_DOUBLE_EQ(RiskAtFallbackRate(samples, GuardFeature::kMargin, 0), 0.10);
  EXPECT_DOUBLE_EQ(RiskAtFallbackRate(samples, GuardFeature::kMargin, 0.1), 0.05);
  EXPECT_DOUBLE_EQ(RiskAtFallbackRate(samples, GuardFeature::kMargin, 0.2), 0);
  EXPECT_DOUBLE_EQ(RiskAtFallbackRate(samples, GuardFeature::kMarginOverMass, 0.2), 0)
      << "one mass for all: the margin's order";
}

TEST(Calibrate, SumsAndRecords) {
  SearchedPrefix searched{{Sample("greedy", 3, 0.02), Sample("text", 2, 0)}};
  const Result<SearchedPrefix> back = SearchedFromJson(Json::parse(ToJson(searched).dump()));
  ASSERT_TRUE(back.ok()) << back.error();
  const std::vector<SearchedPrefix> twice = {searched, back.value()};
  const std::vector<GuardSample> together = SamplesTogether(twice);
  ASSERT_EQ(together.size(), 2u);
  EXPECT_EQ(together[0].decisions.size(), 6u);
  EXPECT_EQ(together[0].decisions[3].margin, searched.samples[0].decisions[0].margin);
  EXPECT_EQ(together[1].teacher, "text");

  TriedPrefix tried;
  tried.tallies = {{{"greedy", 100, 1, 10, 1}, {"text", 100, 2, 20, 1}}};
  tried.seconds = {0.5};
  tried.dense_seconds = 1;
  const Result<TriedPrefix> kept = TriedFromJson(Json::parse(ToJson(tried).dump()));
  ASSERT_TRUE(kept.ok()) << kept.error();
  const auto tallies = TalliesTogether(std::vector<TriedPrefix>{tried, kept.value()}, 0.95);
  ASSERT_EQ(tallies.size(), 1u);
  EXPECT_EQ(tallies[0][1].n_differ, 4);
  EXPECT_EQ(tallies[0][1].n_fallbacks, 40);
  EXPECT_EQ(tallies[0][1].bound, BinomialUpperBound(4, 200, 0.95));
  EXPECT_FALSE(TriedFromJson(Json::parse("{\"candidates\":3}")).ok());
}

GuardCalibration Made() {
  GuardCalibration made;
  made.program = "condense calibrate";
  made.setting = {"m.gguf", "abc", "mean:blocks=8", "f16", "f16", false, 600, 900};
  made.threshold = 0.413;
  made.risk = 0.01;
  made.confidence = 0.95;
  made.certified = {{"greedy", 1000, 2, 40, 0.0063}, {"text", 1000, 3, 60, 0.0077}};
  made.speed_over_dense = 1.5;
  made.text = {"a \"quoted\" path.txt", "b"};
  made.text_sha256 = {"11", "22"};
  return made;
}

TEST(GuardFile, RoundTrips) {
  const std::string text = PrintCalibration(Made());
  const Result<GuardCalibration> back = ParseCalibration(text, "x.toml");
  ASSERT_TRUE(back.ok()) << back.error() << "\n" << text;
  EXPECT_EQ(PrintCalibration(back.value()), text);
  EXPECT_EQ(back->threshold, 0.413);
  EXPECT_EQ(back->setting.policy, "mean:blocks=8");
  EXPECT_EQ(back->certified[1].n_differ, 3);
  EXPECT_EQ(back->text, Made().text);
  EXPECT_DOUBLE_EQ(back->bound(), 0.0077);
  EXPECT_DOUBLE_EQ(back->fallback_rate(), 0.05);
}

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = PrintCalibration(Made());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << "\n" << text;
  return text.replace(at, from.size(), to);
}

TEST(GuardFile, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& text) {
    return ParseCalibration(text, "x.toml").error();
  };
  EXPECT_THAT(error("threshold = "), HasSubstr("'x.toml', line 1"));
  EXPECT_THAT(error(""), HasSubstr("has no key 'program'"));
  EXPECT_THAT(error(Changed("threshold =", "treshold =")), HasSubstr("did you mean 'threshold'?"));
  EXPECT_THAT(error(Changed("risk = 0.01", "risk = 'low'")), HasSubstr("'risk'"));
  EXPECT_THAT(error(Changed("risk = 0.01", "risk = 0.001")), HasSubstr("certifies nothing"));
  EXPECT_THAT(error(Changed("to = 900", "to = 9e99")), HasSubstr("'to'"));
  EXPECT_THAT(error(Changed("to = 900", "to = 500")), HasSubstr("no range"));
  EXPECT_THAT(error(Changed("threshold = 0.413", "threshold = -1")), HasSubstr("'threshold'"));
  EXPECT_THAT(ReadCalibration("/nowhere.toml").error(), HasSubstr("/nowhere.toml"));
}

TEST(GuardFile, RefusesOtherSettings) {
  const GuardCalibration made = Made();
  const auto refusal = [&](auto change) {
    GuardSetting use = made.setting;
    use.from = 650;
    use.to = 700;
    change(use);
    return CheckSetting(made, use, "x.toml").error();
  };
  EXPECT_EQ(refusal([](GuardSetting&) {}), "");
  EXPECT_THAT(refusal([](GuardSetting& s) { s.model_sha256 = "def"; }), HasSubstr("the model"));
  EXPECT_THAT(refusal([](GuardSetting& s) { s.policy = "quest:blocks=8"; }),
              HasSubstr("quest:blocks=8 is asked for"));
  EXPECT_THAT(refusal([](GuardSetting& s) { s.k_type = "q8_0"; }), HasSubstr("-ctk f16"));
  EXPECT_THAT(refusal([](GuardSetting& s) { s.rewrite = true; }), HasSubstr("--rewrite off"));
  EXPECT_THAT(refusal([](GuardSetting& s) { s.from = 599; }), HasSubstr("longer prompt"));
  EXPECT_THAT(refusal([](GuardSetting& s) { s.to = 901; }), HasSubstr("shorter prompt"));
}

}  // namespace
}  // namespace condense
