// Finished cells as a comparison leaves them, made by hand for tests of tables.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/lab_cell.h"
#include "lab/lab_records.h"
#include "lab/records.h"

namespace condense {

// The figures of one made row.
struct MadeRow {
  std::string policy;
  int64_t offset = 0;
  double kl_greedy = 0, kl_text = 0, match = 1;
  int t_div = 0;  // 0: survives
  double read = 1, rows = 1000, head_rows = 1000;
  double speed_ratio = 1;
  Json own = Json::object();  // parameters beside policy
};

inline FinishedCell MakeFinished(const std::string& experiment, const MadeRow& made) {
  FinishedCell cell;
  cell.experiment = experiment;
  cell.parameters = {{"model", "m.gguf@12345678"},
                     {"context", 2048},
                     {"text", "t.txt@0"},
                     {"offset", made.offset},
                     {"policy", made.policy}};
  cell.parameters.update(made.own);
  cell.id = CellId(cell.parameters);
  for (const char* teacher : {"greedy", "text"}) {
    PolicyRecord record;
    record.policy = made.policy;
    record.teacher = teacher;
    record.figures.n_decisions = 100;
    record.figures.match = made.match;
    record.figures.kl_mean = record.teacher == "text" ? made.kl_text : made.kl_greedy;
    record.figures.ppl_ratio = 1 + made.kl_text;
    if (made.t_div > 0) record.t_div = record.t_sig = made.t_div;
    record.kv_read_share = made.read;
    record.unique_rows_per_kv_head = made.rows;
    record.nominal_rows_per_query_head = made.head_rows;
    record.visible_rows = 2100;
    record.dense_bytes = 100'000'000;
    record.k_bytes = record.v_bytes = static_cast<uint64_t>(50'000'000 * made.read);
    record.speed.dense_tokens_per_second = 50;
    record.speed.sparse_tokens_per_second = 50 * made.speed_ratio;
    record.speed.ratio = {made.speed_ratio, made.speed_ratio, made.speed_ratio};
    cell.lines.push_back(ToJson(record));
  }
  CellRecord end;
  end.policy = made.policy;
  cell.end = ToJson(end);
  return cell;
}

// One timed in turns with dense: 40 tokens a second of dense. `n_equal` of 100 tokens; -1: of
// llama.cpp, which has none.
inline FinishedCell MakeTimed(const std::string& way, double speed_ratio, int64_t n_equal,
                              int64_t offset = 0) {
  FinishedCell cell = MakeFinished("matched-speed", {.policy = way, .offset = offset});
  TimedRecord record;
  record.policy = way;
  record.speed.n_pairs = 5;
  record.speed.dense_tokens_per_second = 40;
  record.speed.sparse_tokens_per_second = 40 * speed_ratio;
  record.speed.ratio = {speed_ratio, speed_ratio, speed_ratio};
  if (n_equal >= 0) {
    record.n_decisions = 100;
    record.n_equal = n_equal;
  }
  cell.lines = {ToJson(record)};
  return cell;
}

// A needle that was asked of a policy; `full`: the answer was right.
inline FinishedCell MakeNeedleCell(const std::string& policy, int context, double depth, bool full,
                                   const Json& own = Json::object()) {
  FinishedCell cell;
  cell.experiment = "heavy-hitter";
  cell.parameters = {{"model", "m.gguf@12345678"},
                     {"text", "t.txt@0"},
                     {"offset", 0},
                     {"form", "chat"},
                     {"seed", 1},
                     {"distractors", 2},
                     {"tokens", 8},
                     {"fact", 0},
                     {"sparse_from", "question"},
                     {"context", context},
                     {"depth", depth},
                     {"policy", policy}};
  cell.parameters.update(own);
  cell.id = CellId(cell.parameters);
  ItemRecord record;
  record.policy = policy;
  record.first_token_expected = 1;
  record.first_token_match = record.full_match = full;
  record.score = full ? 1 : 0;
  record.kv_read_share = 0.5;
  cell.lines = {ToJson(record)};
  return cell;
}

// The row whose first texts are these; null: there is none.
inline const std::vector<std::string>* FindRow(const LabTable& table,
                                               const std::vector<std::string>& first) {
  for (const std::vector<std::string>& row : table.rows) {
    if (std::equal(first.begin(), first.end(), row.begin())) return &row;
  }
  return nullptr;
}

}  // namespace condense
