// Folders of the lab: what is read of what a killed run left, at every byte; mixed schemas, damage,
// the lock, the program's identity; and what an export makes of them.
#include "lab/lab_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/test_folder.h"
#include "base/whole_file.h"
#include "lab/lab_costs.h"
#include "lab/lab_export.h"
#include "lab/lab_records.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class LabFolderTest : public FolderTest {
 protected:
  LabFolder Read() const {
    Result<LabFolder> kept = ReadLabFolder(folder_);
    EXPECT_TRUE(kept.ok()) << kept.error();
    return kept.ok() ? kept.value() : LabFolder();
  }
  std::string ErrorOfRead() const { return ReadLabFolder(folder_).error(); }
};

std::string Line(const Json& json) { return json.dump() + "\n"; }

Json MadeRun() {
  return {{"schema", 1},           {"record", "run"}, {"program", "condense lab"},
          {"version", "1"},        {"commit", "abc"}, {"llama_cpp_commit", "l"},
          {"ggml_version", "2"},   {"threads", 2},    {"instruction_set", "avx2"},
          {"model_sha256", "1234"}};
}

Cell MadeCell(const std::string& policy) {
  return MakeCell("survival", {{"model", "m@1"}, {"context", 64}}, {{"policy", policy}}, 70);
}

// The lines of one cell: three, and its end.
std::string CellLines(const std::string& policy, const std::string& state = "done") {
  const Cell cell = MadeCell(policy);
  std::string lines;
  if (state != "failed") {
    for (const char* kind : {"policy", "layer", "step"})
      lines += Line(MarkLine({{"record", kind}, {"policy", policy}}, cell.experiment, cell.id));
  }
  CellRecord end;
  end.policy = end.name = policy;
  end.state = state;
  return lines + Line(CellLine(cell, end));
}

std::vector<std::string> Policies(const LabFolder& kept) {
  std::vector<std::string> policies;
  for (const FinishedCell& cell : kept.cells) policies.push_back(cell.parameters["policy"]);
  return policies;
}

TEST_F(LabFolderTest, NothingIsNothing) {
  EXPECT_TRUE(Read().cells.empty());
  EXPECT_TRUE(ReadLabFolder(Path("none"))->cells.empty());
  Write("records-0.jsonl", "");
  EXPECT_EQ(Read().n_bytes.at("records-0.jsonl"), 0u);
}

TEST_F(LabFolderTest, WholeCellsCountWhereverAKillCutsTheFile) {
  const std::string run = Line(MadeRun()), first = CellLines("dense"), second = CellLines("mean");
  const std::string all = run + first + second;
  for (size_t n = 0; n <= all.size(); ++n) {
    Write("records-0.jsonl", all.substr(0, n));
    const LabFolder kept = Read();
    const size_t n_cells = n == all.size() ? 2 : n >= run.size() + first.size() ? 1 : 0;
    ASSERT_EQ(kept.cells.size(), n_cells) << n;
    const size_t whole = n_cells == 2      ? all.size()
                         : n_cells == 1    ? run.size() + first.size()
                         : n >= run.size() ? run.size()
                                           : 0;
    ASSERT_EQ(kept.n_bytes.at("records-0.jsonl"), whole) << n;
    for (const FinishedCell& cell : kept.cells) ASSERT_EQ(cell.lines.size(), 2u) << "no steps";
  }
}

TEST_F(LabFolderTest, LinesOfAKilledRunBetweenOthersAreIgnored) {
  const std::string cut = CellLines("mean");
  // Two lines of a cell without its end, then another run; and two without any run line between.
  const size_t two = cut.find('\n', cut.find('\n') + 1) + 1;
  Write("records-0.jsonl", Line(MadeRun()) + cut.substr(0, two) + Line(MadeRun()) +
                               CellLines("mean") + cut.substr(0, two) + CellLines("dense"));
  const LabFolder kept = Read();
  EXPECT_THAT(Policies(kept), ElementsAre("mean", "dense"));
  EXPECT_EQ(kept.cells[0].lines.size(), 2u);
  int n_lines = 0;
  ASSERT_TRUE(ForEachCell(folder_, [&](std::span<const Json> lines) {
                n_lines += static_cast<int>(lines.size());
                return Status();
              }).ok());
  EXPECT_EQ(n_lines, 2 + 4 + 4);
}

