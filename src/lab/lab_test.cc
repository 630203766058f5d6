// Records as lines that read back, observations as sums, and counters that are no measurement
// refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "lab/compare.h"
#include "lab/observation.h"
#include "lab/records.h"

namespace condense {
namespace {

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class RecordsTest : public FolderTest {
 protected:
  const std::string path_ = Path("records.jsonl");
};

TEST_F(RecordsTest, EachLineIsThereOnceWritten) {
  Result<RecordWriter> writer = RecordWriter::Create(path_);
  ASSERT_TRUE(writer.ok()) << writer.error();
  PolicyRecord policy;
  policy.policy = "mean:blocks=8";
  policy.teacher = "greedy";
  policy.t_div = 7;
  policy.figures.match = 0.5;
  policy.figures.kl_stderr = std::numeric_limits<double>::quiet_NaN();
  policy.fallbacks["short"] = 3;
  policy.autonomous_text = {"a\xFF", "\"b\"\n"};
  ASSERT_TRUE(writer->Write(policy).ok());
  // The writer is still open: the line must be in the file all the same.
  const std::vector<std::string> lines = ReadLines(path_);
  ASSERT_EQ(lines.size(), 1u);
  const Json json = Json::parse(lines[0]);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["record"], "policy");
  EXPECT_EQ(json["t_div"], 7);
  EXPECT_TRUE(json["t_sig"].is_null());
  EXPECT_EQ(json["survived"], false);
  EXPECT_TRUE(json["kl_stderr"].is_null()) << "NaN has no JSON form";
  EXPECT_EQ(json["fallbacks"]["short"], 3);
  EXPECT_EQ(json["autonomous_text"][0], "a\xEF\xBF\xBD");
  EXPECT_EQ(json["autonomous_text"][1], "\"b\"\n");
}

TEST_F(RecordsTest, EveryFieldOfTheSchemaIsWritten) {
  const auto expect = [](const Json& json, const std::vector<const char*>& fields) {
    for (const char* field : fields)
      EXPECT_TRUE(json.contains(field)) << json["record"] << " " << field;
  };
  expect(ToJson(PolicyRecord{}), {"schema",
                                  "record",
                                  "policy",
                                  "model",
                                  "model_sha256",
                                  "n_prompt",
                                  "n_decisions",
                                  "teacher",
                                  "t_div",
                                  "t_sig",
                                  "survived",
                                  "tf_match",
                                  "tf_match_low",
                                  "tf_match_high",
                                  "ppl_dense",
                                  "ppl_sparse",
                                  "ppl_ratio",
                                  "ppl_ratio_low",
                                  "ppl_ratio_high",
                                  "name",
                                  "budget",
                                  "select_share",
                                  "survival",
                                  "kl_mean",
                                  "kl_median",
                                  "kl_p99",
                                  "kl_max",
                                  "kl_stderr",
                                  "same_top",
                                  "omitted_mass_mean",
                                  "omitted_mass_max",
                                  "kv_read_share",
                                  "k_bytes",
                                  "v_bytes",
                                  "summary_bytes",
                                  "dense_bytes",
                                  "unique_rows_per_kv_head",
                                  "nominal_rows_per_query_head",
                                  "visible_rows",
                                  "sparse_tokens_per_second",
                                  "dense_tokens_per_second",
                                  "speed_ratio_median",
                                  "speed_ratio_low",
                                  "speed_ratio_high",
                                  "sparse_steps",
                                  "dense_steps",
                                  "fallbacks",
                                  "rebuilds",
                                  "autonomous_text",
                                  "autonomous_tokens"});
  expect(ToJson(RunRecord{}), {"schema",        "record",      "program",
                               "version",       "commit",      "llama_cpp_commit",
                               "ggml_version",  "compiler",    "instruction_set",
                               "threads",       "cpu",         "model",
                               "model_sha256",  "model_desc",  "n_layers",
                               "n_query_heads", "n_kv_heads",  "head_dim",
                               "kv_type_k",     "kv_type_v",   "kv_bytes_per_token",
                               "context",       "text_source", "text_sha256",
                               "offset",        "n_prompt",    "n_generate",
                               "time_utc",      "argv"});
  expect(ToJson(PromptRecord{}),
         {"schema", "record", "n_prompt", "prefill_seconds", "prefill_tokens_per_second",
          "first_token", "first_token_text", "dense_text", "dense_tokens"});
  expect(ToJson(LayerRecord{}),
         {"schema", "record", "policy", "teacher", "layer", "omitted_mass_mean", "omitted_mass_max",
          "bound_mean", "read_share", "unique_rows", "omitted_mass_heads"});
  expect(ToJson(RowsRecord{}), {"schema", "record", "policy", "teacher", "n_positions",
                                "n_decisions", "positions_a_column", "decisions_a_line", "map"});
  expect(ToJson(CellRecord{}), {"schema", "record", "policy", "name", "budget", "state", "reason",
                                "least_budget", "seconds"});
  expect(ToJson(StepRecord{}), {"schema", "record", "policy", "teacher", "decision", "token_dense",
                                "token_sparse", "match", "nll_dense", "nll_sparse", "kl",
                                "margin_dense", "delta", "margin_sparse", "omitted_mass"});
}

TEST_F(RecordsTest, WritingToNowhereFails) {
  const Result<RecordWriter> writer = RecordWriter::Create("/nonexistent/records.jsonl");
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.error().find("/nonexistent/records.jsonl"), std::string::npos);
}

