// The main experiment: one dense prefill, then every policy decodes from it, autonomously and under
// two teachers, observed and counted, and is timed against dense in alternating blocks. Protocol:
// arXiv 2602.06317 v3, with the control row and the second teacher of docs/METRICS.md. Hands rows
// over as they are finished, and leaves out those that an earlier run of it finished; prints
// nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "lab/cells.h"
#include "lab/records.h"

namespace condense {

// The control: dense attention that sums V in reverse order.
inline constexpr const char* kControlSpec = "dense:order=reversed";

struct CompareSpec {
  std::vector<Token> prompt;
  // The text's own next tokens after the prompt, n_generate of them; fewer: no `text` teacher.
  std::vector<Token> text_continuation;
  int n_generate = 128;            // the first from the prefill, the rest decisions; at least 2
  std::vector<CompareCell> cells;  // without dense and the control, each policy once
  // Where not every cell is wanted: the next one, one of `cells`, asked for after each row; null:
  // no more. Empty: all, in order.
  std::function<const CompareCell*()> next_cell;
  int n_speed_pairs = 5;  // 0: no timing
  int speed_block_steps = 16;
  // What an earlier run finished: not run again. Dense logits are computed anew and their tokens
  // compared with its.
  std::vector<CellRecord> finished;
  std::optional<PromptRecord> kept_prompt;
};

// One finished row of the table: dense, control, or a policy.
struct CompareRow {
  std::vector<PolicyRecord> teachers;  // "greedy", then "text" where the text goes on; none of a
                                       // budget that cannot be met
  std::vector<LayerRecord> layers;
  std::vector<StepRecord> steps;
  std::optional<RowsRecord> map;  // of the last teacher; of policies that leave rows out
  CellRecord cell;
  std::string warning;  // for the user; "" mostly
};

struct CompareProgress {
  std::string row;  // the policy at work
  int rows_done = 0, n_rows = 0;
  double share = 0;         // of this row that is done
  double seconds_left = 0;  // NaN: not known yet
};

struct CompareEvents {
  std::function<void(int n_done, int n_total)> on_prefill;
  // After the prefill and the dense-greedy run; an error ends the comparison.
  std::function<Status(const PromptRecord&)> on_prompt;
  std::function<void(const CompareProgress&)> on_steps;
  // The row is complete; an error ends the comparison.
  std::function<Status(const CompareRow&)> on_row;
};

// Fails where decoding fails, where the plug-in saw no attention, where a sparse policy never ran
// although rows could have been left out, where dense tokens are not those of the records that are
// gone on with, and where a stop was requested (rows so far were handed over).
Status Compare(Session& session, const Plugin& plugin, const CompareSpec& spec,
               const CompareEvents& events);

// The record's figures that are of counters.
void Count(const CounterSnapshot& counters, PolicyRecord& record);

// Why a row's counters are no measurement of its policy, or success. `sparse`: a policy that leaves
// rows out.
Status CheckCounters(const std::string& policy, bool sparse, const CounterSnapshot& counters);

}  // namespace condense
