// Records of an experiment as JSON Lines: one self-contained object a line, schema 1
// (docs/RECORDS.md), enough to rebuild every table and chart. Each line is flushed when written: a
// crash loses at most the last one. Writes records; report/ reads them.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "metrics/teacher.h"

namespace condense {

inline constexpr int kRecordSchema = 1;
using Json = nlohmann::ordered_json;

// The first line: what ran, where, on what.
struct RunRecord {
  std::string program, version, commit, llama_cpp_commit, ggml_version, compiler;
  std::string instruction_set, cpu;
  int threads = 0;
  std::string model, model_sha256, model_desc;  // model: base name of the file
  int n_layers = 0, n_query_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::string kv_type_k, kv_type_v;
  uint64_t kv_bytes_per_token = 0;
  int context = 0;  // rows of the KV cache
  std::string text_source, text_sha256;
  int offset = 0, n_prompt = 0, n_generate = 0, speed_pairs = 0;
  std::string time_utc;
  std::vector<std::string> argv;
};

// The shared dense prefill and the dense-greedy continuation.
struct PromptRecord {
  int n_prompt = 0;
  double prefill_seconds = 0;
  int first_token = 0;
  std::string first_token_text;
  std::vector<int> dense_tokens;        // the first token and the decisions after it
  std::vector<std::string> dense_text;  // a piece for each of dense_tokens
};

// Tokens a second of decode steps, dense and this policy in alternating blocks of one run.
struct SpeedRecord {
  int n_pairs = 0;
  double sparse_tokens_per_second = 0, dense_tokens_per_second = 0;  // medians of blocks
  Quartiles ratio;                                                   // of pairs, sparse / dense
};

// One row of the table under one teacher.
struct PolicyRecord {
  std::string policy;            // canonical spec; "dense", "control"
  std::string name;              // the policy's name alone
  std::optional<double> budget;  // share of dense's bytes that --budgets asked for
  std::string spec;              // what the plug-in was told
  std::string model, model_sha256;
  int n_prompt = 0;
  std::string teacher;              // "greedy" or "text"
  std::optional<int> t_div, t_sig;  // of the autonomous run; empty: survived
  TeacherFigures figures;
  // From the plug-in's counters over the teacher-forced run.
  double kv_read_share = 1;
  uint64_t k_bytes = 0, v_bytes = 0, summary_bytes = 0, dense_bytes = 0;
  double unique_rows_per_kv_head = 0, nominal_rows_per_query_head = 0, visible_rows = 0;  // a step
  uint64_t sparse_steps = 0, dense_steps = 0;  // of single layers
  std::map<std::string, uint64_t> fallbacks;   // by reason, where there were any
  uint64_t rebuilds = 0;
  // Time to choose, of choosing and attending in one-row steps; of the autonomous run.
  std::optional<double> select_share;
  SpeedRecord speed;
  std::vector<int> autonomous_tokens;        // decisions 1 …
  std::vector<std::string> autonomous_text;  // a piece for each
};

struct LayerRecord {
  std::string policy, teacher;
  int layer = 0;
  double omitted_mass_mean = 0, omitted_mass_max = 0;  // over decisions and query heads
  double bound_mean = 0;                               // E_l, mean over decisions
  double read_share = 1, unique_rows = 0;              // unique rows: a KV head and step
  std::vector<double> omitted_mass_heads{};            // by query head, mean over decisions
};

// Which rows were read over time, as characters: lab/row_map.h.
struct RowsRecord {
  std::string policy, teacher;
  int n_positions = 0, n_decisions = 0;  // what the map spans
  int positions_a_column = 1, decisions_a_line = 1;
  std::vector<std::string> map;  // a line every so many decisions
};

// The end of a cell's lines; or why there are none.
struct CellRecord {
  std::string policy, name;      // as in PolicyRecord
  std::optional<double> budget;  // asked for
  std::string state = "done";    // or "unmet": the budget cannot be met; "left_out": cannot run
  std::string reason;            // of what is not done
  std::optional<double> least_budget;  // share, where one was found
  double seconds = 0;                  // it took
};

struct StepRecord {
  std::string policy, teacher;
  TeacherStep step;
};

Json ToJson(const RunRecord& record);
Json ToJson(const PromptRecord& record);
Json ToJson(const PolicyRecord& record);
Json ToJson(const LayerRecord& record);
Json ToJson(const StepRecord& record);
Json ToJson(const RowsRecord& record);
Json ToJson(const CellRecord& record);

// A line of records, with its end. Bytes that are no UTF-8 (a path, an argument) appear as U+FFFD:
// a line is always valid JSON.
std::string RecordLine(const Json& json);

class RecordWriter {
 public:
  // Creates the file, or empties it.
  static Result<RecordWriter> Create(const std::string& path);
  // Goes on after the first `keep_bytes` of a file that is there; the rest is cut off.
  static Result<RecordWriter> GoOn(const std::string& path, uint64_t keep_bytes);

  template <typename Record>
  Status Write(const Record& record) {
    return WriteLine(ToJson(record));
  }
  Status WriteLine(const Json& json);
  const std::string& path() const { return path_; }

 private:
  explicit RecordWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace condense