TEST_F(RecordsTest, FullDiskIsReported) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  Result<RecordWriter> writer = RecordWriter::Create("/dev/full");
  ASSERT_TRUE(writer.ok());
  EXPECT_FALSE(writer->Write(LayerRecord{}).ok());
}

condense_observation Seen(int layer, int head, float mass, float value_norm) {
  condense_observation seen = {};
  seen.layer = layer;
  seen.query_head = head;
  seen.omitted_mass = mass;
  seen.value_norm_max = value_norm;
  return seen;
}

TEST(ObservedMass, DecisionsAndLayers) {
  ObservedMass mass;
  // Decision 1: layer 0 heads 0.1 and 0.5 with norms 15 and 4 (E = 5), layer 1 head 0 and 0.
  const condense_observation first[] = {Seen(0, 0, 0.125f, 12), Seen(0, 1, 0.5f, 4)};
  const condense_observation second[] = {Seen(1, 0, 0, 9), Seen(1, 1, 0, 9)};
  mass.Take(first, 2);
  mass.Take(second, 2);
  ObservedMass::Decision decision = mass.EndDecision();
  EXPECT_DOUBLE_EQ(decision.mean, 0.625 / 4);
  EXPECT_DOUBLE_EQ(decision.max, 0.5);
  // Decision 2: only layer 0 left anything out.
  const condense_observation third[] = {Seen(0, 0, 0.25f, 2), Seen(0, 1, 0, 4)};
  mass.Take(third, 2);
  decision = mass.EndDecision();
  EXPECT_DOUBLE_EQ(decision.mean, 0.125);
  EXPECT_DOUBLE_EQ(decision.max, 0.25);
  const auto layers = mass.Layers();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_DOUBLE_EQ(layers.at(0).mass_mean, 0.875 / 4);
  EXPECT_DOUBLE_EQ(layers.at(0).mass_max, 0.5);
  EXPECT_DOUBLE_EQ(layers.at(0).bound_mean, (5.0 + 1.0) / 2);  // sqrt(3^2 + 4^2), then 2 * 0.25 * 2
  EXPECT_DOUBLE_EQ(layers.at(1).mass_mean, 0);
  EXPECT_EQ(layers.at(0).head_means, (std::vector<double>{0.375 / 2, 0.25}));
  EXPECT_DOUBLE_EQ(mass.EndDecision().mean, 0) << "nothing observed since";
}

TEST(CheckCounters, TakesTextsTooShortForTheBudget) {
  CounterSnapshot counters;
  counters.total.fallback_steps = 10;
  counters.process.fallbacks[CONDENSE_FALLBACK_BUDGET] = 10;
  EXPECT_TRUE(CheckCounters("condense", true, counters).ok());
  counters.process.fallbacks[CONDENSE_FALLBACK_BUDGET] = 9;
  counters.process.fallbacks[CONDENSE_FALLBACK_NAN] = 1;
  EXPECT_FALSE(CheckCounters("condense", true, counters).ok());
}

TEST(CheckCounters, RefusesWhatIsNoMeasurement) {
  CounterSnapshot counters;
  EXPECT_NE(CheckCounters("mean", true, counters).error().find("idle"), std::string::npos);
  counters.total.dense_steps = 10;
  EXPECT_TRUE(CheckCounters("dense", false, counters).ok());
  EXPECT_NE(CheckCounters("mean", true, counters).error().find("not in force"), std::string::npos);
  counters.total.fallback_steps = 10;
  counters.process.fallbacks[CONDENSE_FALLBACK_SHORT] = 10;
  EXPECT_TRUE(CheckCounters("mean", true, counters).ok()) << "nothing could be left out";
  counters.process.fallbacks[CONDENSE_FALLBACK_SHORT] = 3;
  counters.process.fallbacks[CONDENSE_FALLBACK_BUDGET] = 7;
  EXPECT_TRUE(CheckCounters("condense", true, counters).ok()) << "the text is short for the budget";
  counters.process.fallbacks[CONDENSE_FALLBACK_BUDGET] = 1;
  counters.process.fallbacks[CONDENSE_FALLBACK_BIAS] = 6;
  EXPECT_NE(CheckCounters("mean", true, counters).error().find("bias 6"), std::string::npos);
  counters.total.sparse_steps = 1;
  EXPECT_TRUE(CheckCounters("mean", true, counters).ok());
}

}  // namespace
}  // namespace condense
