// The lab's runner with an experiment that decodes nothing and fails where it is told to: what is
// run, written, tried again and reported, whatever an experiment does. The model is the default
// one, of which only the file, the tokenizer and the shape are looked at.
#include "lab/lab_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "decode/stop.h"
#include "lab/test_lab.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Cells 0 … n-1, two a group. Those of `fail` fail by Fail, those of `break` end RunGroup with an
// error, at work; those of `forget` are not run at all; those of `unmet` have a budget that cannot
// be met. `twice`: the first is planned once more.
class Made : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    n_ = static_cast<int>(spec.Int("cells", 1, 100));
    fail_ = spec.Ints("fail", 0, 99, 0);
    break_ = spec.Ints("break", 0, 99, 0);
    forget_ = spec.Ints("forget", 0, 99, 0);
    unmet_ = spec.Ints("unmet", 0, 99, 0);
    twice_ = spec.Flag("twice");
    layer_ = static_cast<int>(spec.Int("layer", 0, 1000));
    if (spec.Flag("nothing")) spec.Fail("nothing", "nothing is no experiment");
  }
  Result<std::vector<Cell>> Plan(LabModel& model) override {
    if (layer_ >= model.model().n_layers()) return Error{"the model has no such layer"};
    std::vector<Cell> cells;
    for (int i = 0; i < n_; ++i) {
      Json shared = model.Parameters();
      shared["pair"] = i / 2;
      cells.push_back(MakeCell("made", shared, {{"number", i}, {"policy", "dense"}}, 100 + i));
    }
    if (twice_) cells.push_back(cells[0]);
    return cells;
  }
  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    run.Spent("prefill", 1);
    for (const Cell& cell : cells) {
      const int64_t number = cell.parameters["number"];
      ran.push_back(number);
      const auto is_in = [&](const std::vector<int64_t>& list) {
        return std::find(list.begin(), list.end(), number) != list.end();
      };
      if (is_in(forget_)) continue;
      if (number == stop_at) RequestStop();
      run.Working(cell, 0.5);
      if (is_in(break_)) return Error{"broke at " + std::to_string(number)};
      if (StopRequested()) return Error{"stopped by the user"};
      CellRecord end;
      end.policy = end.name = "dense";
      end.state = is_in(unmet_) ? "unmet" : "done";
      end.seconds = is_in(unmet_) ? 0 : 2;
      const Status status = is_in(fail_)
                                ? run.Fail(cell, "failed " + std::to_string(number))
                                : run.Finish(cell, {Json{{"record", "made"}, {"x", number}}}, end);
      if (!status.ok()) return status;
    }
    return Status();
  }

  static std::vector<int64_t> ran;
  static int64_t stop_at;

 private:
  int n_ = 0, layer_ = 0;
  bool twice_ = false;
  std::vector<int64_t> fail_, break_, forget_, unmet_;
};
std::vector<int64_t> Made::ran;
int64_t Made::stop_at = -1;

CONDENSE_REGISTER_EXPERIMENT(
    made, ExperimentInfo{
              .name = "made",
              .title = "cells that fail on demand",
              .repeats = "nothing",
              .default_spec = "experiment = \"made\"\nmodels = []\ncells = 6\nfail = []\n"
                              "break = []\nforget = []\nunmet = []\ntwice = false\nlayer = 0\n"
                              "nothing = false\n",
              .published =
                  {{.metric = "x", .value = "7", .low = 7, .high = 7, .setting = "", .source = ""}},
              .make = [] { return std::make_unique<Made>(); },
              .tables = [](std::span<const FinishedCell>) { return std::vector<LabTable>(); }});

class LabRunTest : public LabTest {
 protected:
  void SetUp() override {
    Made::ran.clear();
    Made::stop_at = -1;
    ClearStop();
  }
  void TearDown() override { ClearStop(); }

  Result<LabOutcome> Run(const std::vector<std::string>& specs) {
    LabOptions options = Options();
    for (const std::string& keys : specs) options.specs.push_back(Spec("made", keys));
    options.models = models_;
    options.check_memory = [&](const ModelFile&, const LabMemory& need) {
      return need.n_rows <= most_rows_ ? Status() : Status(Error{"no memory"});
    };
    LabEvents events;
    events.on_cell = [&](const Cell& cell, const CellRecord& end) {
      if (end.state == "failed") reasons_.push_back(end.reason);
    };
    events.on_progress = [&](const LabProgress& now) { progress_.push_back(now); };
    Made::ran.clear();
    reasons_.clear();
    progress_.clear();
    return RunLab(*plugin_, options, events, *WorkAlone());
  }
  LabOutcome RunWell(const std::vector<std::string>& specs) {
    const Result<LabOutcome> outcome = Run(specs);
    EXPECT_TRUE(outcome.ok()) << outcome.error();
    return outcome.ok() ? outcome.value() : LabOutcome();
  }
  static double SpentOn(const LabOutcome& outcome, const std::string& part) {
    for (const LabSpent& spent : outcome.spent) {
      if (spent.part == part) return spent.seconds;
    }
    return 0;
  }

  std::vector<std::string> models_;
  int most_rows_ = 1000;
  std::vector<std::string> reasons_;
  std::vector<LabProgress> progress_;
};

