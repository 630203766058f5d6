// The grammar of specs and the table of policies. The table is filled by registrars before main; it
// is only read afterwards.
#include "select/registry.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "select/key_reader.h"
#include "select/policy_file.h"

namespace condense {
namespace {

std::map<std::string, PolicyInfo>& Table() {
  static std::map<std::string, PolicyInfo> table;
  return table;
}

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '@';
}

bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsNameChar);
}

// A name, or one with layers behind '@', which may hold a '-'.
bool IsKey(std::string_view text) {
  const size_t at = std::min(text.find('@'), text.size());
  const std::string_view layers = text.substr(at);
  return !text.empty() && (at == 0 || IsName(text.substr(0, at))) &&
         std::all_of(layers.begin(), layers.end(),
                     [](char c) { return IsNameChar(c) || c == '-'; });
}

bool IsEscaped(char c) { return c == ',' || c == '\\'; }

// Nothing where the policy takes the key, which may carry layers.
Status CheckKey(const PolicyInfo& info, const std::string& name) {
  const size_t at = name.find('@');
  std::vector<std::string> keys, by_layer;
  const PolicyKey* found = nullptr;
  for (const PolicyKey& key : info.keys) {
    keys.push_back(key.name);
    if (key.per_layer) by_layer.push_back(key.name);
    if (key.name == name.substr(0, at)) found = &key;
  }
  if (found == nullptr) {
    return Error{"policy " + Quote(info.name) + " has no key " + Quote(name) +
                 DidYouMean(name.substr(0, at), keys) + " (keys: " + JoinNames(keys) + ")"};
  }
  if (at == std::string::npos || found->per_layer) return {};
  return Error{
      "policy " + Quote(info.name) + ": " + found->name + " is the same in every layer" +
      (by_layer.empty() ? "" : " (keys that may differ by layer: " + JoinNames(by_layer) + ")")};
}

// Where the part at the beginning of `text` ends: its first comma without a backslash before it.
size_t EndOfPart(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == ',') return at;
    if (text[at] == '\\' && at + 1 < text.size() && IsEscaped(text[at + 1])) ++at;
  }
  return std::string_view::npos;
}

// The value that a spec spells so, and back.
std::string Unescape(std::string_view text) {
  std::string value;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size() && IsEscaped(text[at + 1])) ++at;
    value += text[at];
  }
  return value;
}

std::string Escape(std::string_view value) {
  std::string text;
  for (char c : value) {
    if (IsEscaped(c)) text += '\\';
    text += c;
  }
  return text;
}

}  // namespace

Result<PolicySpec> ParseSpec(std::string_view text) {
  if (text.empty()) {
    return Error{"the policy spec is empty: write a name, or name:key=value,key=value"};
  }
  const std::string where = " in policy spec " + Quote(text);
  const size_t colon = text.find(':');
  PolicySpec spec{.name = std::string(text.substr(0, colon)), .keys = {}};
  if (spec.name.empty()) return Error{"no name before ':'" + where};
  if (!IsName(spec.name)) {
    return Error{Quote(spec.name) + " is no name (lower-case letters, digits, '_')" + where};
  }
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  if (rest.empty()) return Error{"nothing follows ':'" + where};
  while (true) {
    const size_t comma = EndOfPart(rest);
    const std::string_view part = rest.substr(0, comma);
    if (part.empty()) return Error{"an empty part before ','" + where};
    const size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    if (!IsKey(key)) {
      return Error{Quote(key) + " is no key (lower-case letters, digits, '_')" + where};
    }
    if (equals == std::string_view::npos || equals + 1 == part.size()) {
      return Error{"key " + Quote(key) + " has no value: write " + key + "=…" + where};
    }
    for (const auto& [name, value] : spec.keys) {
      if (name == key) return Error{"key " + Quote(key) + " is given twice" + where};
    }
    spec.keys.emplace_back(key, Unescape(part.substr(equals + 1)));
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
    if (rest.empty()) return Error{"nothing follows the last ','" + where};
  }
}

std::string PrintSpec(const PolicySpec& spec) {
  std::string text = spec.name;
  char separator = ':';
  for (const auto& [name, value] : spec.keys) {
    text += separator + name + "=" + Escape(value);
    separator = ',';
  }
  return text;
}

namespace {

// `wrong_key`: what the error is about, where it is one key.
Result<BoundPolicy> MakeFrom(const PolicySpec& spec, std::string& wrong_key) {
  const auto found = Table().find(spec.name);
  if (found == Table().end()) {
    std::vector<std::string> names;
    for (const auto& [name, info] : Table()) names.push_back(name);
    const std::string near = DidYouMean(spec.name, names);
    return Error{"policy " + Quote(spec.name) + " is unknown" +
                 (near.empty() ? " (policies: " + JoinNames(names) + ")" : near)};
  }
  const PolicyInfo& info = found->second;
  for (const auto& [name, value] : spec.keys) {
    const Status status = CheckKey(info, name);
    if (status.ok()) continue;
    wrong_key = name;
    return Error{status.error()};
  }
  KeyReader reader(info, spec);
  BoundPolicy bound{.policy = info.make(reader), .spec = "", .made = {}};
  const Status status = reader.Finish();
  if (!status.ok()) {
    wrong_key = reader.WrongKey();
    return Error{status.error()};
  }
  CONDENSE_CHECK(bound.policy != nullptr);
  bound.spec = reader.CanonicalSpec();
  return bound;
}

}  // namespace

Result<BoundPolicy> MakePolicy(std::string_view text) {
  std::string wrong_key;
  if (!NamesPolicyFile(text)) {
    const Result<PolicySpec> spec = ParseSpec(text);
    if (!spec.ok()) return Error{spec.error()};
    return MakeFrom(spec.value(), wrong_key);
  }
  const std::string path = PolicyFilePath(text);
  Result<PolicyFile> file = ReadPolicyFile(path);
  if (!file.ok()) return Error{file.error()};
  Result<BoundPolicy> bound = MakeFrom(file->spec, wrong_key);
  if (bound.ok()) {
    bound->made = std::move(file->made);
    return bound;
  }
  const auto line = file->key_lines.find(wrong_key);
  return Error{
      PolicyFilePlace(path, line == file->key_lines.end() ? file->spec_line : line->second) +
      bound.error()};
}

std::vector<const PolicyInfo*> RegisteredPolicies() {
  std::vector<const PolicyInfo*> infos;
  for (const auto& [name, info] : Table()) infos.push_back(&info);
  return infos;
}

std::string PoliciesJson() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PolicyInfo* info : RegisteredPolicies()) {
    nlohmann::ordered_json keys = nlohmann::ordered_json::array();
    for (const PolicyKey& key : info->keys) {
      keys.push_back({{"name", key.name}, {"default", key.default_value}, {"help", key.help}});
    }
    list.push_back({{"name", info->name},
                    {"summary", info->summary},
                    {"source", info->source},
                    {"label", info->label},
                    {"keys", keys}});
  }
  return list.dump();
}

PolicyRegistrar::PolicyRegistrar(PolicyInfo info) {
  CONDENSE_CHECK(IsName(info.name) && info.make != nullptr);
  const std::string name = info.name;
  CONDENSE_CHECK(Table().emplace(name, std::move(info)).second);
}

}  // namespace condense
