// The report from made records: every figure shown is the record's, texts cannot break the page,
// wrong records are refused by file and line. What a browser makes of the page: tests/report.
#include "report/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "report/assets.h"
#include "report/charts.h"
#include "report/html.h"
#include "report/parting.h"
#include "report/records.h"
#include "report/run_view.h"
#include "report/test_page.h"
#include "tests/report/made_records.h"

namespace condense::report {
namespace {

using testing::HasSubstr;
using testing::Not;

// field → recorded value, of all rows of this policy and teacher in both tables.
std::multimap<std::string, std::string> Figures(const std::string& page, const std::string& policy,
                                                const std::string& teacher) {
  std::multimap<std::string, std::string> figures;
  const std::string head =
      fmt::format("<tr data-policy=\"{}\" data-teacher=\"{}\"", EscapeHtml(policy), teacher);
  const std::regex figure("<data class=\"([a-z0-9_]+)\" value=\"([^\"]+)\">([^<]+)</data>");
  for (size_t at = page.find(head); at != page.npos; at = page.find(head, at + 1)) {
    const std::string row = page.substr(at, page.find("</tr>", at) - at);
    for (std::sregex_iterator it(row.begin(), row.end(), figure), end; it != end; ++it)
      figures.emplace((*it)[1], (*it)[2]);
  }
  return figures;
}

TEST_F(ReportTest, EveryFigureOfTheTablesIsTheRecords) {
  const std::vector<Json> records = MakeRecords({});
  const std::string page = Body(Page(ToLines(records)));
  int n_lines = 0;
  for (const Json& record : records) {
    if (record["record"] != "policy") continue;
    ++n_lines;
    const std::string policy = record["policy"], teacher = record["teacher"];
    const auto figures = Figures(page, policy, teacher);
    for (const auto& [field, value] : figures)
      EXPECT_EQ(std::stod(value), record[field].get<double>())
          << policy << " " << teacher << " " << field;
    // Every figure of quality on the teacher's own row, every figure of cost once a policy.
    for (const char* field : {"n_decisions", "tf_match", "tf_match_low", "tf_match_high",
                              "ppl_ratio", "kl_mean", "kl_median", "kl_p99", "kl_max", "kl_stderr",
                              "same_top", "omitted_mass_mean", "omitted_mass_max"})
      EXPECT_EQ(figures.count(field), 1u) << policy << " " << teacher << " " << field;
    if (teacher != "greedy") continue;
    for (const char* field :
         {"k_bytes", "v_bytes", "summary_bytes", "dense_bytes", "unique_rows_per_kv_head",
          "nominal_rows_per_query_head", "visible_rows", "sparse_tokens_per_second",
          "dense_tokens_per_second", "speed_ratio_median", "speed_ratio_low", "speed_ratio_high",
          "sparse_steps", "dense_steps", "rebuilds"})
      EXPECT_EQ(figures.count(field), 1u) << policy << " " << field;
    EXPECT_EQ(figures.count("kv_read_share"), 2u) << policy;
    EXPECT_EQ(figures.count("t_div"), record["t_div"].is_null() ? 0u : 1u) << policy;
    EXPECT_EQ(figures.count("t_sig"), record["t_sig"].is_null() ? 0u : 1u) << policy;
  }
  EXPECT_EQ(n_lines, 14);
  // dense twice (t_div and t_sig), control's t_sig, the survivor twice, the last policy's t_sig.
  const std::regex survives("class=\"t_(div|sig) survives\"");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), survives), {}), 6);
}

TEST_F(ReportTest, TextsOfTheTablesRoundTheRecords) {
  std::vector<Json> records = MakeRecords({.policies = {"mean:blocks=8"}});
  for (Json& record : records) {
    if (record["record"] != "policy" || record["policy"] != "mean:blocks=8") continue;
    record.update({{"tf_match", 0.9763},
                   {"kv_read_share", 0.02431},
                   {"ppl_ratio", 1.0041},
                   {"kl_mean", 0.012345},
                   {"dense_bytes", 1.25e9},
                   {"speed_ratio_median", 2.414},
                   {"fallbacks", {{"stale_index", 3}, {"no_mask", 0}}}});
  }
  const std::string page = Body(Page(ToLines(records)));
  for (const char* shown : {">97.6 %</data>", ">2.43 %</data>", ">+0.41 %</data>", ">0.0123</data>",
                            ">1.25 GB</data>", ">2.41×</data>", ">stale_index 3</td>"})
    EXPECT_THAT(page, HasSubstr(shown));
}

