// Policies by name: specs in, policies out. A spec is `name` or `name:key=value,key=value`, one
// spelling everywhere (flags, CONDENSE_POLICY, the C interface, records). A comma within a value is
// spelled `\,` and a backslash before either `\\`. `@FILE` stands for the spec of a policy file
// (select/policy_file.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "select/policy.h"
#include "select/policy_provenance.h"

namespace condense {

// A parsed spec: the name, and the keys in the order given.
struct PolicySpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> keys;

  bool operator==(const PolicySpec&) const = default;
};
Result<PolicySpec> ParseSpec(std::string_view text);
std::string PrintSpec(const PolicySpec& spec);

struct PolicyKey {
  std::string name;
  std::string default_value;  // as it is spelled in a spec; "" where there is none
  std::string help;           // one line: meaning, unit, range
  // The canonical spec prints it even at its default: what decides how much is read.
  bool always_printed = false;
  // May differ by layer: the spec then also takes window@0-7=…, window@12-=….
  bool per_layer = false;
  // Has no default: its policy refuses a spec without it, with a message of its own.
  bool required = false;
};

// What attention follows where nobody says otherwise.
inline constexpr const char* kDefaultPolicy = "condense";

// Typed reading of a spec's keys: select/key_reader.h.
class KeyReader;

struct PolicyInfo {
  std::string name;
  std::string summary;  // one line: the rule
  std::string source;   // paper or code it follows
  std::string label;    // what the original does that ours does not; "" for nothing
  std::vector<PolicyKey> keys;
  // Reads the keys and makes the policy; what it returns after an error is thrown away.
  std::function<std::unique_ptr<Policy>(KeyReader&)> make;
};

// A made policy with its canonical spec: keys in registry order, defaults left out, except the key
// that decides how much is read (`mean` is mean:blocks=8). Making the canonical spec gives the same
// policy and spec.
struct BoundPolicy {
  std::unique_ptr<Policy> policy;
  std::string spec;
  PolicyProvenance made;  // as the file says that the text named, if it named one
};

// `text`: a spec, or @FILE; errors about a file name it and the line.
Result<BoundPolicy> MakePolicy(std::string_view text);
std::vector<const PolicyInfo*> RegisteredPolicies();  // by name, ascending
// [{"name", "summary", "source", "label", "keys": [{"name", "default", "help"}]}], as condense.h
// says.
std::string PoliciesJson();

// One a policy file, at namespace scope: CONDENSE_REGISTER_POLICY(mean, {.name = "mean", …});
struct PolicyRegistrar {
  explicit PolicyRegistrar(PolicyInfo info);
};
#define CONDENSE_REGISTER_POLICY(identifier, ...) \
  static const ::condense::PolicyRegistrar identifier##_registrar { __VA_ARGS__ }

}  // namespace condense