TEST_F(LabFolderTest, ACellThatFailedIsFailedUntilItIsDone) {
  Write("records-0.jsonl", Line(MadeRun()) + CellLines("mean", "failed") + CellLines("dense"));
  EXPECT_EQ(Read().Find("survival", MadeCell("mean").id)->end["state"], "failed");
  Write("records-1.jsonl", Line(MadeRun()) + CellLines("mean"));
  const LabFolder kept = Read();
  EXPECT_EQ(kept.cells.size(), 2u);
  EXPECT_EQ(kept.Find("survival", MadeCell("mean").id)->end["state"], "done");
  EXPECT_EQ(kept.Find("mass", MadeCell("mean").id), nullptr);
}

TEST_F(LabFolderTest, DoneCellsComeInTheOrderOfThePlan) {
  const std::vector<Cell> cells = {MadeCell("dense"), MadeCell("mean"), MadeCell("quest")};
  Write("records-0.jsonl",
        Line(MadeRun()) + Line(PlanLine("survival", "survival.toml", "12", cells)) +
            CellLines("quest", "failed") + CellLines("mean") + CellLines("dense"));
  std::vector<std::string> policies;
  for (const FinishedCell& cell : Read().Done("survival"))
    policies.push_back(cell.parameters["policy"]);
  EXPECT_THAT(policies, ElementsAre("dense", "mean"));
}

TEST_F(LabFolderTest, OtherSchemasAndDamageAreNamed) {
  Write("records-0.jsonl", Line(MadeRun()) + CellLines("mean"));
  Json other = MadeRun();
  other["schema"] = 2;
  Write("records-1.jsonl", Line(other));
  EXPECT_THAT(ErrorOfRead(), HasSubstr("records-1.jsonl': line 1 is of schema 2, and this program "
                                       "reads schema 1"));
  Write("records-1.jsonl", Line(MadeRun()) + "{\"schema\":1,\"rec\n" + CellLines("mean"));
  EXPECT_THAT(ErrorOfRead(), HasSubstr("records-1.jsonl': line 2 is no record of Condense"));
  Write("records-1.jsonl", CellLines("mean"));
  EXPECT_THAT(ErrorOfRead(), HasSubstr("line 1 is no `run` line"));
  Write("records-1.jsonl", Line(MadeRun()) + "{\"schema\":1,\"record\":\"cell\",\"cell\":7}\n");
  EXPECT_THAT(ErrorOfRead(), HasSubstr("line 2 names no experiment"));
  Write("records-1.jsonl", Line(MadeRun()) + "{\"schema\":1,\"record\":\"cell\"}\n");
  EXPECT_THAT(ErrorOfRead(), HasSubstr("line 2 is a cell without state or parameters"));
}

TEST_F(LabFolderTest, AnExportHasARowALine) {
  Write("records-0.jsonl", Line(MadeRun()) + CellLines("dense") + CellLines("mean"));
  const Result<std::vector<std::string>> files = ExportCsv(folder_);
  ASSERT_TRUE(files.ok()) << files.error();
  EXPECT_THAT(files.value(),
              ElementsAre(Path("csv/cell.csv"), Path("csv/layer.csv"), Path("csv/policy.csv"),
                          Path("csv/run.csv"), Path("csv/step.csv")));
  EXPECT_EQ(ReadWholeFile(Path("csv/layer.csv")).value(),
            "schema,record,experiment,cell,policy,parameters.model,parameters.context,"
            "parameters.policy\r\n"
            "1,layer,survival,context=64 model=m@1 policy=dense,dense,m@1,64,dense\r\n"
            "1,layer,survival,context=64 model=m@1 policy=mean,mean,m@1,64,mean\r\n");
}

TEST_F(LabFolderTest, AnExportOntoAFullDiskIsNoDamage) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  std::string lines = Line(MadeRun());
  for (int i = 0; i < 1000; ++i) lines += CellLines("mean:blocks=" + std::to_string(i));
  Write("records-0.jsonl", lines);
  std::filesystem::create_directory(Path("csv"));
  std::filesystem::create_symlink("/dev/full", Path("csv/layer.csv"));
  const Result<std::vector<std::string>> files = ExportCsv(folder_);
  ASSERT_FALSE(files.ok());
  EXPECT_THAT(files.error(), HasSubstr("cannot write '" + Path("csv/layer.csv")));
  EXPECT_THAT(files.error(), Not(HasSubstr("records-0.jsonl")));
}