TEST_F(ReportTest, MissingFiguresAreDashesNotZeros) {
  std::vector<Json> records = MakeRecords({.policies = {"mean:blocks=8"}});
  for (Json& record : records)
    if (record["record"] == "policy")
      for (const char* field : {"kl_mean", "speed_ratio_median", "t_sig", "summary_bytes"})
        record.erase(field);
  const std::string page = Body(Page(ToLines(records)));
  EXPECT_EQ(Figures(page, "mean:blocks=8", "greedy").count("kl_mean"), 0u);
  EXPECT_THAT(page, HasSubstr("title=\"not recorded\">–</span>"));
  EXPECT_THAT(page, Not(HasSubstr("class=\"t_sig survives\"")));
}

TEST_F(ReportTest, FirstParagraphSaysWhatTheRecordsSay) {
  std::vector<Json> records = MakeRecords({.policies = {"mean:blocks=2", "mean:blocks=8"}});
  for (Json& record : records) {
    if (record["record"] != "policy" || record["teacher"] != "greedy") continue;
    if (record["policy"] == "control")
      record.update({{"tf_match", 0.984}, {"tf_match_low", 0.95}, {"t_div", 61}});
    if (record["policy"] == "mean:blocks=2")
      record.update({{"tf_match", 0.7}, {"kv_read_share", 0.013}, {"t_div", 4}});
    if (record["policy"] == "mean:blocks=8")
      record.update({{"tf_match", 0.955}, {"kv_read_share", 0.026}, {"t_div", 19}});
  }
  const std::string page = Page(ToLines(records));
  const std::string found = page.substr(page.find("<p class=\"found\">"));
  std::string words =
      std::regex_replace(found.substr(0, found.find("</section>")), std::regex("<[^>]*>"), "");
  words = std::regex_replace(words, std::regex("&nbsp;"), " ");
  EXPECT_THAT(words, HasSubstr("B mean:blocks=8 kept the most of dense’s decisions: 95.5 %"));
  EXPECT_THAT(words, HasSubstr("reading 2.60 % of the KV bytes"));
  EXPECT_THAT(words, HasSubstr("reads least, A mean:blocks=2, kept 70.0 %"));
  EXPECT_THAT(words, HasSubstr("first difference is A’s at decision 4, the last B’s at 19"));
  EXPECT_THAT(words, HasSubstr("in another order, kept 98.4 %"));
  EXPECT_THAT(words, HasSubstr("departed from dense’s text at decision 61"));
  EXPECT_THAT(words, HasSubstr("by this measure not to be told from rounding: B."));
}

TEST_F(ReportTest, WithoutControlTheNoiseFloorIsSaidToBeUnknown) {
  const std::string page = Body(Page(Lines({.control = false})));
  EXPECT_THAT(page, HasSubstr("hold no control"));
  EXPECT_THAT(page, Not(HasSubstr("data-policy=\"control\"")));
}

TEST_F(ReportTest, MissingTextTeacherIsNoted) {
  const std::string page = Body(Page(Lines({.text_teacher = false})));
  EXPECT_THAT(page, HasSubstr("teacher “text”) is recorded for <code>dense</code>"));
  EXPECT_THAT(page, Not(HasSubstr("data-teacher=\"text\"")));
  EXPECT_THAT(Body(Page(Lines())), Not(HasSubstr("teacher “text”) is recorded")));
}

TEST_F(ReportTest, CutLastLineIsToleratedAndNoted) {
  const std::string lines = Lines({.n_finished = 2});
  EXPECT_THAT(Body(Page(lines)), Not(HasSubstr("is cut")));
  const std::string page = Body(Page(lines + "{\"schema\":1,\"record\":\"pol"));
  const auto n = std::count(lines.begin(), lines.end(), '\n');
  EXPECT_THAT(page, HasSubstr(fmt::format("The last line of the records (line {}) is cut", n + 1)));
  EXPECT_THAT(page, HasSubstr("data-policy=\"mean:blocks=8,window=64\""));
  EXPECT_THAT(page, Not(HasSubstr("mean:blocks=20")));
}

