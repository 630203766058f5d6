// Experiments run whole on the default model, small: every cell is done, a second run has nothing
// to do, the rows that they take for granted are there; and what they measure by two ways agrees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "base/top_two.h"
#include "decode/rewritten.h"
#include "decode/run.h"
#include "lab/block_recall.h"
#include "lab/guarded_run.h"
#include "lab/observation.h"
#include "lab/runs.h"
#include "lab/test_lab.h"
#include "lab/timed_cells.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr const char* kText = "/usr/share/common-licenses/GPL-3";

class ExperimentsRunTest : public LabTest {
 protected:
  // On the default model, or on `models`.
  Result<LabOutcome> RunKeys(const std::string& name, const std::string& keys,
                             const std::vector<std::string>& models = {}) const {
    LabOptions options = Options();
    options.specs = {Spec(name, keys)};
    options.models = models;
    options.n_threads = 2;
    return RunLab(*plugin_, options, {}, *WorkAlone());
  }
  Result<LabOutcome> Run(const std::string& name, const std::string& keys) const {
    return RunKeys(name, "texts = [\"" + std::string(kText) + "\"]\n" + keys);
  }

  // Runs it twice; the cells that it left, by policy.
  std::map<std::string, FinishedCell> RunWhole(const std::string& name, const std::string& keys) {
    const Result<LabOutcome> first = Run(name, keys);
    EXPECT_TRUE(first.ok()) << first.error();
    if (!first.ok()) return {};
    EXPECT_EQ(first->error, "");
    EXPECT_EQ(first->n_failed, 0);
    EXPECT_EQ(first->n_left(), 0);
    const Result<LabOutcome> second = Run(name, keys);
    EXPECT_TRUE(second.ok() && second->n_done == 0 && second->n_kept == first->n_cells);
    const std::vector<FinishedCell> cells = Kept().Done(name);
    EXPECT_EQ(static_cast<int>(cells.size()), first->n_cells);
    EXPECT_FALSE(FindExperiment(name).value()->tables(cells).empty());
    std::map<std::string, FinishedCell> by_policy;
    for (const FinishedCell& cell : cells) {
      const std::string part = cell.parameters.value("part", "");
      by_policy[part.empty() ? cell.parameters["policy"].get<std::string>() : part] = cell;
    }
    return by_policy;
  }

  static const Json& LineOf(const FinishedCell& cell, const std::string& teacher) {
    for (const Json& line : cell.lines) {
      if (line["record"] == "policy" && line["teacher"] == teacher) return line;
    }
    static const Json none = Json::object();
    return none;
  }
};

TEST_F(ExperimentsRunTest, EqualBytes) {
  const auto cells = RunWhole("equal-bytes",
                              "offsets = [0]\ncontexts = [500]\ntokens = 6\n"
                              "policies = [\"mean\", \"topk\"]\nbudgets = [1, 30]\n");
  ASSERT_EQ(cells.size(), 6u) << "dense, the control, and two policies at two budgets";
  EXPECT_TRUE(cells.contains("control"));
  EXPECT_EQ(cells.at("mean:budget=1%").end["state"], "unmet");
  const Json& mean = LineOf(cells.at("mean:budget=30%"), "text");
  EXPECT_EQ(mean["budget"], 0.3);
  EXPECT_LE(mean["kv_read_share"].get<double>(), 0.301);
}