TEST_F(LabFolderTest, AnotherProgramIsRefusedByName) {
  Write("records-0.jsonl", Line(MadeRun()) + CellLines("mean"));
  EXPECT_TRUE(CheckSameProgram(Read(), MadeRun(), "x").ok());
  Json other = MadeRun();
  other["model_sha256"] = "5678";
  EXPECT_TRUE(CheckSameProgram(Read(), other, "x").ok()) << "another model makes other cells";
  other["threads"] = 1;
  EXPECT_THAT(CheckSameProgram(Read(), other, "x").error(),
              HasSubstr("threads was 2, is 1 now; name another folder with --out"));
}

TEST_F(LabFolderTest, OneRunAtATime) {
  const std::string path = Path("new");
  {
    const Result<LabLock> first = LabLock::Take(path);
    ASSERT_TRUE(first.ok()) << first.error();
    const Result<LabLock> second = LabLock::Take(path);
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(second.error(), HasSubstr("another run is at work in the folder"));
    EXPECT_THAT(second.error(), HasSubstr("process " + std::to_string(getpid()) + " since 20"));
  }
  EXPECT_TRUE(LabLock::Take(path).ok()) << "let go";
  Write("file", "");
  EXPECT_THAT(LabLock::Take(Path("file/x")).error(), HasSubstr("cannot make"));
}

TEST(LabCosts, GrowWithRowsAndFallBackOnOtherPolicies) {
  LabCosts costs;
  EXPECT_TRUE(std::isnan(costs.Expected({"m", "survival", "mean", 100})));
  costs.Add({"m", "survival", "mean", 100}, 2);
  costs.Add({"m", "survival", LabCosts::kPrefill, 100}, 10);
  EXPECT_DOUBLE_EQ(costs.Expected({"m", "survival", "mean", 400}), 8);
  EXPECT_DOUBLE_EQ(costs.Expected({"m", "survival", "quest", 50}), 1)
      << "as the experiment's others";
  EXPECT_TRUE(std::isnan(costs.Expected({"m", "needle", "mean", 100})));
  EXPECT_DOUBLE_EQ(costs.Expected({"m", "needle", LabCosts::kPrefill, 50}), 5);
  EXPECT_DOUBLE_EQ(costs.Expected({"other", "survival", "mean", 100}), 2) << "nothing better known";
  costs.Add({"other", "survival", "quest", 100}, 40);
  EXPECT_DOUBLE_EQ(costs.Expected({"other", "survival", "mean", 100}), 40) << "of this model";
}

TEST(LabCosts, LearnsFromRecordsAndFollowsThePace) {
  LabCosts costs;
  const auto cell = [](const std::string& policy) {
    FinishedCell made;
    made.experiment = "survival";
    made.parameters = {{"model", "m"}, {"policy", policy}};
    CellRecord end;
    end.policy = end.name = policy;
    end.seconds = 130;
    made.end = ToJson(end);
    made.lines = {Json{{"record", "prompt"}, {"prefill_seconds", 1300.0}}};
    return made;
  };
  for (const char* policy : {"a", "b", "c", "d"}) costs.Learn(cell(policy), 100);
  EXPECT_DOUBLE_EQ(costs.Expected({"m", "survival", "d", 100}), 130);
  // The machine was busy then: it is 13 times faster.
  for (const char* policy : {"a", "b", "c"}) costs.Add({"m", "survival", policy, 100}, 10);
  EXPECT_NEAR(costs.Expected({"m", "survival", "d", 100}), 10, 0.1);
  EXPECT_NEAR(costs.Expected({"m", "survival", LabCosts::kPrefill, 100}), 100, 1);
  FinishedCell failed = cell("a");
  failed.end["state"] = "failed";
  LabCosts nothing;
  nothing.Learn(failed, 100);
  EXPECT_TRUE(std::isnan(nothing.Expected({"m", "survival", "a", 100})));
}

}  // namespace
}  // namespace condense
