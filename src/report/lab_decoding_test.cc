// Charts of `exact` and `guard` from made lines: what is pooled, what is shown beside what.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "report/lab_charts.h"
#include "report/lab_findings.h"
#include "report/lab_view.h"
#include "report/test_lab.h"

namespace condense::report {
namespace {

using testing::HasSubstr;

class LabDecodingTest : public LabReportTest {
 protected:
  // Charts of one experiment from lines of its cells.
  std::vector<Chart> ChartsOf(const std::vector<Json>& lines) {
    labs_ = Read({RunLine() + ToLines(lines)});
    EXPECT_EQ(labs_.size(), 1u);
    return MakeLabCharts(MakeLabView(labs_.at(0)));
  }

  static const Chart* Find(const std::vector<Chart>& charts, const std::string& id) {
    const auto found = std::find_if(charts.begin(), charts.end(),
                                    [&](const Chart& chart) { return chart.id == id; });
    return found == charts.end() ? nullptr : &*found;
  }

  // A cell of one line.
  static void Add(std::vector<Json>& lines, const char* experiment, Json line, Json parameters) {
    const std::string cell = fmt::format("c{}", lines.size());
    const char* kind = line["record"].get_ref<const std::string&>().c_str();
    Json marked = LabLine(kind, experiment, cell), end = LabLine("cell", experiment, cell);
    marked.update(line);
    parameters.update({{"context", 2000}, {"model", "m.gguf@1"}});
    end.update({{"policy", line["policy"]}, {"state", "done"}, {"parameters", parameters}});
    lines.push_back(marked);
    lines.push_back(end);
  }

  std::vector<LabRecords> labs_;
};

TEST_F(LabDecodingTest, DraftsByPlaceAndBySpeed) {
  std::vector<Json> lines;
  const auto add = [&](const char* policy, const char* kind, const char* length,
                       std::vector<int> drafted, std::vector<int> accepted, double ratio) {
    Json parameters{{"kind", kind}, {"text", "t.txt@0"}};
    if (std::string(length) != "") parameters["draft_tokens"] = length;
    Add(lines, "exact",
        {{"record", "exact"},
         {"policy", policy},
         {"identical", true},
         {"drafted_at", drafted},
         {"accepted_at", accepted},
         {"speed_ratio_median", ratio}},
        parameters);
  };
  add("dense", "prose", "", {}, {}, 1);
  add("lookup", "prose", "1", {50}, {40}, 1.1);
  add("lookup", "prose", "3", {10, 10, 8}, {9, 5, 2}, 1.2);
  add("lookup", "prose", "3", {10, 10, 2}, {1, 1, 0}, 0.8);
  add("lookup", "code", "3", {4, 4, 4}, {4, 4, 4}, 2);
  add("mean:blocks=2", "prose", "auto", {}, {}, 0.97);
  const std::vector<Chart> charts = ChartsOf(lines);

  const Chart* places = Find(charts, "lab-exact-places");
  ASSERT_NE(places, nullptr);
  std::vector<double> prose;
  for (const Json& point : places->spec["datasets"]["points"])
    if (point["series"] == "prose") prose.push_back(point["share"]);
  EXPECT_THAT(prose, testing::ElementsAre(0.5, 0.3, 0.2)) << "the longest drafts, both prefixes";

  const Chart* speed = Find(charts, "lab-exact-drafts");
  ASSERT_NE(speed, nullptr);
  const Json& points = speed->spec["datasets"]["points"];
  ASSERT_EQ(points.size(), 4u) << "dense is the line they are held against";
  EXPECT_EQ(points[1]["length"], "3");
  EXPECT_EQ(points[1]["ratio"], 1.0) << "the median of two";
  EXPECT_EQ(points[1]["low"], 0.8);
  EXPECT_EQ(points[1]["high"], 1.2);
  EXPECT_EQ(points[3]["length"], "auto");
  EXPECT_THAT(speed->table, HasSubstr("auto"));
  EXPECT_EQ(Find(charts, "lab-exact-risks"), nullptr);
  const std::string found = LabFindingsHtml(MakeLabView(labs_[0]));
  EXPECT_THAT(found, HasSubstr("All 5 runs from drafts wrote dense’s text"));
  EXPECT_THAT(found, HasSubstr("on code (2,000 tokens), drafts of 3: 2.00 times dense"));
  EXPECT_THAT(found, HasSubstr("on prose (2,000 tokens), drafts of 1: 1.10 times"));
}

TEST_F(LabDecodingTest, RisksBesideTheirPromise) {
  std::vector<Json> lines;
  for (const auto& [text, n_differ] : {std::pair("a.txt@0", 0), std::pair("a.txt@0", 4)}) {
    Add(lines, "guard",
        {{"record", "guard"},
         {"policy", "guard 5% of mean:blocks=2"},
         {"teacher", "greedy"},
         {"risk", 0.05},
         {"certified", true},
         {"n_decisions", 50},
         {"n_differ", n_differ},
         {"n_fallbacks", 10}},
        {{"text", text}});
  }
  const std::vector<Chart> charts = ChartsOf(lines);
  const Chart* risks = Find(charts, "lab-guard-risks");
  ASSERT_NE(risks, nullptr);
  const Json& points = risks->spec["datasets"]["points"];
  ASSERT_EQ(points.size(), 1u) << "prefixes of one text together";
  EXPECT_EQ(points[0]["series"], "a.txt, fed dense-greedy");
  EXPECT_EQ(points[0]["n"], 100);
  EXPECT_EQ(points[0]["seen"], 0.04);
  EXPECT_NEAR(points[0]["low"].get<double>(), 0.0110, 1e-4) << "Clopper-Pearson's";
  EXPECT_NEAR(points[0]["high"].get<double>(), 0.0993, 1e-4);
  EXPECT_EQ(points[0]["promised"], 0.05);
  EXPECT_EQ(points[0]["redone"], 0.2);
  EXPECT_EQ(Find(charts, "lab-guard-places"), nullptr);
  EXPECT_THAT(LabFindingsHtml(MakeLabView(labs_[0])),
              HasSubstr("Of 1 certified guards, counted by text and teacher, 0 took more tokens"));
}

}  // namespace
}  // namespace condense::report
