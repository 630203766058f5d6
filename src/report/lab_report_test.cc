// The page of lab folders, from made records: how figures are pooled, what is drawn and said of
// them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "report/html.h"
#include "report/lab_charts.h"
#include "report/lab_findings.h"
#include "report/lab_view.h"
#include "report/test_lab.h"

namespace condense::report {
namespace {

using testing::HasSubstr;
using testing::Not;

// A finished cell for each of these, its policy line with these fields.
std::vector<Json> CellsWith(const std::vector<Json>& fields) {
  std::vector<Json> lines;
  for (size_t i = 0; i < fields.size(); ++i)
    for (Json& line : OneCell(fmt::format("c{}", i), "done", 0.9)) {
      if (line["record"] == "policy") line.update(fields[i]);
      lines.push_back(std::move(line));
    }
  return lines;
}

TEST_F(LabReportTest, PoolsOverPrefixesAndItems) {
  const auto shares = PoolOf({1, 0, 1, 1}, /*of_items=*/true);
  EXPECT_EQ(shares->n, 4u);
  EXPECT_EQ(shares->mean, 0.75);
  EXPECT_NEAR(*shares->low, 0.3006, 1e-4) << "Wilson's";
  EXPECT_NEAR(*shares->high, 0.9544, 1e-4);
  const auto means = PoolOf({0.5, 0.7, 0.9}, /*of_items=*/false);
  EXPECT_NEAR(means->mean, 0.7, 1e-12);
  EXPECT_NEAR(*means->low, 0.5, 1e-12) << "the bootstrap of three reaches its least value";
  EXPECT_NEAR(*means->high, 0.9, 1e-12);
  EXPECT_FALSE(PoolOf({0.5}, /*of_items=*/false)->low) << "one value has no interval";
  EXPECT_FALSE(PoolOf({}, /*of_items=*/true));
}

// By what a figure is, not by its values: shares of decisions that happen to be whole are means
// over prefixes, and items found in part are items.
TEST_F(LabReportTest, IntervalsFollowWhatAFigureIs) {
  std::vector<Json> lines;
  for (int i = 0; i < 5; ++i) {
    std::vector<Json> cell = OneCell(fmt::format("c{}", i), "done", 1);
    cell[0].update({{"kv_read_share", 0.1}});
    lines.insert(lines.end(), cell.begin(), cell.end());
    Json item = LabLine("item", "e", fmt::format("i{}", i)), end = cell[1];
    item.update(
        {{"policy", "mean"}, {"task", "t"}, {"kv_read_share", 0.1}, {"score", i < 2 ? 0.5 : 1}});
    end["cell"] = item["cell"];
    lines.push_back(item);
    lines.push_back(end);
  }
  const auto labs = Read({RunLine() + ToLines(lines)});
  int n_seen = 0;
  for (const Chart& chart : MakeLabCharts(MakeLabView(labs[0]))) {
    if (chart.id != "lab-e-match" && chart.id != "lab-e-score") continue;
    ++n_seen;
    const Json& point = chart.spec["datasets"]["points"][0];
    EXPECT_EQ(point["n"], 5);
    EXPECT_NEAR(double{point["low"]}, chart.id == "lab-e-match" ? 1 : 0.376, 1e-3)
        << "the bootstrap's of five ones; Wilson's of 0.8";
  }
  EXPECT_EQ(n_seen, 2);
}

TEST_F(LabReportTest, ChartsHoldTheRecordsFigures) {
  const auto labs = Read({ToLines(MakeLabRecords({}))});
  ASSERT_EQ(labs.size(), 3u);
  const LabView survival = MakeLabView(labs[0]);
  EXPECT_EQ(survival.settings,
            (std::vector<std::string>{"2,048 tokens", "8,192 tokens", "16,384 tokens"}));
  std::vector<std::string> ids;
  const std::vector<Chart> charts = MakeLabCharts(survival);
  for (const Chart& chart : charts) ids.push_back(chart.id);
  EXPECT_THAT(ids,
              testing::ElementsAre("lab-survival-match", "lab-survival-kl", "lab-survival-survival",
                                   "lab-survival-lost", "lab-survival-heads", "lab-survival-depth",
                                   "lab-survival-split"));
  // Four policies, three contexts, two teachers, each the mean of five prefixes.
  const Json& points = charts[0].spec["datasets"]["points"];
  ASSERT_EQ(points.size(), 24u);
  double sum = 0;
  int n = 0;
  for (const Json& line : labs[0].records.policies)
    if (line["policy"] == points[0]["policy"] && line["context"] == 2048 &&
        line["teacher"] == "greedy") {
      sum += double{line["tf_match"]};
      ++n;
    }
  EXPECT_EQ(n, 5);
  EXPECT_NEAR(double{points[0]["value"]}, sum / n, 1e-12);
  EXPECT_EQ(points[0]["n"], 5);
  EXPECT_LE(points[0]["low"], points[0]["value"]);
  EXPECT_GE(points[0]["high"], points[0]["value"]);
  EXPECT_EQ(charts[0].spec["datasets"]["dense"].size(), 6u);
  EXPECT_EQ(charts[0].spec["datasets"]["control"].size(), 6u);
  // Every sparse run and the control, under both teachers.
  EXPECT_EQ(charts[3].spec["datasets"]["points"].size(), 5u * 3 * 5 * 2);
}

TEST_F(LabReportTest, NeedlesAreAPanelAPolicy) {
  const auto labs = Read({ToLines(MakeLabRecords({}))});
  const LabView needle = MakeLabView(labs[1]);
  for (const Chart& chart : MakeLabCharts(needle)) {
    if (chart.panels.empty()) continue;
    ASSERT_EQ(chart.panels.size(), 6u) << "dense, control and the policies";
    for (const Panel& panel : chart.panels) {
      EXPECT_EQ(panel.spec["datasets"]["cells"].size(), 15u);
      EXPECT_THAT(panel.spec["description"].get<std::string>(), HasSubstr(" of 45 found"));
    }
    EXPECT_THAT(chart.panels[0].title, HasSubstr("<code>dense</code>"));
    return;
  }
  FAIL() << "no heat map";
}

TEST_F(LabReportTest, SurvivalCurvesFollowTheRuns) {
  std::vector<Json> fields;
  for (const Json& t_div : {Json(3), Json(3), Json(10), Json(nullptr)})
    fields.push_back({{"t_div", t_div}, {"n_decisions", 127}});
  const auto labs = Read({RunLine() + ToLines(CellsWith(fields))});
  const LabView lab = MakeLabView(labs[0]);
  for (const Chart& chart : MakeLabCharts(lab)) {
    if (chart.id != "lab-e-survival") continue;
    std::vector<std::pair<double, double>> curve;
    for (const Json& point : chart.spec["datasets"]["points"])
      curve.emplace_back(point["decision"], point["share"]);
    EXPECT_THAT(curve, testing::ElementsAre(std::pair(0.0, 1.0), std::pair(3.0, 0.5),
                                            std::pair(10.0, 0.25), std::pair(127.0, 0.25)));
    EXPECT_THAT(chart.table, HasSubstr("1 of 4"));
    const std::string found = LabFindingsHtml(lab);
    EXPECT_THAT(found, HasSubstr("1 of 4 sparse runs wrote dense’s text through all 127"));
    EXPECT_THAT(found, HasSubstr("at decision 3 in the median (3 to 10)"));
    EXPECT_THAT(found, HasSubstr("hold no control"));
    return;
  }
  FAIL() << "no survival chart";
}

// Cells of one policy at these depths, with its speed and dense's.
std::vector<Json> SpeedCells(const std::string& policy,
                             const std::vector<std::tuple<int, int, int>>& speeds) {
  std::vector<Json> lines;
  for (const auto& [context, sparse, dense] : speeds) {
    std::vector<Json> cell = OneCell(fmt::format("{} {}", policy, context), "done", 0.9);
    cell[0].update({{"policy", policy},
                    {"sparse_tokens_per_second", sparse},
                    {"dense_tokens_per_second", dense}});
    cell[1]["parameters"]["context"] = context;
    lines.insert(lines.end(), cell.begin(), cell.end());
  }
  return lines;
}

const Chart& SpeedChart(const std::vector<Chart>& charts) {
  const auto chart = std::find_if(charts.begin(), charts.end(),
                                  [](const Chart& known) { return known.id == "lab-e-depth"; });
  CONDENSE_CHECK(chart != charts.end());
  return *chart;
}

TEST_F(LabReportTest, SpeedsAreFasterFromWhereTheyPass) {
  const auto labs = Read(
      {RunLine() + ToLines(SpeedCells("mean", {{1000, 40, 50}, {2000, 40, 40}, {4000, 38, 30}}))});
  const LabView lab = MakeLabView(labs[0]);
  const std::vector<Chart> charts = MakeLabCharts(lab);
  EXPECT_THAT(SpeedChart(charts).table, HasSubstr(">faster from about 2,000 tokens</td>"));
  EXPECT_THAT(LabFindingsHtml(lab), HasSubstr("A  mean, faster from about 2,000 tokens. "));
  EXPECT_EQ(SpeedChart(charts).spec["datasets"]["crossings"][0]["said"], "A from 2,000");
}

// What is said of all depths is true at every one of them, and one depth is no "every depth".
TEST_F(LabReportTest, SpeedsAreSaidAsTheyWereMeasured) {
  const auto said = [&](const std::vector<std::tuple<int, int, int>>& speeds) {
    const auto labs = Read({RunLine() + ToLines(SpeedCells("mean", speeds))});
    const std::vector<Chart> charts = MakeLabCharts(MakeLabView(labs[0]));
    const std::string& table = SpeedChart(charts).table;
    const size_t at = table.find("Where a policy");
    const size_t cell = at == table.npos ? at : table.rfind("<td class=\"word\">");
    return at == table.npos ? "" : table.substr(cell + 17, table.find("</td>", cell) - cell - 17);
  };
  EXPECT_EQ(said({{1000, 60, 50}, {3000, 30, 40}}), "faster up to about 2,000 tokens");
  EXPECT_EQ(said({{1000, 40, 50}, {3000, 50, 40}, {5000, 30, 40}}),
            "faster from about 2,000 to about 4,000 tokens");
  EXPECT_EQ(said({{1000, 60, 50}, {3000, 40, 50}, {5000, 60, 50}}),
            "faster up to about 2,000 and from about 4,000 tokens");
  EXPECT_EQ(said({{1000, 60, 50}, {3000, 50, 50}, {5000, 60, 50}}),
            "faster up to about 3,000 and from about 3,000 tokens");
  EXPECT_EQ(said({{1000, 60, 50}, {3000, 51, 50}}), "faster at every depth measured");
  EXPECT_EQ(said({{1000, 50, 50}, {3000, 40, 50}}), "no faster at any depth measured");
  EXPECT_EQ(said({{1000, 40, 50}}), "no faster at 1,000 tokens, the one depth measured");
  EXPECT_EQ(said({{1000, 60, 50}}), "faster at 1,000 tokens, the one depth measured");
}

// A row of a budget has no letter of its own; its name may begin with any character.
TEST_F(LabReportTest, MarksOfCrossingsAreWholeCharacters) {
  std::vector<Json> lines = SpeedCells("é:budget=5%", {{1000, 40, 50}, {3000, 50, 40}});
  for (Json& line : lines)
    if (line["record"] == "policy") line["budget"] = 0.05;
  const auto labs = Read({RunLine() + ToLines(lines)});
  const std::vector<Chart> charts = MakeLabCharts(MakeLabView(labs[0]));
  EXPECT_EQ(SpeedChart(charts).spec["datasets"]["crossings"][0]["said"], "é 5 % from 2,000");
}

TEST_F(LabReportTest, LostRunsAreCounted) {
  std::vector<Json> fields;
  for (const auto& [match, ratio] :
       {std::pair(0.6, 3.0), std::pair(0.6, 1.5), std::pair(0.9, 2.5), std::pair(0.7, 2.0)})
    fields.push_back({{"tf_match", match}, {"ppl_ratio", ratio}});
  const auto labs = Read({RunLine() + ToLines(CellsWith(fields))});
  const RunsLost lost = CountLost(MakeLabView(labs[0]), "greedy");
  EXPECT_EQ(lost.n, 4);
  EXPECT_EQ(lost.n_match, 2);
  EXPECT_EQ(lost.n_both, 1);
  EXPECT_EQ(lost.n_ppl_alone, 1);
}

TEST_F(LabReportTest, ThePageSaysWhatWasFoundFirstAndLinksItsRecords) {
  const std::string folder = Folder("a lab: 1", {ToLines(MakeLabRecords({}))});
  const std::string out = Path("report.html");
  const ExperimentNotes notes{
      .name = "survival",
      .title = "How long <sparse> goes on",
      .repeats = "Table 1 of a paper",
      .tables = {
          {"A table", {{"cell", true}, {"published"}}, {{"x", "0 & 60"}}, "below\nand <below>\n"}}};
  ASSERT_TRUE(WriteReport({folder}, out, {notes}).ok());
  const std::string page = Body(ReadAll(out));
  const size_t found = page.find("What was found"), article = page.find("<article");
  ASSERT_NE(found, page.npos);
  EXPECT_LT(found, article);
  EXPECT_THAT(page, HasSubstr("<h3><a href=\"#lab-survival\">How long &lt;sparse&gt; goes on</a>"));
  EXPECT_THAT(page, HasSubstr("Table 1 of a paper"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">x</th><td>0 &amp; 60</td>"));
  EXPECT_THAT(page, HasSubstr("<p class=\"below\">below\nand &lt;below&gt;</p>"));
  EXPECT_THAT(page, HasSubstr("href=\"./a%20lab%3A%201/records-0.jsonl\""));
  EXPECT_THAT(page, HasSubstr("0 of 60</td><td class=\"word\">Made-0.5B, a made GPU</td>"));
  EXPECT_THAT(page, HasSubstr("context 2,048, policy <code>mean:blocks=2</code>"));
  // Ids are unlike.
  std::set<std::string> ids;
  for (size_t at = page.find(" id=\""); at != page.npos; at = page.find(" id=\"", at + 1)) {
    const std::string id = page.substr(at + 5, page.find('"', at + 5) - at - 5);
    EXPECT_TRUE(ids.insert(id).second) << id;
  }
}

TEST_F(LabReportTest, FoldersAndFilesStandOnOnePage) {
  const std::string folder = Folder("lab", {ToLines(MakeLabRecords({.needles = false}))});
  const std::string page = Body(PageOf({Write("compare.jsonl", Lines()), folder}));
  EXPECT_THAT(page, HasSubstr("id=\"lab-survival\""));
  EXPECT_THAT(page, HasSubstr("id=\"run1-kl\""));
  EXPECT_THAT(page, Not(HasSubstr("id=\"lab-needle\"")));
}

}  // namespace
}  // namespace condense::report