TEST_F(ReportTest, PolicyBegunButNotFinishedIsNoted) {
  std::vector<Json> records = MakeRecords({});
  std::erase_if(records, [](const Json& record) {
    return record["record"] == "policy" && record["policy"] == "quest:blocks=8,window=64";
  });
  EXPECT_THAT(Body(Page(ToLines(records))),
              HasSubstr("&#39;quest:blocks=8,window=64&#39; was begun but not finished"));
}

TEST_F(ReportTest, RefusalsNameFileAndLine) {
  const std::string lines = Lines({.policies = {}});
  const auto at = [&](int line) { return Path("records.jsonl") + ":" + std::to_string(line); };
  const int next = static_cast<int>(std::count(lines.begin(), lines.end(), '\n')) + 1;
  EXPECT_THAT(Refusal(lines + "not json\n"), HasSubstr(at(next) + ": not a JSON object"));
  EXPECT_THAT(Refusal(lines + "[1]\n"), HasSubstr(at(next)));
  EXPECT_THAT(Refusal(lines + "\n\n{\"record\":\"step\"}\n"),
              HasSubstr(at(next + 2) + ": no 'schema'"));
  EXPECT_EQ(Refusal("{\"schema\":2,\"record\":\"run\"}\n"),
            at(1) + ": records of schema 2 are unknown; this program reads schema 1");
  EXPECT_THAT(Refusal("{\"schema\":\"1\",\"record\":\"run\"}\n"),
              HasSubstr("schema \"1\" are unknown"));
  EXPECT_THAT(Refusal("{\"schema\":1}\n"), HasSubstr(at(1) + ": no 'record'"));
  EXPECT_THAT(Refusal("{\"schema\":1,\"record\":\"policy\",\"policy\":\"dense\"}\n"),
              HasSubstr("a 'policy' record before any 'run' record"));
  EXPECT_THAT(Refusal(lines + "{\"schema\":1,\"record\":\"policy\"}\n"),
              HasSubstr("without 'policy'"));
  EXPECT_THAT(
      Refusal(lines + "{\"schema\":1,\"record\":\"policy\",\"policy\":\"p\",\"tf_match\":\"1\"}\n"),
      HasSubstr(at(next) + ": field 'tf_match' is not a number"));
  EXPECT_THAT(Refusal(lines + "{\"schema\":1,\"record\":\"policy\",\"policy\":7}\n"),
              HasSubstr("field 'policy' is not a string"));
  EXPECT_THAT(Refusal(lines + "{\"schema\":1,\"record\":\"prompt\",\"dense_text\":[[256]]}\n"),
              HasSubstr("field 'dense_text' is not a list of pieces"));
  EXPECT_THAT(Refusal(lines + "{\"schema\":1,\"record\":\"run\",\"model\":\"\xFF\"}\n"),
              HasSubstr(at(next)));
  EXPECT_THAT(Refusal(""), HasSubstr("hold no 'run' line"));
}

TEST_F(ReportTest, RefusesFilesThatCannotBeReadOrWritten) {
  const std::string none = Path("none.jsonl");
  EXPECT_THAT(WriteReport({none}, Path("out.html")).error(),
              HasSubstr("cannot read records '" + none));
  EXPECT_FALSE(WriteReport({}, Path("out.html")).ok());
  EXPECT_FALSE(WriteReport({folder_}, Path("out.html")).ok());
  const std::string good = Write("records.jsonl", Lines());
  EXPECT_THAT(WriteReport({good}, Path("no/such/out.html")).error(),
              HasSubstr("cannot write report"));
}

// Whatever a caller checked before: records are not written over, be they of this page or others.
TEST_F(ReportTest, RefusesToWriteOverRecords) {
  const std::string records = Write("records.jsonl", Lines()), bytes = ReadAll(records);
  const std::string other = Write("other.jsonl", Lines({.model = "other"}));
  std::filesystem::create_directories(Path("lab"));
  const std::string lab = Write("lab/records-0.jsonl", Lines());
  std::filesystem::create_symlink(records, Path("link.html"));
  for (const std::string& out : {records, other, lab, Path("link.html")}) {
    EXPECT_THAT(WriteReport({records}, out).error(),
                HasSubstr("would be written over the records"));
    EXPECT_EQ(ReadAll(records), bytes);
  }
  EXPECT_EQ(ReadAll(lab), bytes);
  EXPECT_THAT(WriteReport({Path("lab")}, Path("lab/records-1.jsonl")).error(),
              HasSubstr("would lie among the records of '" + Path("lab") + "'"));
  EXPECT_FALSE(std::filesystem::exists(Path("lab/records-1.jsonl")));
}