TEST_F(ExperimentsRunTest, BudgetsThatComeToTheSamePolicyShareItsRow) {
  const Result<LabOutcome> outcome = Run("equal-bytes",
                                         "offsets = [0]\ncontexts = [300]\ntokens = 4\n"
                                         "policies = [\"window\"]\nbudgets = [30, 30.01, 60]\n");
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(outcome->n_done, 5) << "dense, the control, three budgets";
  std::map<double, FinishedCell> by_budget;
  for (const FinishedCell& cell : Kept().Done("equal-bytes")) {
    if (cell.parameters.contains("budget")) by_budget[cell.parameters["budget"]] = cell;
  }
  ASSERT_EQ(by_budget.size(), 3u);
  std::set<std::string> policies;
  for (const auto& [budget, cell] : by_budget) {
    policies.insert(cell.parameters["policy"]);
    EXPECT_DOUBLE_EQ(cell.end["budget"].get<double>(), budget);
    EXPECT_DOUBLE_EQ(LineOf(cell, "text")["budget"].get<double>(), budget);
  }
  EXPECT_EQ(policies.size(), 2u);
}

TEST_F(ExperimentsRunTest, AllModelsArePlannedBeforeTheFirstRuns) {
  const Result<LabOutcome> outcome =
      RunKeys("heavy-hitter",
              "text = \"" + std::string(kText) + "\"\noffset = 0\ncontexts = [300]\n" +
                  "depths = [0.5]\nfacts = 1\ndistractors = 0\ntokens = 2\n" + "stream_text = \"" +
                  kText + "\"\nstream_offsets = [100]\nstream = 200\n" +
                  "positions = 4\npolicies = [\"mean:blocks=2\"]\n",
              {ModelNamed("one.gguf"), ModelNamed("two.gguf")});
  ASSERT_TRUE(outcome.ok()) << outcome.error();
  EXPECT_EQ(outcome->n_done, 12) << "a needle and a stream, three rows each, on two models";
  std::set<std::string> models;
  for (const FinishedCell& cell : Kept().Done("heavy-hitter"))
    models.insert(cell.parameters["model"]);
  EXPECT_EQ(models.size(), 2u);
  double spent = 0;
  for (const LabSpent& part : outcome->spent) spent += part.seconds;
  EXPECT_LE(spent, outcome->seconds) << "no time counts twice";
}

TEST_F(ExperimentsRunTest, ATextByTwoNamesIsRefused) {
  const std::string again = "/usr/share/../share/common-licenses/GPL-3";
  const std::string texts = "texts = [\"" + std::string(kText) + "\", \"" + again + "\"]\n";
  EXPECT_THAT(RunKeys("survival", texts + "offsets = [0]\ncontexts = [200]\ntokens = 4\n").error(),
              HasSubstr("texts holds '" + again + "'"));
  EXPECT_THAT(Run("survival", "offsets = [7, 7]\n").error(), HasSubstr("offsets holds 7 twice"));
}

TEST_F(ExperimentsRunTest, CausesDecodeRowsAgain) {
  const auto cells =
      RunWhole("causes", "offsets = [0]\ncontexts = [400]\ntokens = 6\nsupports = [97]\n");
  ASSERT_EQ(cells.size(), 8u);
  const Json& kept = LineOf(cells.at("policy"), "greedy");
  const Json& again = LineOf(cells.at("policy, rows dense"), "greedy");
  EXPECT_EQ(kept["sparse_steps"], again["sparse_steps"]) << "rows decoded again are no decisions";
  // Where the anchor's block is chosen a row less is read.
  EXPECT_NEAR(kept["kv_read_share"].get<double>(), again["kv_read_share"].get<double>(), 0.002);
  EXPECT_NE(kept["kl_mean"], again["kl_mean"]);
  EXPECT_GT(kept["kl_mean"].get<double>(), 0.0);
}

TEST_F(ExperimentsRunTest, Mass) {
  const auto cells = RunWhole("mass",
                              "offsets = [0]\ncontexts = [600]\nlayers = [3, 20]\n"
                              "policies = [\"mean\"]\nblock_rows = [16, 32]\n");
  ASSERT_EQ(cells.size(), 2u);
  for (const auto& [policy, cell] : cells) {
    ASSERT_EQ(cell.lines.size(), 2u) << policy;
    const Json& line = cell.lines[1];
    EXPECT_EQ(line["layer"], 20);
    EXPECT_EQ(line["n_heads"], 9);
    EXPECT_GE(line["oracle"].get<double>() + 1e-6, line["policy"].get<double>()) << policy;
    EXPECT_GT(line["policy"].get<double>(), line["base"].get<double>()) << policy;
  }
  EXPECT_THAT(Run("mass", "layers = [30]\n").error(), HasSubstr("layers 0 to 29, not 30"));
}

