// Figures read back from lines and brought together by setting, row and prefix.
#include "lab/row_figures.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/test_cells.h"

namespace condense {
namespace {

TEST(RowFigures, RowsOfOneSettingStandTogether) {
  std::vector<FinishedCell> cells;
  for (int64_t offset : {0, 500}) {
    cells.push_back(MakeFinished("x", {.policy = "dense", .offset = offset}));
    cells.push_back(MakeFinished("x", {.policy = "mean:blocks=2",
                                       .offset = offset,
                                       .kl_text = offset == 0 ? 0.5 : 0.25,
                                       .match = 0.9,
                                       .t_div = 7,
                                       .own = {{"budget", 0.05}}}));
  }
  MadeRow elsewhere{.policy = "dense"};
  elsewhere.own = {{"context", 4096}};
  cells.push_back(MakeFinished("x", elsewhere));

  const std::string own[] = {"budget"};
  const std::vector<RowSetting> settings = CollectSettings(cells, own);
  ASSERT_EQ(settings.size(), 2u) << "the context sets settings apart, the budget does not";
  ASSERT_EQ(settings[0].rows.size(), 2u);
  EXPECT_EQ(settings[0].Title(), "m.gguf, context 2048");
  const RowRuns* mean = settings[0].Find("mean:blocks=2");
  ASSERT_NE(mean, nullptr);
  EXPECT_EQ(mean->All(KlOf), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(mean->n_survived(), 0);
  EXPECT_EQ(settings[0].Find("dense")->n_survived(), 2);
  EXPECT_EQ(PairedDifferences(*mean, *settings[0].Find("dense"), KlOf),
            (std::vector<double>{0.5, 0.25}));
  const PooledMatch match = PoolMatch(*mean, GreedyOf);
  EXPECT_EQ(match.n, 200);
  EXPECT_EQ(match.n_equal, 180);
  EXPECT_EQ(MatchText(match), "90.0 % (85.1 to 93.4)");
}

TEST(RowFigures, CellsThatDifferInAnyParameterAreNeverOfOneRow) {
  std::vector<FinishedCell> cells;
  const auto add = [&](const Json& own) {
    cells.push_back(MakeFinished("x", {.policy = "mean:tokens=40", .own = own}));
  };
  // Two budgets that come to the same rows; then what sets settings apart.
  for (const double budget : {0.0195, 0.02}) add({{"budget", budget}});
  add({{"budget", 0.02}, {"context", 4096}});
  add({{"budget", 0.02}, {"model", "n.gguf@12345678"}});
  add({{"budget", 0.02}, {"k_type", "q8_0"}});
  add({{"budget", 0.02}, {"tokens", 64}});
  const std::string own[] = {"budget"};
  const std::vector<RowSetting> settings = CollectSettings(cells, own);
  ASSERT_EQ(settings.size(), 5u);
  ASSERT_EQ(settings[0].rows.size(), 2u);
  EXPECT_EQ(settings[0].rows[0].parameters["budget"], 0.0195);
  EXPECT_EQ(settings[0].rows[1].parameters["budget"], 0.02);
  for (const RowSetting& setting : settings) {
    for (const RowRuns& row : setting.rows) EXPECT_EQ(row.runs.size(), 1u) << setting.Title();
  }
}

TEST(RowFigures, FiguresUnderATeacher) {
  FinishedCell both = MakeFinished("x", {.policy = "a", .kl_greedy = 0.25, .kl_text = 0.5});
  FinishedCell short_text = MakeFinished("x", {.policy = "a", .offset = 500, .kl_greedy = 0.75});
  short_text.lines.pop_back();  // the text ended with the prefix
  const std::vector<FinishedCell> cells = {both, short_text};
  const RowSetting setting = CollectSettings(cells)[0];
  const RowRuns& row = *setting.Find("a");
  EXPECT_EQ(row.Under(GreedyOf, &TeacherFigure::kl), (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(row.Under(TextOf, &TeacherFigure::kl), (std::vector<double>{0.5}));
}

TEST(RowFigures, DifferencesAreOfPrefixesThatBothHave) {
  std::vector<FinishedCell> cells;
  for (int64_t offset : {0, 500, 900})
    cells.push_back(
        MakeFinished("x", {.policy = "a", .offset = offset, .kl_text = offset / 1000.0}));
  cells.push_back(MakeFinished("x", {.policy = "b", .offset = 900, .kl_text = 0.5}));
  const RowSetting setting = CollectSettings(cells)[0];
  const std::vector<double> differences =
      PairedDifferences(*setting.Find("a"), *setting.Find("b"), KlOf);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_NEAR(differences[0], 0.4, 1e-12);
}

TEST(RowFigures, ACellWithoutFiguresIsUnmet) {
  FinishedCell cell = MakeFinished("x", {.policy = "fixed at 2%"});
  cell.lines.clear();
  cell.end["state"] = "unmet";
  cell.end["reason"] = "no";
  cell.end["least_budget"] = 0.031;
  const RowSetting setting = CollectSettings({&cell, 1})[0];
  EXPECT_EQ(setting.Find("fixed at 2%"), nullptr);
  ASSERT_EQ(setting.rows[0].unmet.size(), 1u);
  EXPECT_EQ(setting.rows[0].unmet[0].least_budget, 0.031);
  EXPECT_EQ(setting.rows[0].unmet[0].unmet, "no");
}

TEST(RowFigures, TextsOfFigures) {
  EXPECT_EQ(PercentText(0.1234), "12.3 %");
  EXPECT_EQ(PercentText(std::nan("")), "-");
  EXPECT_EQ(ChangeText(-0.003), "-0.3 %");
  EXPECT_EQ(DecisionText(101, 100), ">100");
  EXPECT_EQ(DecisionText(7, 100), "7");
  const std::vector<double> one = {0.5}, none, same = {0.25, 0.25, 0.25};
  EXPECT_EQ(MeanText(one), "0.5") << "one value has no interval";
  EXPECT_EQ(MeanText(none), "-");
  EXPECT_EQ(SignedMeanText(same), "+0.25 (+0.25 to +0.25)");
  EXPECT_EQ(MatchText(PooledMatch{}), "-");
}

}  // namespace
}  // namespace condense
