#include "lab/compare_cells.h"

#include <map>
#include <string>
#include <utility>
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

// A policy's row as that of one of the budgets that came to it.
CompareRow RowOf(const CompareRow& row, const CompareCell& cell) {
  CompareRow own = row;
  own.cell.budget = cell.budget;
  for (PolicyRecord& record : own.teachers) record.budget = cell.budget;
  return own;
}

}  // namespace

Status RunCompareCells(GroupRun& run, const LabPrefix& prefix, CompareSpec spec,
                       const RowsOfCells& rows, std::span<const Cell> cells) {
  std::map<std::string, std::vector<const Cell*>> by_policy;
  for (const Cell& cell : cells) {
    const std::string policy = cell.parameters["policy"];
    std::vector<const Cell*>& same = by_policy[policy];
    same.push_back(&cell);
    if (same.size() == 1 && !IsBaseline(policy)) spec.cells.push_back(rows.at(cell.id));
  }
  const Result<Session*> session = run.OpenSession();
  if (!session.ok()) return Error{session.error()};
  spec.prompt = prefix.prompt;
  spec.text_continuation = prefix.continuation;
  for (const char* baseline : kBaselines) {
    if (by_policy.contains(baseline)) continue;
    CellRecord finished;
    finished.policy = finished.name = baseline;
    spec.finished.push_back(finished);
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
    const auto of = by_policy.find(progress.row);
    if (of != by_policy.end()) {
      run.Working(*of->second.front(), progress.share);
    } else {
      run.Preparing("dense continuation", 0, 0);
    }
  };
  events.on_row = [&](const CompareRow& row) {
    if (!row.warning.empty()) run.Warn(row.warning);
    double seconds = row.cell.seconds;  // of the first; the others are there with it
    for (const Cell* cell : by_policy.at(row.cell.policy)) {
      const auto planned = rows.find(cell->id);
      CompareRow own = planned == rows.end() ? row : RowOf(row, planned->second);
      own.cell.seconds = std::exchange(seconds, 0);
      std::vector<Json> lines = RowLines(own, run.model().FileName(), run.model().sha256());
      if (row.cell.policy == "dense") lines.insert(lines.begin(), prompt_line);
      const Status finished = run.Finish(*cell, lines, own.cell);
      if (!finished.ok()) return finished;
    }
    return Status();
  };
  return Compare(*session.value(), run.plugin(), spec, events);
}

}  // namespace condense
