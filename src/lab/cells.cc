#include "lab/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"

namespace condense {
namespace {

// What a registered policy says of a key: its default, or nothing where it has no such key.
class Keys {
 public:
  explicit Keys(const Json& policy) {
    for (const Json& key : policy.value("keys", Json::array())) {
      defaults_[key.value("name", "")] = key.value("default", "");
    }
  }
  bool Has(const std::string& name) const { return defaults_.contains(name); }
  int64_t Rows(const std::string& name) const {
    const auto found = defaults_.find(name);
    const Result<int64_t> rows =
        found == defaults_.end() ? Result<int64_t>(0) : ParseInt(found->second);
    return rows.ok() ? rows.value() : 0;
  }

 private:
  std::map<std::string, std::string> defaults_;
};

class Planner {
 public:
  Planner(const CellRequest& request,
          const std::function<Result<std::string>(const std::string&)>& canonical)
      : request_(request), canonical_(canonical) {}

  void Add(const std::string& name, const Keys& keys) {
    if (keys.Has("budget")) {
      for (double budget : request_.budgets) {
        AddCell(name, budget, "budget=" + PrintPercent(budget), /*solves_budget=*/true);
      }
    } else if (keys.Has("tokens")) {
      for (double budget : request_.budgets) AddRows(name, budget, "tokens", 0);
    } else if (keys.Has("window")) {
      const int64_t first = keys.Rows("sink") + keys.Rows("anchor");
      for (double budget : request_.budgets) AddRows(name, budget, "window", first);
    } else {
      AddCell(name, std::nullopt, "", false);
    }
  }

  CellPlan Take() { return std::move(plan_); }

 private:
  // `key` is what is left of the budget's rows after the `first` that are read beside.
  void AddRows(const std::string& name, double budget, const char* key, int64_t first) {
    const auto rows = static_cast<int64_t>(budget * request_.visible_rows);
    if (rows > first) {
      AddCell(name, budget, fmt::format("{}={}", key, rows - first), false);
      return;
    }
    const double least = static_cast<double>(first + 1) / request_.visible_rows;
    plan_.cells.push_back(
        {.policy = fmt::format("{} at {}", name, PrintPercent(budget)),
         .name = name,
         .budget = budget,
         .unmet =
             fmt::format("{} of {:.0f} rows are {}, and {} are always read: the least possible "
                         "is {:.1f} %",
                         PrintPercent(budget), request_.visible_rows, rows, first,
                         std::ceil(1000 * least) / 10),
         .least_budget = std::ceil(1000 * least) / 1000});
  }

  void AddCell(const std::string& name, std::optional<double> budget, const std::string& keys,
               bool solves_budget) {
    const std::string spec = keys.empty() ? name : name + ":" + keys;
    const Result<std::string> canonical = canonical_(spec);
    if (!canonical.ok()) {
      LeaveOut(name, spec, canonical.error());
      return;
    }
    plan_.cells.push_back({.policy = canonical.value(),
                           .name = name,
                           .budget = budget,
                           .solves_budget = solves_budget});
  }

  // Once a policy where all its budgets fail for one reason.
  void LeaveOut(const std::string& name, const std::string& spec, const std::string& reason) {
    for (LeftOut& known : plan_.left_out) {
      if (known.reason == reason && PolicyName(known.spec) == name) {
        known.spec = name;
        return;
      }
    }
    plan_.left_out.push_back({spec, reason});
  }

  const CellRequest& request_;
  const std::function<Result<std::string>(const std::string&)>& canonical_;
  CellPlan plan_;
};

}  // namespace

bool IsBaseline(const std::string& policy) {
  return std::find(kBaselines.begin(), kBaselines.end(), policy) != kBaselines.end();
}

std::string PrintPercent(double share) { return PrintNumber(std::round(1e8 * share) / 1e6) + "%"; }

std::string PolicyName(const std::string& spec) { return spec.substr(0, spec.find(':')); }

bool IsDense(const std::string& spec) { return PolicyName(spec) == "dense"; }

std::string WithKeys(const std::string& spec, const std::string& keys) {
  if (keys.empty()) return spec;
  return spec + (spec.find(':') == std::string::npos ? ":" : ",") + keys;
}

std::string BudgetKeyOf(const std::string& spec) {
  for (const char* key : {"tokens", "blocks", "budget"}) {
    for (const char* before : {":", ","}) {
      if (spec.find(std::string(before) + key + "=") != std::string::npos) return key;
    }
  }
  return "";
}

Result<CellPlan> PlanCells(
    const Json& policies, const CellRequest& request,
    const std::function<Result<std::string>(const std::string& spec)>& canonical) {
  std::vector<std::string> registered;
  for (const Json& policy : policies) registered.push_back(policy.value("name", ""));
  for (const std::string& name : request.names) {
    if (name == kAllPolicies ||
        std::find(registered.begin(), registered.end(), name) != registered.end())
      continue;
    return Error{fmt::format("policy {} is unknown{} (policies: {}, or all)", Quote(name),
                             DidYouMean(name, registered), JoinNames(registered))};
  }
  Planner planner(request, canonical);
  for (const Json& policy : policies) {
    const std::string name = policy.value("name", "");
    const bool wanted =
        std::any_of(request.names.begin(), request.names.end(),
                    [&](const std::string& n) { return n == kAllPolicies || n == name; });
    if (wanted) planner.Add(name, Keys(policy));
  }
  return planner.Take();
}

}  // namespace condense
