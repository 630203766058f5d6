// The experiments `exact` and `guard` without a model: their specs, their lines, their tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/exact_run.h"
#include "lab/guard_table.h"
#include "lab/guard_trial.h"
#include "lab/spec_reader.h"
#include "lab/test_cells.h"
#include "lab/test_specs.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(DecodingSpecs, DefaultsAreRightAndWrongKeysAreRefusedByLine) {
  for (const char* name : {"exact", "guard"}) {
    EXPECT_EQ(SpecError(name, ""), "") << name;
    EXPECT_THAT(SpecError(name, "ofsets = [1]\n"), HasSubstr("line 2")) << name;
    EXPECT_THAT(SpecError(name, "contexts = [0]\n"), HasSubstr("line 2")) << name;
    EXPECT_TRUE(Info(name).tables({}).empty()) << name;
  }
  EXPECT_THAT(SpecError("exact", "draft_tokens = [\"17\"]\n"), HasSubstr("\"1\" to \"16\""));
  EXPECT_THAT(SpecError("exact", "draft_tokens = [\"0\"]\n"), HasSubstr("neither \"auto\""));
  EXPECT_THAT(SpecError("exact", "made = [\"poems\"]\n"), HasSubstr("poems"));
  EXPECT_THAT(SpecError("exact", "contexts = [599]\n"), HasSubstr("a passage of 300 twice"));
  EXPECT_EQ(SpecError("exact", "contexts = [599]\nmade = [\"question\"]\n"), "");
  EXPECT_EQ(SpecError("exact", "made = []\n"), "");
  EXPECT_THAT(SpecError("guard", "tokens = 50\n"), HasSubstr("294 decisions held out"));
  EXPECT_THAT(SpecError("guard", "tokens = 50\n"), HasSubstr("it takes 299"));
  EXPECT_THAT(SpecError("guard", "calibrate_offsets = [0]\n"), HasSubstr("0 decisions held out"));
  EXPECT_THAT(SpecError("guard", "refresh = [1]\n"), HasSubstr("not from 2 to 512"));
}

// A cell of `exact` as it is written.
FinishedCell ExactCell(const std::string& kind, int64_t offset, const ExactDraft& draft,
                       const ExactFigures& figures) {
  FinishedCell cell;
  cell.experiment = "exact";
  cell.parameters = {{"model", "m.gguf@1"},   {"text", "t.txt@2"}, {"context", 2000},
                     {"offset", offset},      {"kind", kind},      {"tokens", 64},
                     {"policy", draft.source}};
  if (draft.source != "dense")
    cell.parameters["draft_tokens"] = draft.length == 0 ? "auto" : std::to_string(draft.length);
  cell.lines = {ToJson(figures, draft)};
  return cell;
}

ExactFigures MadeFigures(std::vector<int64_t> drafted_at, std::vector<int64_t> accepted_at,
                         double ratio) {
  ExactFigures figures;
  figures.n_tokens = 64;
  figures.equal_rows = figures.probed_rows = 5;
  ExactCounters::Source source;
  source.name = "lookup";
  for (int64_t n : drafted_at) source.drafted += n;
  for (int64_t n : accepted_at) source.accepted += n;
  figures.counters.sources = {source};
  figures.counters.verifications = drafted_at.empty() ? 0 : drafted_at[0];
  figures.drafted_at = std::move(drafted_at);
  figures.accepted_at = std::move(accepted_at);
  figures.speed.n_pairs = 1;
  figures.speed.dense_tokens_per_second = 50;
  figures.speed.sparse_tokens_per_second = 50 * ratio;
  figures.speed.ratio = {ratio, ratio, ratio};
  return figures;
}