TEST_F(LabRunTest, RunsEachCellOnce) {
  LabOutcome outcome = RunWell({""});
  EXPECT_EQ(outcome.n_cells, 6);
  EXPECT_EQ(outcome.n_done, 6);
  EXPECT_EQ(outcome.n_left(), 0);
  EXPECT_THAT(Made::ran, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(Kept().published.size(), 1u);
  EXPECT_EQ(Kept().plans.size(), 1u);
  EXPECT_EQ(Kept().runs.size(), 1u);

  outcome = RunWell({""});
  EXPECT_EQ(outcome.n_kept, 6);
  EXPECT_THAT(Made::ran, IsEmpty());
  EXPECT_EQ(Kept().runs.size(), 1u) << "nothing to do, nothing written";

  outcome = RunWell({"cells = 9\n", ""});
  EXPECT_EQ(outcome.n_cells, 9) << "a cell that two specs ask for counts once";
  EXPECT_THAT(Made::ran, ElementsAre(6, 7, 8));
  EXPECT_EQ(Kept().plans.size(), 2u);
  EXPECT_EQ(Kept().published.size(), 1u);
}

TEST_F(LabRunTest, FailuresStopNoOtherAndAreTriedAgain) {
  LabOutcome outcome = RunWell({"fail = [1]\nbreak = [2]\nforget = [5]\n"});
  EXPECT_EQ(outcome.n_done, 3);
  EXPECT_EQ(outcome.n_failed, 3);
  EXPECT_TRUE(outcome.error.empty());
  EXPECT_THAT(reasons_, ElementsAre("failed 1", "broke at 2", "the experiment did not run it"));
  EXPECT_THAT(Made::ran, ElementsAre(0, 1, 2, 3, 4, 5)) << "3 by another call, after 2 broke";
  EXPECT_EQ(Kept().Done("made").size(), 3u);

  outcome = RunWell({"break = [5]\n"});
  EXPECT_THAT(Made::ran, ElementsAre(1, 2, 5));
  EXPECT_EQ(outcome.n_kept, 3);
  EXPECT_EQ(outcome.n_done, 2);
  EXPECT_EQ(outcome.n_failed, 1);
  EXPECT_EQ(Kept().Done("made").size(), 5u);
}

TEST_F(LabRunTest, AStopIsNoFailure) {
  Made::stop_at = 3;
  LabOutcome outcome = RunWell({""});
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.n_done, 3);
  EXPECT_EQ(outcome.n_failed, 0);
  EXPECT_EQ(outcome.n_left(), 3);
  EXPECT_EQ(Kept().cells.size(), 3u);
  ClearStop();
  Made::stop_at = -1;
  outcome = RunWell({""});
  EXPECT_THAT(Made::ran, ElementsAre(3, 4, 5));
}

TEST_F(LabRunTest, WhatCannotWorkIsSaidBeforeAnythingRuns) {
  EXPECT_THAT(Run({"layer = 30\n"}).error(), HasSubstr("x.toml: the model has no such layer"));
  EXPECT_THAT(Run({"nothing = true\n"}).error(),
              HasSubstr("x.toml', line 2: nothing is no experiment"));
  EXPECT_THAT(Run({"cels = 3\n"}).error(), HasSubstr("did you mean 'cells'?"));
  EXPECT_THAT(Run({"twice = true\n"}).error(), HasSubstr("number=0 pair=0 policy=dense"));
  most_rows_ = 104;
  EXPECT_THAT(Run({""}).error(), HasSubstr("no memory"));
  EXPECT_THAT(Made::ran, IsEmpty());
  EXPECT_TRUE(Kept().runs.empty());
  most_rows_ = 1000;
  RunWell({""});
  most_rows_ = 0;
  EXPECT_TRUE(Run({""}).ok()) << "what is done needs no memory";
}

TEST_F(LabRunTest, EstimatesFromWhatCellsCost) {
  const LabOutcome outcome = RunWell({"cells = 4\n"});
  ASSERT_EQ(progress_.size(), 4u);
  EXPECT_TRUE(std::isnan(progress_[0].seconds_left)) << "nothing measured yet";
  // In the last cell half of it is left: 2 s a cell of 103 rows, about.
  EXPECT_NEAR(progress_[3].seconds_left, 1, 0.1);
  EXPECT_EQ(progress_[3].n_done, 3);
  EXPECT_EQ(progress_[3].doing, "made dense pair=1 number=3");
  const auto cells = std::find_if(outcome.spent.begin(), outcome.spent.end(),
                                  [](const auto& spent) { return spent.part == "cells of dense"; });
  ASSERT_NE(cells, outcome.spent.end());
  EXPECT_EQ(cells->n, 4);
  EXPECT_DOUBLE_EQ(cells->seconds, 8);
  EXPECT_GT(SpentOn(outcome, "loading models"), 0);
  EXPECT_LE(SpentOn(outcome, "planning") + SpentOn(outcome, "loading models"), outcome.seconds)
      << "no time counts twice";
}

TEST_F(LabRunTest, OnlyWhatWasDoneTellsWhatCellsCost) {
  RunWell({"cells = 4\nunmet = [0, 1]\nfail = [2, 3]\n"});
  for (const LabProgress& progress : progress_)
    EXPECT_TRUE(std::isnan(progress.seconds_left)) << progress.doing;
  RunWell({"cells = 4\n"});
  ASSERT_EQ(progress_.size(), 2u) << "those that failed";
  EXPECT_TRUE(std::isnan(progress_[0].seconds_left)) << "neither do those of an earlier run";
  EXPECT_NEAR(progress_[1].seconds_left, 1, 0.1);
}

TEST_F(LabRunTest, EveryModelHasItsCells) {
  models_ = {ModelNamed("one.gguf"), ModelNamed("two.gguf")};
  const LabOutcome outcome = RunWell({"cells = 3\n"});
  EXPECT_EQ(outcome.n_done, 6);
  EXPECT_THAT(Made::ran, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(Kept().runs.size(), 2u);
}

}  // namespace
}  // namespace condense