TEST_F(ReportTest, AFailedReportLeavesTheOldOne) {
  const std::string out = Write("report.html", "old");
  EXPECT_FALSE(WriteReport({Write("bad.jsonl", "{}\n")}, out).ok());
  EXPECT_EQ(ReadAll(out), "old");
}

TEST_F(ReportTest, SeveralRunsAreSeveralArticles) {
  const std::string page =
      PageOf({Write("a.jsonl", Lines()), Write("b.jsonl", Lines({.model = "other"}))});
  EXPECT_THAT(page, HasSubstr("id=\"run1\""));
  EXPECT_THAT(page, HasSubstr("id=\"run2\""));
  EXPECT_THAT(page, HasSubstr("id=\"run2-kl\""));
  EXPECT_THAT(Body(page), HasSubstr("<b class=\"model\">other</b>"));
}

TEST_F(ReportTest, OddTextsCannotBreakThePage) {
  const std::string page =
      Page(Lines({.model = "a</title><script>b" + std::string(300, 'x'), .odd_text = true}));
  // The page's own three: specs, bundle, script.
  const std::regex script("<script[ >]");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), script), {}), 3);
  EXPECT_THAT(page, HasSubstr("a&lt;/title&gt;&lt;script&gt;b"));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
  const std::string body = Body(page);
  // The two halves of the emoji meet again; the broken bytes and the controls are shown.
  EXPECT_THAT(body, HasSubstr("\xF0\x9F\xA7\xAA"));
  for (const char* shown : {"\\x01", "\\x1b", "\\x00", "\\xff", "\\xc3", "\\u{202e}"})
    EXPECT_THAT(body, HasSubstr(std::string("<span class=\"esc\">") + shown)) << shown;
  EXPECT_TRUE(std::none_of(body.begin(), body.end(),
                           [](unsigned char c) { return c < 0x20 && c != '\n' && c != '\t'; }));
}