TEST_F(ExperimentsRunTest, MatchedSpeed) {
  const auto cells = RunWhole("matched-speed",
                              "offsets = [0]\ncontexts = [400]\ntokens = 6\nspeed_pairs = 2\n"
                              "policies = [\"mean:blocks=2\", \"dense\"]\n");
  ASSERT_EQ(cells.size(), 6u) << "dense is there already, and three ways are timed beside";
  EXPECT_EQ(LineOf(cells.at("mean:blocks=2"), "greedy")["speed_pairs"], 2);
  for (const char* way : {"llama.cpp fa on", "llama.cpp fa off", "exact lookup"}) {
    const FinishedCell& cell = cells.at(way);
    ASSERT_EQ(cell.lines.size(), 1u) << way;
    const Json& line = cell.lines[0];
    EXPECT_EQ(line["record"], "speed");
    EXPECT_EQ(line["n_prompt"], 400);
    EXPECT_EQ(line["speed_pairs"], 2);
    EXPECT_GT(line["tokens_per_second"].get<double>(), 0) << way;
    EXPECT_GT(line["dense_tokens_per_second"].get<double>(), 0) << way;
    EXPECT_EQ(line["plugin_nodes"], 0) << way;
    const bool is_exact = std::string(way) == "exact lookup";
    EXPECT_EQ(line["prefill_seconds"].get<double>() > 0, !is_exact);
    EXPECT_EQ(line["n_decisions"], is_exact ? Json(6) : Json(nullptr))
        << "of a block: both decide the same";
    EXPECT_EQ(line["n_equal"], line["n_decisions"]);
  }
  EXPECT_GT(plugin_->Counters().process.nodes, 0u) << "dense blocks are the plug-in's";
}

TEST_F(ExperimentsRunTest, MatchedSpeedCountsWhatItHoldsBeside) {
  LabOptions options = Options();
  options.specs = {Spec("matched-speed", "texts = [\"" + std::string(kText) +
                                             "\"]\noffsets = [0]\ncontexts = [400]\ntokens = 6\n"
                                             "policies = [\"mean:blocks=2\"]\n")};
  std::vector<LabMemory> needs;
  options.check_memory = [&](const ModelFile&, const LabMemory& need) {
    needs.push_back(need);
    return needs.size() < 6 ? Status() : Status(Error{"seen"});
  };
  EXPECT_EQ(RunLab(*plugin_, options, {}, *WorkAlone()).error(), "seen");
  ASSERT_EQ(needs.size(), 6u) << "dense, the control, the policy, and three ways beside";
  constexpr uint64_t kVocab = 49152, kBatch = 512, kHeads = 9;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(needs[i].n_caches, 1);
    EXPECT_EQ(needs[i].logits_bytes, 4 * kVocab * 2 * 6) << "of two teachers";
  }
  EXPECT_EQ(needs[3].n_caches, 2) << "llama.cpp's own";
  EXPECT_EQ(needs[3].other_bytes, 4 * kVocab * kBatch);
  EXPECT_EQ(needs[4].n_caches, 2);
  EXPECT_EQ(needs[4].other_bytes, needs[3].other_bytes) << "scores of so few rows are fewer";
  EXPECT_EQ(needs[5].n_caches, 1) << "exact decoding uses the session's";
  const Result<std::unique_ptr<LabModel>> model = LabModel::Load(CONDENSE_TEST_MODEL, *plugin_, {});
  ASSERT_TRUE(model.ok()) << model.error();
  EXPECT_EQ(TimedWayMemory(*model.value(), kHostNoFlash, 8192).other_bytes,
            4 * 8192 * (kHeads + 1) * kBatch);
}

