#include "lab/prefix_rows.h"

#include <algorithm>

namespace condense {

void PrefixRows::Add(LabPrefix prefix, std::span<const PrefixRow> rows, int n_speed_pairs,
                     std::vector<Cell>& cells) {
  prefix.shared["tokens"] = prefix.continuation.size();
  prefix.shared["speed_pairs"] = n_speed_pairs;
  int n_rows = prefix.n_rows;
  for (const PrefixRow& row : rows) {
    // A row that is decoded again needs a place beside its own.
    if (row.cell.rewrite_rows) n_rows = prefix.n_rows + 1;
  }
  for (const char* baseline : kBaselines)
    cells.push_back(MakeCell(experiment_, prefix.shared, {{"policy", baseline}}, n_rows));
  Planned planned;
  planned.n_speed_pairs = n_speed_pairs;
  for (const PrefixRow& row : rows) {
    Json own{{"policy", row.cell.policy}};
    own.update(row.own);
    cells.push_back(MakeCell(experiment_, prefix.shared, own, n_rows));
    planned.rows[cells.back().id] = row.cell;
  }
  // A comparison keeps dense's logits under both teachers.
  for (Cell& cell : std::span(cells).last(rows.size() + kBaselines.size()))
    cell.memory.n_logits = 2 * static_cast<int64_t>(prefix.continuation.size());
  planned.prefix = std::move(prefix);
  groups_[cells.back().group] = std::move(planned);
}

Result<std::vector<Cell>> PrefixRows::Plan(LabModel& model, const PrefixSpec& prefixes,
                                           std::span<const PrefixRow> rows, int n_speed_pairs) {
  Result<std::vector<LabPrefix>> planned = PlanPrefixes(model, prefixes);
  if (!planned.ok()) return Error{planned.error()};
  std::vector<Cell> cells;
  for (LabPrefix& prefix : planned.value()) Add(std::move(prefix), rows, n_speed_pairs, cells);
  return cells;
}

Status PrefixRows::RunGroup(GroupRun& run, std::span<const Cell> cells) const {
  const Planned& planned = groups_.at(cells[0].group);
  CompareSpec spec;
  spec.n_generate = static_cast<int>(planned.prefix.continuation.size());
  spec.n_speed_pairs = planned.n_speed_pairs;
  return RunCompareCells(run, planned.prefix, std::move(spec), planned.rows, cells);
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
    const bool is_there = IsBaseline(spec) || spec == control.value() ||
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
