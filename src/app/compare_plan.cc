#include "app/compare_plan.h"

#include <algorithm>

#include "lab/compare.h"

namespace condense {
namespace {

// Our own at its default and at less, S = 97, 193, 385 and 769 rows of arXiv 2602.06317, table 1,
// and Quest at the reference size.
constexpr const char* kDefaultPolicies[] = {
    "condense:budget=8%", "condense:budget=5%", "mean:blocks=2", "mean:blocks=8",
    "mean:blocks=20",     "mean:blocks=44",     "quest:blocks=8"};

// What --policy names.
Result<std::vector<CompareCell>> NamedCells(const Plugin& plugin, const CompareFlags& flags) {
  std::vector<std::string> specs = flags.policies;
  if (specs.empty() && flags.grid_names.empty())
    specs.assign(std::begin(kDefaultPolicies), std::end(kDefaultPolicies));
  std::vector<CompareCell> cells;
  for (const std::string& spec : specs) {
    const Result<std::string> policy = plugin.SetPolicy(spec);
    if (!policy.ok()) return Error{policy.error()};
    cells.push_back({.policy = policy.value(), .name = PolicyName(policy.value())});
  }
  return cells;
}

}  // namespace

Result<Json> DescribedPolicies(const Plugin& plugin) {
  Json policies = Json::parse(plugin.PoliciesJson(), nullptr, /*allow_exceptions=*/false);
  if (!policies.is_array()) return Error{"the plug-in describes its policies in no valid JSON"};
  return policies;
}

Result<CellPlan> PlanComparison(const Plugin& plugin, const CompareFlags& flags,
                                double visible_rows) {
  Result<std::vector<CompareCell>> named = NamedCells(plugin, flags);
  if (!named.ok()) return Error{named.error()};
  CellPlan plan;
  std::vector<CompareCell> all = std::move(named.value());
  if (!flags.grid_names.empty()) {
    const Result<Json> policies = DescribedPolicies(plugin);
    if (!policies.ok()) return Error{policies.error()};
    Result<CellPlan> grid =
        PlanCells(policies.value(), {flags.grid_names, flags.budgets, visible_rows},
                  [&](const std::string& spec) { return plugin.SetPolicy(spec); });
    if (!grid.ok()) return Error{"--policies: " + grid.error()};
    all.insert(all.end(), grid->cells.begin(), grid->cells.end());
    plan.left_out = std::move(grid->left_out);
  }
  const Result<std::string> control = plugin.SetPolicy(kControlSpec);
  if (!control.ok()) return Error{control.error()};
  for (CompareCell& cell : all) {
    if (cell.policy == "dense" || cell.policy == control.value()) continue;
    const auto known = std::find_if(plan.cells.begin(), plan.cells.end(),
                                    [&](const CompareCell& c) { return c.policy == cell.policy; });
    if (known == plan.cells.end()) {
      plan.cells.push_back(std::move(cell));
    } else if (!known->budget) {
      *known = std::move(cell);
    }
  }
  if (plan.cells.empty() && !plan.left_out.empty()) {
    return Error{"no policy of --policies can run: " + plan.left_out[0].spec + ": " +
                 plan.left_out[0].reason};
  }
  return plan;
}

}  // namespace condense
