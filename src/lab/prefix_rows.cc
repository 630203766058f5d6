#include "lab/prefix_rows.h"

#include <algorithm>

#include "lab/compare.h"
#include "lab/lab_records.h"

namespace condense {
namespace {

// Decoded in every comparison: all others are compared with dense, and the control shows the noise.
constexpr const char* kAlways[] = {"dense", "control"};

bool IsAlways(const std::string& policy) {
  return std::find(std::begin(kAlways), std::end(kAlways), policy) != std::end(kAlways);
}

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

void PrefixRows::Add(const std::string& experiment, LabPrefix prefix,
                     std::span<const PrefixRow> rows, int n_speed_pairs) {
  prefix.shared["tokens"] = prefix.continuation.size();
  prefix.shared["speed_pairs"] = n_speed_pairs;
  Planned planned;
  planned.n_speed_pairs = n_speed_pairs;
  int n_rows = prefix.n_rows;
  for (const PrefixRow& row : rows) {
    planned.rows[row.cell.policy] = row.cell;
    // A row that is decoded again needs a place beside its own.
    if (row.cell.rewrite_rows) n_rows = prefix.n_rows + 1;
  }
  for (const char* always : kAlways)
    cells_.push_back(MakeCell(experiment, prefix.shared, {{"policy", always}}, n_rows));
  for (const PrefixRow& row : rows) {
    Json own{{"policy", row.cell.policy}};
    own.update(row.own);
    cells_.push_back(MakeCell(experiment, prefix.shared, own, n_rows));
  }
  planned.prefix = std::move(prefix);
  groups_[cells_.back().group] = std::move(planned);
}

Status PrefixRows::RunGroup(GroupRun& run, std::span<const Cell> cells) const {
  const Planned& planned = groups_.at(cells[0].group);
  const LabPrefix& prefix = planned.prefix;
  std::map<std::string, const Cell*> by_policy;
  for (const Cell& cell : cells) by_policy[cell.parameters["policy"]] = &cell;
  const Result<Session*> session = run.OpenSession();
  if (!session.ok()) return Error{session.error()};

  CompareSpec spec;
  spec.prompt = prefix.prompt;
  spec.text_continuation = prefix.continuation;
  spec.n_generate = static_cast<int>(prefix.continuation.size());
  spec.n_speed_pairs = planned.n_speed_pairs;
  for (const char* always : kAlways) {
    if (by_policy.contains(always)) continue;
    CellRecord finished;
    finished.policy = finished.name = always;
    spec.finished.push_back(finished);
  }
  for (const Cell& cell : cells) {
    const std::string policy = cell.parameters["policy"];
    if (!IsAlways(policy)) spec.cells.push_back(planned.rows.at(policy));
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

Result<std::vector<PrefixRow>> RowsOfPolicies(const LabModel& model,
                                              std::span<const std::string> policies) {
  const Result<std::string> control = model.Canonical(kControlSpec);
  if (!control.ok()) return Error{control.error()};
  std::vector<PrefixRow> rows;
  for (const std::string& policy : policies) {
    const Result<std::string> canonical = model.Canonical(policy);
    if (!canonical.ok()) return Error{canonical.error()};
    const std::string& spec = canonical.value();
    const bool is_there = IsAlways(spec) || spec == control.value() ||
                          std::any_of(rows.begin(), rows.end(), [&](const PrefixRow& row) {
                            return row.cell.policy == spec;
                          });
    if (!is_there) rows.push_back({.cell = {.policy = spec, .name = PolicyName(spec)}});
  }
  return rows;
}

double MeanVisibleRows(const LabPrefix& prefix) {
  return static_cast<double>(prefix.prompt.size()) +
         static_cast<double>(prefix.continuation.size()) / 2;
}

}  // namespace condense