TEST_F(ExperimentsRunTest, FirstVersion) {
  const auto cells = RunWhole("first-version",
                              "offsets = [0]\ncontexts = [400]\ntokens = 6\nweight_decisions = 3\n"
                              "policies = [\"layered:blocks=2,early_window=128\"]\n");
  ASSERT_EQ(cells.size(), 4u) << "dense, the control, the policy and its weights";
  const FinishedCell& weights = cells.at("weights");
  ASSERT_EQ(weights.lines.size(), 30u);
  for (const Json& line : weights.lines) {
    EXPECT_EQ(line["n_heads"], 27) << "three decisions of nine heads";
    EXPECT_LE(line["rows_below_f32"].get<double>(), line["rows_below_bf16"].get<double>());
    EXPECT_GE(line["largest"].get<double>(), 0.0);
  }
}

// Behind a prefill of the default text.
class TwoWaysTest : public ExperimentsRunTest {
 protected:
  void SetUp() override {
    ExperimentsRunTest::SetUp();
    Result<std::unique_ptr<LabModel>> model = LabModel::Load(CONDENSE_TEST_MODEL, *plugin_, {});
    ASSERT_TRUE(model.ok()) << model.error();
    model_ = std::move(model.value());
    const Result<const LabText*> text = model_->Text(kText);
    ASSERT_TRUE(text.ok()) << text.error();
    tokens_ = text.value()->tokens;
    SessionOptions options;
    options.n_context = 700;
    options.n_threads = 2;
    options.api = plugin_->api();
    Result<std::unique_ptr<Session>> session = Session::Open(model_->model(), options);
    ASSERT_TRUE(session.ok()) << session.error();
    session_ = std::move(session.value());
    const Result<DensePrefillResult> prefill =
        DensePrefill(*session_, *plugin_, {tokens_.begin(), tokens_.begin() + kPrompt}, {}, {});
    ASSERT_TRUE(prefill.ok()) << prefill.error();
  }

  // Logits of four decisions on the text's own tokens.
  std::vector<std::vector<float>> Decide(const std::string& policy, bool again) {
    EXPECT_TRUE(BeginRun(*session_, *plugin_, policy).ok());
    RewrittenSteps rewritten(*session_);
    const StepFunction step = [&](Token token) {
      return again ? rewritten.Step(token) : session_->Step(token);
    };
    std::vector<std::vector<float>> all;
    const Status ran = TeacherForcedRun(
        step, std::span(tokens_).subspan(kPrompt, 4),
        [&](int, Logits logits) { all.emplace_back(logits.begin(), logits.end()); });
    EXPECT_TRUE(ran.ok());
    return all;
  }

  static constexpr int kPrompt = 560;
  std::unique_ptr<LabModel> model_;
  std::unique_ptr<Session> session_;
  std::vector<Token> tokens_;
};

TEST_F(TwoWaysTest, RowsDecodedAgainAreThoseOfDense) {
  const std::string sparse = "mean:blocks=0,window=32";
  EXPECT_EQ(Decide("dense", true), Decide("dense", false));
  const auto kept = Decide(sparse, false), again = Decide(sparse, true);
  EXPECT_EQ(kept[0], again[0]) << "nothing sparse was written yet";
  EXPECT_NE(kept[3], again[3]);
  EXPECT_EQ(session_->position(), kPrompt + 4);
  // With every row dense a decision is what it is alone behind a dense history.
  EXPECT_TRUE(BeginRun(*session_, *plugin_, "dense").ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session_->Step(tokens_[kPrompt + i]).ok());
  ASSERT_TRUE(plugin_->SetPolicy(sparse).ok());
  const Result<Logits> alone = session_->Step(tokens_[kPrompt + 3]);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(again[3], std::vector<float>(alone->begin(), alone->end()));
}

