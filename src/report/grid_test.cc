// The page of many policies at equal bytes, from made records.
#include "report/grid.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include "report/charts.h"
#include "report/html.h"
#include "report/records.h"
#include "report/run_view.h"
#include "report/test_page.h"

namespace condense::report {
namespace {

using testing::HasSubstr;

using GridTest = ReportTest;

MadeRun MadeGrid() { return {.policies = {"mean", "quest"}, .budgets = {0.05, 0.2}}; }

TEST_F(GridTest, GridHasALineForEveryPolicyAndBudget) {
  const std::vector<Json> records = MakeRecords(MadeGrid());
  const std::string page = Body(Page(ToLines(records)));
  const size_t begin = page.find("<table class=\"grid\">");
  ASSERT_NE(begin, page.npos);
  const std::string table = page.substr(begin, page.find("</table>", begin) - begin);
  // In order: dense, control, mean at two budgets, quest not run and run.
  std::vector<std::string> lines;
  const std::regex row("<tr data-cell=\"([a-z]+)\">.*");
  for (std::sregex_iterator it(table.begin(), table.end(), row), end; it != end; ++it)
    lines.push_back((*it)[1]);
  EXPECT_EQ(lines,
            (std::vector<std::string>{"dense", "control", "mean", "mean", "quest", "quest"}));
  for (const Json& record : records) {
    if (record["record"] != "policy" || record["teacher"] != "text") continue;
    for (const char* field : {"kv_read_share", "kl_mean", "ppl_ratio", "tf_match"})
      EXPECT_THAT(table, HasSubstr(fmt::format("<data class=\"{}\" value=\"{}\">", field,
                                               RawNumber(record[field].get<double>()))));
  }
  EXPECT_THAT(table, HasSubstr("not run: the budget is made too small: the least possible here is "
                               "7.5 %</td>"));
  EXPECT_THAT(page, HasSubstr("<code>gated</code> was left out: gated: gates=FILE is missing"));
}

TEST_F(GridTest, ParetoFrontHoldsWhatNothingBeats) {
  const RunRecords run = RunOf(Lines(MadeGrid()));
  const std::vector<Chart> charts = MakeCharts(MakeView(run, 0));
  ASSERT_EQ(charts.size(), 6u);
  const Json& data = charts[0].spec["datasets"];
  ASSERT_EQ(data["points"].size(), 3u);
  double best = INFINITY, share = 0;
  for (const Json& point : data["front"]) {
    EXPECT_LT(point["at"], best);
    EXPECT_GT(point["share"], share);
    best = point["at"];
    share = point["share"];
  }
  for (const Json& point : data["points"]) {
    const bool beaten =
        std::any_of(data["points"].begin(), data["points"].end(), [&](const Json& other) {
          return other["share"] <= point["share"] && other["at"] < point["at"];
        });
    const bool on_front =
        std::any_of(data["front"].begin(), data["front"].end(),
                    [&](const Json& at) { return at["label"] == point["label"]; });
    EXPECT_EQ(on_front, !beaten) << point["label"];
  }
  EXPECT_EQ(data["control"].size(), 1u) << "the noise floor";
}

// A policy stands in as many rows as it has budgets: counts of rows are not counts of policies.
TEST_F(GridTest, CountsAreOfRows) {
  const std::string page = Body(Page(Lines(MadeGrid())));
  EXPECT_THAT(page, HasSubstr("Writing freely, 3 of 3 rows departed from dense’s text"));
  EXPECT_THAT(page, HasSubstr("by this measure not to be told from rounding: 3 of 3 rows."));
  const RunRecords run = RunOf(Lines(MadeGrid()));
  for (const Chart& chart : MakeCharts(MakeView(run, 0)))
    EXPECT_EQ(chart.description,
              chart.title + ", 3 rows. The figures are in the table below the chart.");
}

TEST_F(GridTest, HeadsThatRecoveredAllAreInTheTable) {
  std::vector<Json> records = MakeRecords(MadeGrid());
  for (Json& record : records)
    if (record["record"] == "layer" && record["policy"] == "quest:budget=20%")
      record["omitted_mass_heads"] = std::vector<double>(9, 0);
  const RunRecords run = RunOf(ToLines(records));
  for (const Chart& chart : MakeCharts(MakeView(run, 0))) {
    if (chart.id != "run1-heads") continue;
    EXPECT_THAT(chart.table, HasSubstr("<td class=\"word\">quest 20 %</td><td>100 %</td>"
                                       "<td class=\"word\">layer 0, head 0</td>"));
    return;
  }
  FAIL() << "no chart of heads";
}

TEST_F(GridTest, NewKindsOfRecordsAreChecked) {
  const std::string head = Lines({.policies = {}});
  EXPECT_THAT(Refusal(head + R"({"schema":1,"record":"rows","policy":"p","map":"xx"})" + "\n"),
              HasSubstr("field 'map' is not a list of lines"));
  EXPECT_THAT(Refusal(head + R"({"schema":1,"record":"rows","policy":"p"})" + "\n"),
              HasSubstr("without 'map'"));
  EXPECT_THAT(Refusal(head + R"({"schema":1,"record":"cell","policy":"p"})" + "\n"),
              HasSubstr("without 'state'"));
  EXPECT_THAT(
      Refusal(head + R"({"schema":1,"record":"policy","policy":"p","survival":[3]})" + "\n"),
      HasSubstr("field 'survival' is not a list of spans"));
}

}  // namespace
}  // namespace condense::report
