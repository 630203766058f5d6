// The page of lab folders, from made records: what counts as done, how figures are pooled, what is
// said of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "report/html.h"
#include "report/lab_charts.h"
#include "report/lab_cost_charts.h"
#include "report/lab_findings.h"
#include "report/lab_records.h"
#include "report/lab_view.h"
#include "report/test_page.h"
#include "tests/report/made_lab.h"

namespace condense::report {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class LabReportTest : public ReportTest {
 protected:
  // A folder with one file of these lines a rank.
  std::string Folder(const std::string& name, const std::vector<std::string>& files) {
    fs::create_directories(Path(name));
    for (size_t rank = 0; rank < files.size(); ++rank)
      Write(fmt::format("{}/records-{}.jsonl", name, rank), files[rank]);
    return Path(name);
  }
  std::vector<LabRecords> Read(const std::vector<std::string>& files) {
    auto labs = ReadLabFolders({Folder("lab", files)});
    EXPECT_TRUE(labs.ok()) << labs.error();
    return labs.ok() ? labs.value() : std::vector<LabRecords>{};
  }
};

// The end of a cell and one policy line of it.
std::vector<Json> OneCell(const std::string& id, const std::string& state, double match) {
  Json policy = LabLine("policy", "e", id), end = LabLine("cell", "e", id);
  policy.update({{"policy", "mean"}, {"teacher", "greedy"}, {"tf_match", match}});
  end.update({{"policy", "mean"},
              {"state", state},
              {"reason", "made reason"},
              {"parameters", {{"context", 64}, {"offset", id.size()}}}});
  return {policy, end};
}

std::string RunLine() { return ToLines({MakeLabRecords({.contexts = {}}).front()}); }

TEST_F(LabReportTest, OnlyFinishedCellsCount) {
  const std::string open = ToLines({OneCell("killed", "done", 0.1).front()});
  const auto labs = Read({RunLine() + ToLines(OneCell("failed", "failed", 0.2)) + open + RunLine() +
                          ToLines(OneCell("failed-then-done", "failed", 0.3)) +
                          ToLines(OneCell("failed-then-done", "done", 0.9)) + open});
  ASSERT_EQ(labs.size(), 1u);
  EXPECT_EQ(labs[0].n_done, 1);
  ASSERT_EQ(labs[0].records.policies.size(), 1u);
  EXPECT_EQ(labs[0].records.policies[0]["tf_match"], 0.9);
  EXPECT_EQ(labs[0].records.policies[0]["context"], 64) << "the cell's parameters";
  ASSERT_EQ(labs[0].open.size(), 1u);
  EXPECT_EQ(labs[0].open[0].cell, "failed");
  EXPECT_EQ(labs[0].open[0].reason, "made reason");
  EXPECT_THAT(labs[0].records.notes,
              testing::ElementsAre(HasSubstr("“killed” was begun but not finished")));
}

TEST_F(LabReportTest, RanksAndFoldersAreOneExperiment) {
  const std::string a = RunLine() + ToLines(OneCell("a", "done", 0.5)),
                    b = RunLine() + ToLines(OneCell("b", "done", 0.7));
  const auto labs = ReadLabFolders({Folder("one", {a, b}), Folder("two", {b})});
  ASSERT_TRUE(labs.ok()) << labs.error();
  ASSERT_EQ(labs->size(), 1u);
  EXPECT_EQ(labs.value()[0].n_done, 2);
  EXPECT_EQ(labs.value()[0].files.size(), 3u);
  EXPECT_EQ(labs.value()[0].runs.size(), 1u) << "the same program on the same machine";
  EXPECT_THAT(labs.value()[0].records.notes,
              testing::ElementsAre(HasSubstr("“b” is recorded twice")));
}

TEST_F(LabReportTest, RefusesWhatIsNoFolderOfTheLab) {
  const auto refusal = [&](const std::string& folder) {
    const std::string out = Path("out.html");
    const Status status = WriteReport({folder}, out);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(fs::exists(out));
    return status.error();
  };
  fs::create_directories(Path("empty"));
  EXPECT_THAT(refusal(Path("empty")), HasSubstr("holds no records-*.jsonl: name one that"));
  const auto in_folder = [&](const std::string& lines) {
    const std::string folder = Folder("bad", {lines});
    return refusal(folder).substr(folder.size() + 1);
  };
  EXPECT_EQ(in_folder(ToLines(OneCell("a", "done", 1))),
            "records-0.jsonl:1: a 'policy' record before any 'run' record");
  EXPECT_EQ(in_folder(RunLine() + "{\"schema\":1,\"record\":\"step\",\"policy\":\"p\","
                                  "\"teacher\":\"t\",\"decision\":1}\n"),
            "records-0.jsonl:2: a 'step' record without 'experiment': not a line of the lab");
  EXPECT_EQ(in_folder(RunLine() + "{\"schema\":2,\"record\":\"run\"}\n"),
            "records-0.jsonl:2: records of schema 2 are unknown; this program reads schema 1");
  EXPECT_EQ(
      in_folder(RunLine() + "{\"schema\":1,\"record\":\"item\",\"policy\":\"p\",\"task\":\"t\","
                            "\"expected\":\"x\"}\n"),
      "records-0.jsonl:2: field 'expected' is not a list of texts");
}

TEST_F(LabReportTest, PoolsOverPrefixesAndItems) {
  const auto shares = PoolOf({1, 0, 1, 1});
  EXPECT_EQ(shares->n, 4u);
  EXPECT_EQ(shares->mean, 0.75);
  EXPECT_NEAR(*shares->low, 0.3006, 1e-4) << "Wilson's";
  EXPECT_NEAR(*shares->high, 0.9544, 1e-4);
  const auto means = PoolOf({0.5, 0.7, 0.9});
  EXPECT_NEAR(means->mean, 0.7, 1e-12);
  EXPECT_NEAR(*means->low, 0.5, 1e-12) << "the bootstrap of three reaches its least value";
  EXPECT_NEAR(*means->high, 0.9, 1e-12);
  EXPECT_FALSE(PoolOf({0.5})->low) << "one value has no interval";
  EXPECT_FALSE(PoolOf({}));
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
  std::vector<Json> lines;
  int i = 0;
  for (const Json& t_div : {Json(3), Json(3), Json(10), Json(nullptr)}) {
    std::vector<Json> cell = OneCell(fmt::format("c{}", i++), "done", 0.9);
    cell[0].update({{"t_div", t_div}, {"n_decisions", 127}});
    lines.insert(lines.end(), cell.begin(), cell.end());
  }
  const auto labs = Read({RunLine() + ToLines(lines)});
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

TEST_F(LabReportTest, SpeedsCrossBetweenDepths) {
  std::vector<Json> lines;
  for (const auto& [context, sparse, dense] :
       {std::tuple(1000, 40, 50), std::tuple(2000, 40, 40), std::tuple(4000, 38, 30)}) {
    std::vector<Json> cell = OneCell(fmt::format("c{}", context), "done", 0.9);
    cell[0].update({{"sparse_tokens_per_second", sparse}, {"dense_tokens_per_second", dense}});
    cell[1]["parameters"]["context"] = context;
    lines.insert(lines.end(), cell.begin(), cell.end());
  }
  const auto labs = Read({RunLine() + ToLines(lines)});
  const std::vector<Crossing> crossings = Crossings(MakeLabView(labs[0]));
  ASSERT_EQ(crossings.size(), 1u);
  EXPECT_EQ(crossings[0].depth, 2000);
  EXPECT_TRUE(crossings[0].faster);
}

TEST_F(LabReportTest, LostRunsAreCounted) {
  std::vector<Json> lines;
  int i = 0;
  for (const auto& [match, ratio] :
       {std::pair(0.6, 3.0), std::pair(0.6, 1.5), std::pair(0.9, 2.5), std::pair(0.7, 2.0)}) {
    std::vector<Json> cell = OneCell(fmt::format("c{}", i++), "done", match);
    cell[0]["ppl_ratio"] = ratio;
    lines.insert(lines.end(), cell.begin(), cell.end());
  }
  const auto labs = Read({RunLine() + ToLines(lines)});
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
  std::ifstream in(out, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  const std::string page = Body(all.str());
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