TEST_F(ReportTest, AsksNothingOfANetwork) {
  const std::string page = Page(Lines());
  EXPECT_THAT(page, HasSubstr("content=\"default-src 'none'"));
  const std::string body = Body(page);
  for (const char* what : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_THAT(body, Not(HasSubstr(what)));
}

TEST_F(ReportTest, EmbedsTheWholeBundle) {
  const std::string_view bundle = Asset("vega_bundle.js");
  EXPECT_GT(bundle.size(), 500'000u);
  EXPECT_NE(bundle.find("window.vegaEmbed"), bundle.npos);
  EXPECT_NE(Page(Lines()).find(EscapeScript(bundle)), std::string::npos);
}

TEST_F(ReportTest, ChartsCarryTheRecordsFigures) {
  const std::vector<Json> records = MakeRecords({});
  const RunRecords run = RunOf(ToLines(records));
  const RunView view = MakeView(run, 0);
  const std::vector<Chart> charts = MakeCharts(view);
  std::vector<std::string> ids;
  for (const Chart& chart : charts) {
    ids.push_back(chart.id);
    EXPECT_EQ(chart.spec["description"], chart.description);
    EXPECT_THAT(chart.table, HasSubstr("<table>"));
  }
  EXPECT_THAT(ids, testing::ElementsAre("run1-t-div", "run1-match", "run1-kl", "run1-mass",
                                        "run1-speed", "run1-margins"));
  const auto record = [&](const Json& point) -> const Json& {
    for (const Json& line : records)
      if (line["record"] == "policy" && line["policy"] == point["policy"] &&
          (!point.contains("teacher") || TeacherName(line["teacher"]) == point["teacher"]))
        return line;
    static const Json none;
    return none;
  };
  for (const Json& point : charts[0].spec["datasets"]["points"]) {
    EXPECT_EQ(point["t_div"], record(point)["t_div"]);
    EXPECT_EQ(point["t_div_at"],
              record(point)["t_div"].is_null() ? Json(127.0) : record(point)["t_div"]);
  }
  EXPECT_EQ(charts[1].spec["datasets"]["points"].size(), 10u);
  for (const Json& point : charts[1].spec["datasets"]["points"]) {
    EXPECT_EQ(point["value"], record(point)["tf_match"]);
    EXPECT_EQ(point["low"], record(point)["tf_match_low"]);
    EXPECT_EQ(point["share"], record(point)["kv_read_share"]);
  }
  for (const Json& point : charts[2].spec["datasets"]["points"]) {
    EXPECT_EQ(point["value"], record(point)["kl_mean"]);
    EXPECT_GT(point["low"], 0);
  }
  EXPECT_EQ(charts[3].spec["datasets"]["points"].size(), 5u * 2 * 30);
  EXPECT_EQ(charts[4].spec["datasets"]["points"].size(), 5u);
  EXPECT_EQ(charts[5].spec["datasets"]["points"].size(), 6u * 2 * 127);
}

TEST_F(ReportTest, TheFourCasesAreCounted) {
  std::vector<Json> records =
      MakeRecords({.policies = {"mean:blocks=8"}, .text_teacher = false, .control = false});
  std::erase_if(records, [](const Json& record) { return record["record"] == "step"; });
  int decision = 0;
  const auto add = [&](double margin, double delta, bool equal, int times) {
    for (int i = 0; i < times; ++i)
      records.push_back({{"schema", 1},
                         {"record", "step"},
                         {"policy", "mean:blocks=8"},
                         {"teacher", "greedy"},
                         {"decision", ++decision},
                         {"margin_dense", margin},
                         {"delta", delta},
                         {"token_dense", 1},
                         {"token_sparse", equal ? 1 : 2}});
  };
  add(1.0, 0.49, true, 4);
  add(1.0, 0.5, true, 3);  // the condition is strict
  add(1.0, 2.0, false, 2);
  add(1.0, 0.1, false, 1);
  EXPECT_THAT(Body(Page(ToLines(records))), HasSubstr("<td>4</td><td>1</td><td>3</td><td>2</td>"));
}

// Marks of the article of one policy, dense then sparse.
std::vector<std::string> Marks(const std::string& html) {
  std::vector<std::string> marks;
  const std::regex mark("<mark><span class=\"aloud\">first difference: </span>([^]*?)</mark>");
  for (std::sregex_iterator it(html.begin(), html.end(), mark), end; it != end; ++it)
    marks.push_back((*it)[1]);
  return marks;
}

std::string PartingOf(Json prompt, Json policy) {
  RunRecords records{.file = "", .run = {{"model", "m"}}, .prompt = std::move(prompt)};
  policy.update({{"policy", "mean"}, {"teacher", "greedy"}, {"n_decisions", 3}});
  records.policies.push_back(std::move(policy));
  return PartingHtml(MakeView(records, 0));
}

TEST(PartingTest, MarksTheFirstDifferingTokenWhateverTheListsBeginWith) {
  const Json dense = {
      {"first_token", 9}, {"dense_text", {"S", "a", " b", "c"}}, {"dense_tokens", {9, 1, 2, 3}}};
  // With the shared token in both lists, and in the dense list alone.
  const Json both = {{"t_div", 2},
                     {"autonomous_text", {"S", "a", "\n", "c"}},
                     {"autonomous_tokens", {9, 1, 5, 3}}};
  const Json one = {
      {"t_div", 2}, {"autonomous_text", {"a", "\n", "c"}}, {"autonomous_tokens", {1, 5, 3}}};
  for (const Json& policy : {both, one}) {
    const std::string html = PartingOf(dense, policy);
    EXPECT_THAT(Marks(html), testing::ElementsAre("<span class=\"sp\"> </span>b",
                                                  "<span class=\"nl\"></span>\n"));
    EXPECT_THAT(html, HasSubstr("First difference at decision <strong>2</strong> of 3."));
    EXPECT_THAT(html, Not(HasSubstr("disagree")));
  }
}

TEST(PartingTest, SaysWhenTokensAndTDivDisagree) {
  const Json dense = {{"dense_text", {"a", "b", "c"}}, {"dense_tokens", {1, 2, 3}}};
  const Json same = {
      {"t_div", nullptr}, {"autonomous_text", {"a", "b", "c"}}, {"autonomous_tokens", {1, 2, 3}}};
  EXPECT_THAT(PartingOf(dense, same), HasSubstr("The same text through all 3 decisions."));
  EXPECT_TRUE(Marks(PartingOf(dense, same)).empty());
  EXPECT_THAT(PartingOf(dense, same), Not(HasSubstr("disagree")));
  Json wrong = same;
  wrong["t_div"] = 2;
  EXPECT_THAT(PartingOf(dense, wrong), HasSubstr("disagree"));
  wrong = {
      {"t_div", nullptr}, {"autonomous_text", {"a", "x", "c"}}, {"autonomous_tokens", {1, 7, 3}}};
  EXPECT_THAT(PartingOf(dense, wrong), HasSubstr("disagree"));
}

TEST(HtmlTest, EscapesWhatHtmlAndPeopleCannotTake) {
  EXPECT_EQ(EscapeHtml("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(EscapeHtml("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80"),
            "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80");
  // A lone lead byte, an overlong form, a surrogate, beyond U+10FFFF, cut at the end.
  EXPECT_EQ(EscapeHtml("\xC3|"), "\\xc3|");
  EXPECT_EQ(EscapeHtml("\xC0\xAF"), "\\xc0\\xaf");
  EXPECT_EQ(EscapeHtml("\xED\xA0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(EscapeHtml("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(EscapeHtml("\xE2\x82"), "\\xe2\\x82");
  EXPECT_EQ(EscapeHtml(std::string("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(EscapeHtml("\xE2\x80\xAE"), "\\u{202e}");
}

TEST(HtmlTest, SplitsWhatWouldEndAScript) {
  EXPECT_EQ(EscapeScript("'</script>'"), "'<\\/script>'");
  EXPECT_EQ(EscapeScript("'</SCRipt>'"), "'<\\/SCRipt>'");
  EXPECT_EQ(EscapeScript("'<!--'"), "'<\\!--'");
  EXPECT_EQ(EscapeScript("a</b"), "a</b");
  EXPECT_EQ(EscapeJsonInScript("[\"</script><!--\"]"), "[\"\\u003c/script>\\u003c!--\"]");
  EXPECT_EQ(Json::parse(EscapeJsonInScript("[\"</script>\"]")), Json::parse("[\"</script>\"]"));
}

TEST(HtmlTest, ShowsTheSpacesThatWouldBeLost) {
  EXPECT_EQ(VisibleText("a b", Spaces::kLost), "a b");
  EXPECT_EQ(VisibleText("a b", Spaces::kAll), "a<span class=\"sp\"> </span>b");
  EXPECT_EQ(VisibleText("a  b", Spaces::kLost),
            "a<span class=\"sp\"> </span><span class=\"sp\"> </span>b");
  EXPECT_EQ(VisibleText("a \n", Spaces::kLost),
            "a<span class=\"sp\"> </span><span class=\"nl\"></span>\n");
  EXPECT_EQ(VisibleText("\t", Spaces::kLost), "<span class=\"tab\">\t</span>");
}

TEST(HtmlTest, RoundsWithoutClaimingMore) {
  EXPECT_EQ(FormatPercent(1), "100 %");
  EXPECT_EQ(FormatPercent(0.99999), "> 99.9 %");
  EXPECT_EQ(FormatPercent(0.9763), "97.6 %");
  EXPECT_EQ(FormatNumber(9e-4), "0.000900");
  EXPECT_EQ(FormatPercent(0), "0 %");
  EXPECT_EQ(FormatSignedPercent(-0.003), "−0.30 %");
  EXPECT_EQ(FormatSignedPercent(98.77), "+9,877 %");
  EXPECT_EQ(FormatNumber(0.012345), "0.0123");
  EXPECT_EQ(FormatNumber(46.125), "46.1");
  EXPECT_EQ(FormatNumber(1234.5), "1,234");
  EXPECT_EQ(FormatNumber(0), "0");
  EXPECT_EQ(FormatCount(7639), "7,639");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1.25e9), "1.25 GB");
  EXPECT_EQ(std::stod(RawNumber(0.1 + 0.2)), 0.1 + 0.2);
}

}  // namespace
}  // namespace condense::report
