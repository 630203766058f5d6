// Reading lab folders, from made records: what counts as done, whose lines and runs stand beside
// it.
#include "report/lab_records.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "report/test_lab.h"

namespace condense::report {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// Lines of one cell of `experiment` in which a decision is kept so often.
std::string CellOf(const std::string& experiment, const std::string& id, double match) {
  std::vector<Json> lines = OneCell(id, "done", match);
  for (Json& line : lines) line["experiment"] = experiment;
  return ToLines(lines);
}

std::string RunOfModel(const std::string& model) {
  Json run = Json::parse(RunLine());
  run.update({{"model", model}, {"model_sha256", model}});
  return ToLines({run});
}

// The part of the page that is of this experiment.
std::string Article(const std::string& page, const std::string& experiment) {
  const size_t at = page.find("<article class=\"run\" id=\"lab-" + experiment + "\"");
  return at == page.npos ? "" : page.substr(at, page.find("</article>", at) - at);
}

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

// The nearest `run` line before a cell in its own file, not all that came before it.
TEST_F(LabReportTest, FiguresNameTheRunThatWroteThem) {
  const std::string folder = Folder("lab", {RunOfModel("first.gguf") + CellOf("e", "a", 0.5) +
                                                RunOfModel("second.gguf") + CellOf("f", "a", 0.5),
                                            RunOfModel("third.gguf") + CellOf("e", "b", 0.5)});
  const std::string page = Body(PageOf({folder}));
  const std::string e = Article(page, "e"), f = Article(page, "f");
  EXPECT_THAT(e, HasSubstr("<code>first.gguf</code>"));
  EXPECT_THAT(e, HasSubstr("<code>third.gguf</code>"));
  EXPECT_THAT(e, Not(HasSubstr("second.gguf")));
  EXPECT_THAT(f, HasSubstr("<code>second.gguf</code>"));
  EXPECT_THAT(f, Not(HasSubstr("first.gguf")));
  // Each beside the file that its cells lie in.
  const size_t third = e.find("<code>third.gguf</code>");
  EXPECT_THAT(e.substr(third), HasSubstr("<code>" + folder + "/records-1.jsonl</code>"));
  EXPECT_THAT(e.substr(0, third), HasSubstr("<code>" + folder + "/records-0.jsonl</code>"));
}

TEST_F(LabReportTest, AFolderWithoutFinishedCellsNamesItsRecords) {
  Json plan = LabLine("plan", "e", "");
  plan.erase("cell");
  plan["cells"] = {"a", "b"};
  const std::string page = Body(PageOf({Folder("lab", {RunLine() + ToLines({plan})})}));
  EXPECT_THAT(page, Not(HasSubstr("0 cells; .")));
  EXPECT_THAT(page, HasSubstr("<p>No finished cell; <a href=\"./lab/records-0.jsonl\">"));
  EXPECT_THAT(page, HasSubstr("0 of 2 planned cells are done."));
  EXPECT_THAT(page, Not(HasSubstr("Programs, models and machines")));
}

// One rule, in a folder and over folders: the last that did not fail.
TEST_F(LabReportTest, OfACellRecordedTwiceTheLastCounts) {
  const auto expect_last = [&](const std::vector<std::string>& folders) {
    const auto labs = ReadLabFolders(folders);
    ASSERT_TRUE(labs.ok()) << labs.error();
    const LabRecords& lab = labs.value()[0];
    EXPECT_EQ(lab.n_done, 1);
    ASSERT_EQ(lab.records.policies.size(), 1u);
    EXPECT_EQ(lab.records.policies[0]["tf_match"], 0.7);
    EXPECT_THAT(lab.records.notes,
                testing::ElementsAre("Cell “a” is recorded twice; the last is shown."));
    EXPECT_TRUE(lab.open.empty());
  };
  const std::string first = ToLines(OneCell("a", "done", 0.5)),
                    last = ToLines(OneCell("a", "done", 0.7)),
                    failed = ToLines(OneCell("a", "failed", 0.1));
  expect_last({Folder("lines", {RunLine() + first + last + failed})});
  expect_last({Folder("ranks", {RunLine() + first, RunLine() + last})});
  expect_last({Folder("one", {RunLine() + first}), Folder("two", {RunLine() + last + failed})});
}

}  // namespace
}  // namespace condense::report
