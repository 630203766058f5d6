// Records that only the lab writes, and how every line of its folders is marked with the experiment
// and the cell that it belongs to (docs/RECORDS.md, "Lab folders"; docs/records.schema.json).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "decode/plugin.h"
#include "lab/compare.h"
#include "lab/experiment.h"
#include "lab/lab_cell.h"
#include "lab/prefix_spec.h"
#include "lab/records.h"

namespace condense {

// One question put to the model (needle, ruler): what was wanted and what came.
struct ItemRecord {
  std::string policy;  // canonical spec; "dense", "control"
  std::string spec;    // what the plug-in was told
  std::string task;    // "needle", "niah_single_1", …
  std::string prompt_sha256;
  int n_prompt = 0, n_decisions = 0;
  std::vector<std::string> expected;  // every one is wanted
  std::string answer;
  std::vector<int> answer_tokens;
  std::optional<int> first_token_expected;  // of an answer that is known as tokens
  int first_token = 0;
  bool first_token_match = false;  // null in the record where none is expected
  bool full_match = false;         // the whole answer; where it is judged as text, score 1
  double score = 0;                // share of `expected` that the answer holds
  // From the plug-in's counters over the item's one-row steps: see Count.
  double kv_read_share = 1;
  uint64_t k_bytes = 0, v_bytes = 0, summary_bytes = 0, dense_bytes = 0;
  uint64_t sparse_steps = 0, dense_steps = 0;
  std::map<std::string, uint64_t> fallbacks;

  void Count(const CounterSnapshot& counters);
};
Json ToJson(const ItemRecord& record);

// A way of decoding timed in turns with dense (matched-speed): llama.cpp's own, or exact.
struct TimedRecord {
  std::string policy;  // the way: "llama.cpp fa on"
  int n_prompt = 0;
  int n_steps = 0;             // timed, of a block
  SpeedRecord speed;           // sparse_tokens_per_second: the way's
  double prefill_seconds = 0;  // llama.cpp's own; 0 where it shares dense's
  uint64_t plugin_nodes = 0;   // attention nodes that the plug-in computed of llama.cpp's
  // Of exact decoding: tokens of a block, those of the block with fewest that dense decoding gave
  // too; drafts of all blocks.
  std::optional<int64_t> n_decisions, n_equal, drafted, accepted;
};
Json ToJson(const TimedRecord& record);

// The `run` line of a model: the record without a text and its lengths, which cells have, with
// whether the program's tree was clean and which rank of how many writes.
Json RunLine(const RunRecord& run, int rank, int n_ranks);

// A `prompt` line with the prefix's text, its hash and its place.
Json PromptLine(const LabPrefix& prefix, const PromptRecord& record);

// The lines of one row of a comparison, but for its end.
std::vector<Json> RowLines(const CompareRow& row, const std::string& model,
                           const std::string& model_sha256);

Json ToJson(const PublishedFigure& figure);

// `line` with schema, and behind `record` the cell's experiment and id.
Json MarkLine(const Json& line, const std::string& experiment, const std::string& cell);
// The `cell` line: the record, the cell's group and its parameters.
Json CellLine(const Cell& cell, const CellRecord& end);
// What is to be done: the cells of one experiment as one run planned them.
Json PlanLine(const std::string& experiment, const std::string& spec_file,
              const std::string& spec_sha256, const std::vector<Cell>& cells);

}  // namespace condense
