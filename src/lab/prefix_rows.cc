#include "lab/prefix_rows.h"

#include <algorithm>

#include "lab/compare_cells.h"

namespace condense {
namespace {

// Decoded in every comparison: all others are compared with dense, and the control shows the noise.
constexpr const char* kAlways[] = {"dense", "control"};

bool IsAlways(const std::string& policy) {
  return std::find(std::begin(kAlways), std::end(kAlways), policy) != std::end(kAlways);
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
  CompareSpec spec;
  spec.n_generate = static_cast<int>(planned.prefix.continuation.size());
  spec.n_speed_pairs = planned.n_speed_pairs;
  for (const Cell& cell : cells) {
    const std::string policy = cell.parameters["policy"];
    if (!IsAlways(policy)) spec.cells.push_back(planned.rows.at(policy));
  }
  return RunCompareCells(run, planned.prefix, std::move(spec), cells);
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
