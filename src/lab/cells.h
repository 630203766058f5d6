// Which cells a comparison of many policies has: every registered policy at every budget. Works
// from the plug-in's own description of its policies; knows no name. Pure but for the plug-in that
// spells specs.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/records.h"

namespace condense {

// Rows of every comparison, named without a spec: all others are compared with dense; the control,
// dense in another summation order, shows the noise.
inline constexpr std::array<const char*, 2> kBaselines = {"dense", "control"};
bool IsBaseline(const std::string& policy);
// Stands for every registered policy where names are asked for.
inline constexpr const char* kAllPolicies = "all";

// One policy at one budget.
struct CompareCell {
  std::string policy;              // canonical spec; names the row
  std::string name;                // the policy's
  std::optional<double> budget{};  // share of dense's bytes asked for by --budgets
  // The budget is a share that the policy itself solves for at every step (its key `budget`).
  bool solves_budget = false;
  // Why the budget cannot be met, where that shows without running; and the least that can.
  std::string unmet{};
  std::optional<double> least_budget{};
  // What the plug-in is told where `policy` is no spec, or more than one: rows of one policy that
  // differ otherwise.
  std::string spec{};
  // Every row is decoded again dense once its decision is made (decode/rewritten.h).
  bool rewrite_rows = false;

  const std::string& Spec() const { return spec.empty() ? policy : spec; }
};

struct LeftOut {
  std::string spec, reason;
};

struct CellPlan {
  std::vector<CompareCell> cells;  // by policy, then budget
  std::vector<LeftOut> left_out;   // what cannot run, with the plug-in's reason
};

struct CellRequest {
  std::vector<std::string> names;  // kAllPolicies, or policies
  std::vector<double> budgets;     // shares of dense's bytes, (0, 1]
  double visible_rows = 0;         // mean over the decisions to come
};

// `policies`: what condense_api.policies_json says. `canonical`: spells a spec, or says what is
// wrong with it.
//
// A policy with the key `budget` is given that share at every budget. One without it is told rows:
// `tokens`, or `window` less what it reads at the start (its key `sink` or `anchor`), so that it
// reads that share of the rows visible on average. One with none of these keys has one cell, as it
// is by default. Errors: an unknown name.
Result<CellPlan> PlanCells(
    const Json& policies, const CellRequest& request,
    const std::function<Result<std::string>(const std::string& spec)>& canonical);

// "mean" of "mean:budget=5%".
std::string PolicyName(const std::string& spec);
// Whether the policy reads everything, in whatever order.
bool IsDense(const std::string& spec);

// `spec` with more keys: "mean:tail=on,tokens=97" of "mean:tail=on" and "tokens=97"; "" adds none.
std::string WithKeys(const std::string& spec, const std::string& keys);

// The key that sets what a spec reads, one of tokens, blocks and budget; "": none of them is there.
std::string BudgetKeyOf(const std::string& spec);

// "7%" of 0.07: a share in percent, rounded to a millionth of one.
std::string PrintPercent(double share);

}  // namespace condense
