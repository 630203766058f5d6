#include "lab/compare_cells.h"

#include <map>
#include <string>
#include <vector>

#include "lab/lab_records.h"

namespace condense {
namespace {

// What an earlier run finished was compared with its dense tokens.
Status CheckSameTokens(GroupRun& run, const LabPrefix& prefix, const PromptRecord& prompt) {
  Json parameters = prefix.shared;
  parameters["policy"] = "dense";
  const FinishedCell* dense = run.Kept(CellId(parameters));
  if (dense == nullptr) return Status();
  for (const Json& line : dense->lines) {
    if (line["record"] != "prompt" || line["dense_tokens"] == Json(prompt.dense_tokens)) continue;
    return Error{
        "dense attention gives other tokens than this folder's records say: decoding is not "
        "repeatable between that run and this one; begin anew with another --out"};
  }
  return Status();
}

}  // namespace

Status RunCompareCells(GroupRun& run, const LabPrefix& prefix, CompareSpec spec,
                       std::span<const Cell> cells) {
  std::map<std::string, const Cell*> by_policy;
  for (const Cell& cell : cells) by_policy[cell.parameters["policy"]] = &cell;
  const Result<Session*> session = run.OpenSession();
  if (!session.ok()) return Error{session.error()};
  spec.prompt = prefix.prompt;
  spec.text_continuation = prefix.continuation;
  for (const char* always : {"dense", "control"}) {
    if (by_policy.contains(always)) continue;
    CellRecord finished;
    finished.policy = finished.name = always;
    spec.finished.push_back(finished);
  }
  const bool as_named = spec.cells.empty();
  for (const Cell& cell : cells) {
    const std::string policy = cell.parameters["policy"];
    if (as_named && policy != "dense" && policy != "control")
      spec.cells.push_back({.policy = policy, .name = PolicyName(policy)});
  }

  Json prompt_line;
  CompareEvents events;
  events.on_prefill = [&](int n_done, int n_total) {
    run.Preparing("dense prefill", n_done, n_total);
  };
  events.on_prompt = [&](const PromptRecord& prompt) {
    run.Spent("prefill", prompt.prefill_seconds);
    prompt_line = PromptLine(prefix, prompt);
    return CheckSameTokens(run, prefix, prompt);
  };
  events.on_steps = [&](const CompareProgress& progress) {
    const auto cell = by_policy.find(progress.row);
    if (cell != by_policy.end()) {
      run.Working(*cell->second, progress.share);
    } else {
      run.Preparing("dense continuation", 0, 0);
    }
  };
  events.on_row = [&](const CompareRow& row) {
    if (!row.warning.empty()) run.Warn(row.warning);
    std::vector<Json> lines = RowLines(row, run.model().FileName(), run.model().sha256());
    if (row.cell.policy == "dense") lines.insert(lines.begin(), prompt_line);
    return run.Finish(*by_policy.at(row.cell.policy), lines, row.cell);
  };
  return Compare(*session.value(), run.plugin(), spec, events);
}

}  // namespace condense