TEST_F(TwoWaysTest, TeachersTakeTheLogitsThatTheReferenceKept) {
  DenseReference reference;
  reference.tokens = {tokens_[kPrompt]};
  ASSERT_TRUE(BeginRun(*session_, *plugin_, "dense").ok());
  for (int i = 0; i < 3; ++i) {
    const Result<Logits> logits = session_->Step(reference.tokens.back());
    ASSERT_TRUE(logits.ok());
    const TopTwo top = FindTopTwo(logits.value());
    reference.tokens.push_back(top.token);
    reference.margins.push_back(top.margin);
    reference.decision_logits.insert(reference.decision_logits.end(), logits->begin(),
                                     logits->end());
  }
  const std::vector<float> kept = reference.decision_logits;
  plugin_->ResetCounters();
  Result<std::vector<WayTeacher>> teachers = MakeTeachers(*session_, *plugin_, reference, {});
  ASSERT_TRUE(teachers.ok()) << teachers.error();
  EXPECT_EQ(plugin_->Counters().process.nodes, 0u) << "nothing is decoded once more";
  ASSERT_EQ(teachers->size(), 1u);
  EXPECT_EQ(teachers->at(0).dense_logits, kept);
  EXPECT_EQ(teachers->at(0).dense_margins, reference.margins);
  EXPECT_TRUE(std::ranges::equal(teachers->at(0).dense_tokens, reference.decisions()));
  EXPECT_EQ(teachers->at(0).dense_tokens, teachers->at(0).targets);

  // The text's own teacher is decoded; fed the same tokens it would have the same bits.
  reference.decision_logits = kept;
  const std::vector<Token> same = reference.tokens;
  teachers = MakeTeachers(*session_, *plugin_, reference, same);
  ASSERT_TRUE(teachers.ok()) << teachers.error();
  ASSERT_EQ(teachers->size(), 2u);
  EXPECT_EQ(teachers->at(1).dense_logits, kept);
  EXPECT_EQ(teachers->at(1).dense_margins, reference.margins);
}

TEST_F(TwoWaysTest, MassOfBlocksIsThatOfThePolicies) {
  const int layer = 11;
  const MassArms arms{"mean:blocks=0", "oracle:blocks=2", "mean:blocks=2"};
  const Result<LayerMass> plugin =
      MeasureLayerMass(*session_, *plugin_, arms, tokens_[kPrompt], layer, {});
  ASSERT_TRUE(plugin.ok()) << plugin.error();
  ASSERT_TRUE(BeginRun(*session_, *plugin_, WithDenseBefore(arms.base, layer)).ok());
  std::vector<std::vector<float>> logits;
  {
    const ScopedObserver observer(
        *plugin_,
        [&](std::span<const condense_observation> node) {
          for (const condense_observation& seen : node) {
            if (seen.layer != layer) continue;
            ASSERT_NE(seen.row_logits, nullptr);
            logits.emplace_back(seen.row_logits, seen.row_logits + seen.visible_rows);
          }
        },
        /*with_logits=*/true);
    ASSERT_TRUE(session_->Step(tokens_[kPrompt]).ok());
  }
  ASSERT_EQ(logits.size(), 9u);
  const LayerMass own = MassOfBlocks(layer, logits, 3, kPrompt + 1, {});
  EXPECT_NEAR(own.base, plugin->base, 1e-5);
  EXPECT_NEAR(own.oracle, plugin->oracle, 1e-5);
  EXPECT_NEAR(own.policy, plugin->policy, 1e-5) << "unless two means are all but equal";
  EXPECT_NEAR(own.oracle_recall, plugin->oracle_recall, 1e-4);
  EXPECT_NEAR(own.policy_recall, plugin->policy_recall, 1e-4);
}

}  // namespace
}  // namespace condense