TEST(ExactTable, PoolsDraftsOverPrefixesAndShowsWhatIsNotIdentical) {
  std::vector<FinishedCell> cells;
  cells.push_back(ExactCell("prose", 0, {"dense", 0}, MadeFigures({}, {}, 1)));
  cells.push_back(ExactCell("prose", 0, {"lookup", 2}, MadeFigures({10, 10}, {8, 6}, 1.5)));
  ExactFigures parted = MadeFigures({10, 6}, {2, 0}, 0.5);
  parted.first_difference = 7;
  parted.counters.near_ties = 3;
  parted.equal_rows = 1;
  cells.push_back(ExactCell("prose", 500, {"lookup", 2}, parted));
  cells.push_back(ExactCell("code", 0, {"lookup", 1}, MadeFigures({20}, {20}, 2)));
  const std::vector<LabTable> tables = Info("exact").tables(cells);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_THAT(tables[0].title, HasSubstr("context 2000, 64 tokens"));
  EXPECT_TRUE(FindRow(tables[0], {"prose", "dense", "", "1", "0", "-", "-", "yes"}));
  // 16 of 36 tokens; (16 + 20) / 20 tokens a verification.
  const std::vector<std::string>* row =
      FindRow(tables[0], {"prose", "lookup", "2*", "2", "36", "44.4 %", "1.80"});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[7], "NO, 1 of 2, 3 near ties");
  EXPECT_EQ(row->back(), "1.00 (0.50 to 1.50)");
  EXPECT_TRUE(FindRow(tables[0], {"code", "lookup", "1", "1", "20", "100.0 %", "2.00", "yes"}));
  EXPECT_THAT(tables[0].notes, HasSubstr("drafts are shorter"));
  row = FindRow(tables[1], {"prose", "lookup", "2", "20"});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[4], "50.0 %") << "10 of 20 at the first place";
  EXPECT_EQ((*row)[5], "37.5 %") << "6 of 16 at the second";
  EXPECT_EQ((*row)[6], "-") << "no draft was four tokens long";
}

TEST(GuardTrial, LinesHoldWhatWasChosen) {
  RiskTrial trial;
  trial.risk = 0.05;
  trial.thresholds = {2, 1, 0.5};
  trial.tallies = {{{"greedy", 200, 1, 60, 0.02}, {"text", 200, 4, 80, 0.04}},
                   {{"greedy", 200, 3, 40, 0.03}, {"text", 200, 5, 50, 0.05}},
                   {{"greedy", 200, 9, 20, 0.08}, {"text", 200, 9, 30, 0.08}}};
  CalibrateSpec spec;
  spec.policy = "mean:blocks=2";
  std::vector<Json> lines = TrialLines(trial, spec);
  ASSERT_EQ(lines.size(), 6u);
  GuardThreshold threshold = ReadThreshold(lines);
  EXPECT_EQ(threshold.logits, 1) << "the last that held";
  EXPECT_EQ(threshold.bound, 0.05) << "of the harder teacher";
  EXPECT_TRUE(threshold.certified);
  trial.risk = 0.01;
  lines = TrialLines(trial, spec);
  threshold = ReadThreshold(lines);
  EXPECT_EQ(threshold.logits, 2) << "none held: the largest of the search";
  EXPECT_FALSE(threshold.certified);
  EXPECT_EQ(HeldOutDecisions(5, 128), 3 * 127);
}

Json GuardLine(int64_t n_differ, bool certified) {
  return {{"record", "guard"},          {"policy", "guard 5% of mean:blocks=2"},
          {"spec", "mean:blocks=2"},    {"risk", 0.05},
          {"threshold", 1.5},           {"bound", 0.04},
          {"certified", certified},     {"teacher", "greedy"},
          {"n_decisions", 100},         {"n_differ", n_differ},
          {"n_fallbacks", 20},          {"autonomous_steps", 100},
          {"autonomous_fallbacks", 15}, {"autonomous_ahead", 10},
          {"autonomous_changed", 3}};
}

