#include "app/probe_plan.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "select/registry.h"

namespace condense {
namespace {

// "window" of "window@0-7".
std::string BaseKey(const std::string& key) { return key.substr(0, key.find('@')); }

// Which of `key`, at one layer or all, a policy has by its description.
using Defaults = std::map<std::string, std::string>;

Defaults DefaultsOf(const Json& policies, const std::string& name) {
  Defaults defaults;
  for (const Json& policy : policies) {
    if (policy.value("name", "") != name) continue;
    for (const Json& key : policy.value("keys", Json::array()))
      defaults[key.value("name", "")] = key.value("default", "");
  }
  return defaults;
}

bool HasKey(const PolicySpec& spec, std::string_view base_key) {
  for (const auto& [key, value] : spec.keys) {
    if (BaseKey(key) == base_key) return true;
  }
  return false;
}

// The policy's frame without distant blocks.
PolicySpec BaseOf(const PolicySpec& spec) {
  PolicySpec base{.name = spec.name, .keys = {{"blocks", "0"}}};
  for (const auto& entry : spec.keys) {
    const std::string key = BaseKey(entry.first);
    if (key != "blocks" && key != "tokens") base.keys.push_back(entry);
  }
  return base;
}

PolicySpec OracleOf(const PolicySpec& spec, const Defaults& own, const Defaults& oracle_takes) {
  PolicySpec oracle{.name = "oracle", .keys = {}};
  for (const auto& entry : spec.keys) {
    if (oracle_takes.contains(BaseKey(entry.first))) oracle.keys.push_back(entry);
  }
  std::map<std::string, std::string> in_force = own;
  for (const auto& [key, value] : spec.keys) in_force[key] = value;
  for (const auto& [key, value] : own) {
    const auto other = oracle_takes.find(key);
    // What decides how much is read, a canonical spec always says.
    const bool is_budget = key == "blocks" || key == "tokens" || key == "budget";
    if (is_budget || other == oracle_takes.end() || other->second == value) continue;
    bool given = false;
    for (const auto& entry : spec.keys) given = given || entry.first == key;
    if (!given) oracle.keys.emplace_back(key, value);
  }
  // The wide window of `layered`, which the frame spells by layer.
  if (own.contains("early_window") && in_force["early"] != "none")
    oracle.keys.emplace_back("window@" + in_force["early"], in_force["early_window"]);
  return oracle;
}

}  // namespace

Result<ProbeArms> PlanProbe(
    const Json& policies, const std::string& policy,
    const std::function<Result<std::string>(const std::string& spec)>& canonical) {
  const Result<std::string> spelled = canonical(policy);
  if (!spelled.ok()) return Error{spelled.error()};
  const std::string& text = spelled.value();
  const Result<PolicySpec> parsed = ParseSpec(text);
  if (!parsed.ok()) return Error{parsed.error()};
  const PolicySpec& spec = parsed.value();
  if (HasKey(spec, "dense_layers")) {
    return Error{fmt::format(
        "the probe keeps layers dense itself: give policy '{}' without dense_layers", text)};
  }
  if (HasKey(spec, "budget")) {
    return Error{fmt::format(
        "the probe compares equal blocks, and a budget in bytes buys the oracle more of them: give "
        "policy '{}' with blocks= or tokens=",
        text)};
  }
  const Defaults own = DefaultsOf(policies, spec.name);
  if (!own.contains("dense_layers")) {
    return Error{fmt::format(
        "the probe measures layers one by one, which policy '{}' cannot do: it has no key "
        "dense_layers",
        text)};
  }
  if (!own.contains("blocks")) {
    return Error{fmt::format(
        "the probe compares distant blocks, and policy '{}' has no key blocks= for them", text)};
  }
  const Result<std::string> base = canonical(PrintSpec(BaseOf(spec)));
  if (!base.ok()) return Error{fmt::format("no base for policy '{}': {}", text, base.error())};
  const Result<std::string> oracle =
      canonical(PrintSpec(OracleOf(spec, own, DefaultsOf(policies, "oracle"))));
  if (!oracle.ok())
    return Error{fmt::format("no oracle reads as policy '{}' does: {}", text, oracle.error())};
  return ProbeArms{text, base.value(), oracle.value()};
}

}  // namespace condense
