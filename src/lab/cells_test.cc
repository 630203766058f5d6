// Cells planned from descriptions of policies alone, costs foretold, and maps of rows read.
#include "lab/cells.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/text.h"
#include "lab/costs.h"
#include "lab/row_map.h"

namespace condense {
namespace {

Json Policy(const std::string& name, const std::map<std::string, std::string>& keys) {
  Json policy = {{"name", name}, {"keys", Json::array()}};
  for (const auto& [key, value] : keys)
    policy["keys"].push_back({{"name", key}, {"default", value}});
  return policy;
}

const Json kPolicies = Json::array({
    Policy("adaptive", {{"budget", ""}, {"window", "64"}}),
    Policy("all", {}),
    Policy("gated", {{"budget", ""}, {"gates", ""}}),
    Policy("rows", {{"tokens", "193"}, {"anchor", "1"}}),
    Policy("streaming", {{"window", "64"}, {"sink", "4"}}),
});

// Spells specs as they are; what needs gates is refused.
Result<std::string> Spell(const std::string& spec) {
  if (PolicyName(spec) == "gated") return Error{"gated: give gates=FILE"};
  return spec;
}

Result<CellPlan> Plan(std::vector<std::string> names, std::vector<double> budgets) {
  return PlanCells(kPolicies, {std::move(names), std::move(budgets), 1000}, Spell);
}

TEST(Cells, EveryPolicyAtEveryBudget) {
  const Result<CellPlan> plan = Plan({"all"}, {0.02, 0.1});
  ASSERT_TRUE(plan.ok()) << plan.error();
  std::vector<std::string> specs;
  for (const CompareCell& cell : plan->cells) {
    specs.push_back(cell.policy);
    EXPECT_TRUE(cell.unmet.empty());
    EXPECT_EQ(cell.solves_budget, cell.name == "adaptive");
    EXPECT_EQ(cell.budget.has_value(), cell.name != "all");
  }
  EXPECT_EQ(specs, (std::vector<std::string>{"adaptive:budget=2%", "adaptive:budget=10%", "all",
                                             "rows:tokens=20", "rows:tokens=100",
                                             "streaming:window=16", "streaming:window=96"}));
  ASSERT_EQ(plan->left_out.size(), 1u) << "one reason is said once";
  EXPECT_EQ(plan->left_out[0].spec, "gated");
  EXPECT_EQ(plan->left_out[0].reason, "gated: give gates=FILE");
}

TEST(Cells, BudgetBelowTheRowsThatAreAlwaysRead) {
  const Result<CellPlan> plan = Plan({"streaming"}, {0.004, 0.005});
  ASSERT_TRUE(plan.ok()) << plan.error();
  ASSERT_EQ(plan->cells.size(), 2u);
  EXPECT_NE(plan->cells[0].unmet.find("the least possible is 0.5 %"), std::string::npos)
      << plan->cells[0].unmet;
  EXPECT_DOUBLE_EQ(plan->cells[0].least_budget.value(), 0.005);
  EXPECT_EQ(plan->cells[1].policy, "streaming:window=1");
}

TEST(Cells, UnknownNamesAreNamed) {
  const Result<CellPlan> plan = Plan({"streamign"}, {0.1});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().find("did you mean 'streaming'?"), std::string::npos) << plan.error();
}

TEST(PrintPercent, SharesReadAsTheyWereTyped) {
  for (const char* text : {"7%", "29%", "0.07%", "5.00001%", "14.5%", "100%", "0%"})
    EXPECT_EQ(PrintPercent(ParsePercent(text).value() / 100), text);
}

TEST(Costs, OwnRowsTellMoreThanOthers) {
  CostHistory done;
  done.Add({"slow"}, 1, 30);
  for (int i = 0; i < 2; ++i) done.Add({"fast"}, 1, 3);
  // A fast row begun, then a slow one and one of a kind never seen: between a slow and a fast one.
  EXPECT_DOUBLE_EQ(EstimateLeft(done, {"fast", 1}, 0.1, {"slow", "new"}), 2 + 30 + 16.5);
  // Its own pace counts once it is well under way.
  EXPECT_DOUBLE_EQ(EstimateLeft(done, {"new", 5}, 0.5, {}), 5);
  EXPECT_DOUBLE_EQ(EstimateLeft({}, {"new", 2}, 0.1, {"new"}), 18 + 20);
  EXPECT_TRUE(std::isnan(EstimateLeft({}, {"new", 0}, 0, {"other"})));
  EXPECT_DOUBLE_EQ(EstimateLeft(done, {"fast", 9}, 0.1, {}), 0) << "never less than nothing";
}

TEST(Costs, RowsThatWereNotRunSayNothing) {
  CostHistory done;
  const CellRecord unmet{
      .policy = "mean:budget=1%", .name = "mean", .state = "unmet", .seconds = 0.25};
  for (const bool recorded : {true, false}) AddCost(unmet, recorded, done);
  EXPECT_TRUE(done.empty());
  AddCost({.policy = "mean:budget=8%", .name = "mean", .seconds = 40}, /*recorded=*/true, done);
  AddCost(unmet, /*recorded=*/false, done);
  EXPECT_DOUBLE_EQ(EstimateLeft(done, {"mean", 1}, 0.01, {}), 39);
}

// Five policies of unlike cost, one prefix after another; their true costs are `kTrue`.
struct MadeRun {
  static constexpr int kPolicies = 5;
  static double True(int policy) { return 4.0 * (policy + 1); }
  // Of what is left of `n` prefixes behind `done` cells.
  static double TrueLeft(int done, int n) {
    double left = 0;
    for (int i = done; i < n * kPolicies; ++i) left += True(i % kPolicies);
    return left;
  }
  static CostHistory::Kind Of(int i) { return {std::to_string(i % kPolicies)}; }
  double Left(int done, int n) const {
    double left = 0;
    for (int i = done; i < n * kPolicies; ++i) left += history.Expected(Of(i), 1);
    return left;
  }
  CostHistory history;
};

TEST(CostHistory, WhatABusyMachineRecordedMisleadsForAFewPartsOnly) {
  MadeRun run;
  for (int i = 0; i < 10; ++i) run.history.Record(MadeRun::Of(i), 1, 13.5 * MadeRun::True(i % 5));
  EXPECT_NEAR(run.Left(10, 50) / MadeRun::TrueLeft(10, 50), 13.5, 1e-9) << "nothing else is known";
  for (int i = 10; i < 60; ++i) {
    run.history.Add(MadeRun::Of(i), 1, MadeRun::True(i % 5) * (i % 2 == 0 ? 1.1 : 0.9));
    if (i < 12) continue;
    EXPECT_NEAR(run.Left(i + 1, 50) / MadeRun::TrueLeft(i + 1, 50), 1, 0.15) << i;
  }
}

TEST(CostHistory, FollowsAMachineThatBecomesFreeOrBusy) {
  for (const double factor : {13.5, 1 / 13.5}) {
    MadeRun run;
    for (int i = 0; i < 20; ++i) run.history.Add(MadeRun::Of(i), 1, factor * MadeRun::True(i % 5));
    for (int i = 20; i < 60; ++i) {
      run.history.Add(MadeRun::Of(i), 1, MadeRun::True(i % 5));
      if (i < 29) continue;
      EXPECT_NEAR(run.Left(i + 1, 50) / MadeRun::TrueLeft(i + 1, 50), 1, 0.15) << i;
    }
  }
}

TEST(CostHistory, OneDisturbedPartMovesNothing) {
  MadeRun run;
  for (int i = 0; i < 25; ++i)
    run.history.Add(MadeRun::Of(i), 1, MadeRun::True(i % 5) * (i == 19 ? 50 : 1));
  EXPECT_NEAR(run.Left(25, 50) / MadeRun::TrueLeft(25, 50), 1, 1e-9);
}

TEST(CostHistory, PartsOfTheNearestSizeTell) {
  CostHistory history;
  for (int i = 0; i < 4; ++i) history.Record({"mean"}, 100, 10);
  history.Record({"mean"}, 400, 16);
  history.Record({"mean"}, 400, 0);  // done together with another
  EXPECT_DOUBLE_EQ(history.Expected({"mean"}, 800), 32) << "not as of 100 rows";
  EXPECT_DOUBLE_EQ(history.Expected({"mean"}, 50), 5);
  EXPECT_TRUE(std::isnan(history.Expected({"quest"}, 50)));
}

TEST(RowMapTest, SharesOfWhatWasVisible) {
  // 256 positions: two a column; one decision a line.
  RowMap map(254, 2);
  std::vector<uint16_t> words(16, 0);
  words[0] = 0b0111;    // rows 0, 1, 2
  words[15] = 1 << 14;  // row 254, the first decision's own
  condense_observation seen = {};
  seen.row_words = words.data();
  seen.n_row_words = static_cast<int32_t>(words.size());
  map.Take(seen);
  map.Take(seen);
  map.EndDecision();
  map.EndDecision();  // ran dense: nothing was observed
  const std::vector<std::string> lines = map.Lines();
  ASSERT_EQ(lines.size(), 2u);
  ASSERT_EQ(lines[0].size(), 128u);
  EXPECT_EQ(lines[0][0], '9');
  EXPECT_EQ(lines[0][1], '7') << "half: 9 times its root, rounded up";
  EXPECT_EQ(lines[0][2], '0');
  EXPECT_EQ(lines[0][127], '9') << "row 255 is not there yet";
  EXPECT_EQ(lines[1], std::string(128, '.'));
}

TEST(RowMapTest, IsThinnedOut) {
  const RowMap map(100000, 1000);
  const RowsRecord record = map.Record("p", "greedy");
  EXPECT_LE(record.map.size(), 64u);
  EXPECT_LE(record.map[0].size(), 128u);
  EXPECT_GE(record.positions_a_column * record.map[0].size(), 101000u);
  EXPECT_GE(record.decisions_a_line * record.map.size(), 1000u);
}

TEST(Specs, KeysAreAddedAndBudgetsFound) {
  EXPECT_EQ(WithKeys("mean", "tokens=97"), "mean:tokens=97");
  EXPECT_EQ(WithKeys("mean:tail=on", "tokens=97"), "mean:tail=on,tokens=97");
  EXPECT_EQ(WithKeys("mean", ""), "mean");
  EXPECT_EQ(BudgetKeyOf("mean:tail=on,blocks=2"), "blocks");
  EXPECT_EQ(BudgetKeyOf("mean:budget=5%"), "budget");
  EXPECT_EQ(BudgetKeyOf("mean:tail=on"), "");
}

}  // namespace
}  // namespace condense