TEST(GuardTable, PutsTheRiskSeenBesideThePromise) {
  const Interval none = ExactInterval(0, 100), all = ExactInterval(100, 100);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.0362, 1e-4) << "1 - 0.025^(1/100)";
  EXPECT_NEAR(all.low, 0.9638, 1e-4);
  EXPECT_EQ(all.high, 1);

  std::vector<FinishedCell> cells;
  cells.push_back(MakeFinished("guard", {.policy = "dense"}));
  for (const auto& [text, n_differ] :
       {std::pair("near.txt@0", 0), std::pair("far.txt@0", 20), std::pair("odd.txt@0", 4)}) {
    FinishedCell cell = MakeFinished("guard", {.policy = "guard 5% of mean:blocks=2",
                                               .t_div = 12,
                                               .read = 0.3,
                                               .speed_ratio = 1.25,
                                               .own = {{"of", "mean:blocks=2"}, {"risk", 0.05}}});
    cell.parameters["text"] = text;
    cell.lines.push_back(GuardLine(n_differ, true));
    cells.push_back(cell);
  }
  FinishedCell calibration;
  calibration.experiment = "guard";
  calibration.parameters = {{"model", "m.gguf@12345678"},
                            {"context", 2048},
                            {"calibrate_texts", "t.txt@0"},
                            {"policy", "calibration of mean:blocks=2"},
                            {"risk", 0.05}};
  RiskTrial trial{0.05, {1.5}, {{{"greedy", 200, 3, 40, 0.0384}}}};
  CalibrateSpec spec;
  spec.policy = "mean:blocks=2";
  calibration.lines = TrialLines(trial, spec);
  cells.push_back(calibration);

  const std::vector<LabTable> tables = Info("guard").tables(cells);
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_TRUE(FindRow(
      tables[0], {"mean:blocks=2", "5%", "1.5", "yes", "greedy", "20.00 %", "3 of 200", "3.84 %"}));
  const std::string label = "guard 5% of mean:blocks=2";
  const std::vector<std::string>* row = FindRow(tables[1], {"near.txt", label, "greedy"});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[3], "20.00 %");
  EXPECT_EQ((*row)[4], "0 of 100");
  EXPECT_EQ((*row)[8], "yes");
  row = FindRow(tables[1], {"far.txt", label});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[5], "25.00 %") << "20 of the 80 that were taken";
  EXPECT_THAT((*row)[6], HasSubstr("20.00 % (12.67 to 29.18)"));
  EXPECT_EQ((*row)[8], "NO");
  row = FindRow(tables[1], {"odd.txt", label});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[8], "open");
  row = FindRow(tables[2], {label, "30.0 %", "3", "12 (12 to 12)"});
  ASSERT_TRUE(row);
  EXPECT_EQ(row->back(), "1.25 (1.25 to 1.25)");

  // The same guard from another calibration is another row.
  std::vector<FinishedCell> two = {cells[1], cells[1]};
  two[0].parameters["calibrate_texts"] = "t.txt@0";
  two[1].parameters["calibrate_texts"] = "u.txt@0";
  const std::vector<LabTable> apart = Info("guard").tables(two);
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_TRUE(FindRow(apart[0], {"near.txt", label}));
  EXPECT_TRUE(FindRow(apart[0], {"near.txt", label + " [2]"}));
  EXPECT_TRUE(FindRow(apart[1], {label + " [2]", "30.0 %", "1"}));

  // Guards of runs of other lengths or caches promise nothing together.
  two = {cells[1], cells[1]};
  two[1].parameters["tokens"] = 32;
  const std::vector<LabTable> lengths = Info("guard").tables(two);
  ASSERT_EQ(lengths.size(), 4u);
  EXPECT_THAT(lengths[1].title, HasSubstr("tokens 32"));
  for (size_t i : {0, 1}) {
    row = FindRow(lengths[i], {"near.txt", label});
    ASSERT_TRUE(row);
    EXPECT_EQ((*row)[4], "0 of 100");
  }

  for (FinishedCell& cell : cells) {
    for (Json& line : cell.lines) {
      if (line["record"] == "guard") line["certified"] = false;
    }
  }
  const std::vector<LabTable> uncertified = Info("guard").tables(cells);
  row = FindRow(uncertified[1], {"far.txt", label});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[8], "none given");
}

}  // namespace
}  // namespace condense
