#include "lab/spec_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "base/text.h"

// As in the plug-in's room: header-only, nothing thrown.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace condense {
namespace {

int LineOf(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

template <typename T>
constexpr const char* kKind = "a whole number";
template <>
constexpr const char* kKind<double> = "a number";
template <>
constexpr const char* kKind<bool> = "true or false";
template <>
constexpr const char* kKind<std::string> = "a text in quotes";

template <typename T>
std::optional<T> ValueOf(const toml::node& node) {
  if constexpr (std::is_same_v<T, double>) {
    if (const auto whole = node.value_exact<int64_t>()) return static_cast<double>(*whole);
  }
  return node.value_exact<T>();
}

template <typename T>
std::string Shown(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return Quote(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return PrintNumber(value);
  } else {
    return fmt::format("{}", value);
  }
}

}  // namespace

struct SpecReader::Node {
  const toml::table* given = nullptr;     // null where the user's spec has no such table
  const toml::table* defaults = nullptr;  // null only where the default spec has none either
  std::string name;                       // "[policies]"; "" at the top
  std::set<std::string, std::less<>> read;
};

struct SpecReader::Shared {
  toml::table given, defaults;
  std::string path, error;
  PolicyCheck check_policy;
  std::vector<std::unique_ptr<Node>> nodes;

  void Fail(int line, const std::string& what) {
    if (error.empty()) error = SpecPlace(path, line) + what;
  }
  Node* Add(const toml::table* own, const toml::table* fallback, std::string name) {
    nodes.push_back(std::make_unique<Node>(Node{own, fallback, std::move(name), {}}));
    return nodes.back().get();
  }
};

SpecReader::SpecReader(std::shared_ptr<Shared> shared, Node* node)
    : shared_(std::move(shared)), node_(node) {}

Result<SpecReader> SpecReader::Parse(std::string_view text, const std::string& path,
                                     std::string_view defaults) {
  toml::parse_result given = toml::parse(text);
  if (!given) {
    const toml::parse_error& wrong = given.error();
    return Error{SpecPlace(path, static_cast<int>(wrong.source().begin.line)) +
                 std::string(wrong.description())};
  }
  toml::parse_result fallback = toml::parse(defaults);
  CONDENSE_CHECK(fallback);
  auto shared = std::make_shared<Shared>();
  shared->given = std::move(given).table();
  shared->defaults = std::move(fallback).table();
  shared->path = path;
  Node* top = shared->Add(&shared->given, &shared->defaults, "");
  return SpecReader(std::move(shared), top);
}

void SpecReader::CheckPoliciesWith(PolicyCheck check) { shared_->check_policy = std::move(check); }

bool SpecReader::Given(std::string_view key) const {
  return node_->given != nullptr && node_->given->contains(key);
}

// The node of the user's spec, else of the default one.
const void* SpecReader::Find(std::string_view key, bool& given) {
  node_->read.emplace(key);
  const toml::node* node = node_->given ? node_->given->get(key) : nullptr;
  given = node != nullptr;
  if (node == nullptr && node_->defaults) node = node_->defaults->get(key);
  if (node == nullptr) {
    // Only tables of a list may lack a key that their default has not.
    shared_->Fail(node_->given ? LineOf(*node_->given) : 0,
                  fmt::format("{} has no key {}", node_->name, Quote(key)));
  }
  return node;
}

template <typename T>
std::vector<T> SpecReader::List(std::string_view key, size_t least, const char* kind) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  if (node == nullptr) return {};
  std::vector<T> values;
  const toml::array* list = node->as_array();
  if (list == nullptr) {
    // A single value is a list of one.
    if (const auto value = ValueOf<T>(*node)) return {*value};
    shared_->Fail(LineOf(*node), fmt::format("{} is not {}, or a list of such", key, kind));
    return {};
  }
  for (const toml::node& item : *list) {
    const auto value = ValueOf<T>(item);
    if (!value) {
      shared_->Fail(LineOf(item), fmt::format("{} holds something that is not {}", key, kind));
      return {};
    }
    if (std::find(values.begin(), values.end(), *value) != values.end()) {
      shared_->Fail(LineOf(item), fmt::format("{} holds {} twice", key, Shown(*value)));
    }
    values.push_back(*value);
  }
  if (values.size() < least) {
    shared_->Fail(LineOf(*node),
                  fmt::format("{} holds {} values: give {} or more", key, values.size(), least));
  }
  return values;
}

int64_t SpecReader::Int(std::string_view key, int64_t min, int64_t max) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  if (node == nullptr) return min;
  const auto value = ValueOf<int64_t>(*node);
  if (!value || *value < min || *value > max) {
    shared_->Fail(LineOf(*node), fmt::format("{} must be a whole number from {} to {}{}", key, min,
                                             max, value ? ", not " + Shown(*value) : ""));
  }
  return std::clamp(value.value_or(min), min, max);
}

double SpecReader::Number(std::string_view key, double min, double max) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  if (node == nullptr) return min;
  const auto value = ValueOf<double>(*node);
  if (!value || !(*value >= min && *value <= max)) {
    shared_->Fail(LineOf(*node),
                  fmt::format("{} must be a number from {} to {}{}", key, PrintNumber(min),
                              PrintNumber(max), value ? ", not " + Shown(*value) : ""));
    return min;
  }
  return *value;
}

bool SpecReader::Flag(std::string_view key) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  const auto value = node ? ValueOf<bool>(*node) : std::optional<bool>(false);
  if (!value) shared_->Fail(LineOf(*node), fmt::format("{} must be true or false", key));
  return value.value_or(false);
}

std::string SpecReader::Text(std::string_view key) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  if (node == nullptr) return "";
  const auto value = ValueOf<std::string>(*node);
  if (!value) shared_->Fail(LineOf(*node), fmt::format("{} is no text: write it in quotes", key));
  return value.value_or("");
}

std::string SpecReader::Choice(std::string_view key, const std::vector<std::string>& names) {
  std::string value = Text(key);
  if (ok() && std::find(names.begin(), names.end(), value) == names.end()) {
    Fail(key, fmt::format("{} is {}, which is none of {}{}", key, Quote(value), JoinNames(names),
                          DidYouMean(value, names)));
  }
  return value;
}

std::vector<int64_t> SpecReader::Ints(std::string_view key, int64_t min, int64_t max,
                                      size_t least) {
  std::vector<int64_t> values = List<int64_t>(key, least, kKind<int64_t>);
  for (int64_t value : values) {
    if (value < min || value > max)
      Fail(key, fmt::format("{} holds {}, which is not from {} to {}", key, value, min, max));
  }
  return values;
}

std::vector<double> SpecReader::Numbers(std::string_view key, double min, double max,
                                        size_t least) {
  std::vector<double> values = List<double>(key, least, kKind<double>);
  for (double value : values) {
    if (!(value >= min && value <= max)) {
      Fail(key, fmt::format("{} holds {}, which is not from {} to {}", key, PrintNumber(value),
                            PrintNumber(min), PrintNumber(max)));
    }
  }
  return values;
}

std::vector<std::string> SpecReader::Texts(std::string_view key, size_t least) {
  return List<std::string>(key, least, kKind<std::string>);
}

std::string SpecReader::Policy(std::string_view key) {
  std::string policy = Text(key);
  CheckPolicy(key, policy, policy);
  return policy;
}

std::vector<std::string> SpecReader::Policies(std::string_view key, size_t least) {
  std::vector<std::string> policies = Texts(key, least);
  for (const std::string& policy : policies) CheckPolicy(key, policy, policy);
  return policies;
}

void SpecReader::CheckPolicy(std::string_view key, const std::string& value,
                             const std::string& policy) {
  if (!ok() || !shared_->check_policy) return;
  const Status known = shared_->check_policy(policy);
  if (!known.ok()) Fail(key, value, known.error());
}

SpecReader SpecReader::Table(std::string_view key) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  if (node != nullptr && !node->is_table())
    shared_->Fail(LineOf(*node), fmt::format("{} is no table: write [{}]", key, key));
  const toml::node* fallback = node_->defaults ? node_->defaults->get(key) : nullptr;
  const toml::table* own = given && node ? node->as_table() : nullptr;
  return {shared_,
          shared_->Add(own, fallback ? fallback->as_table() : nullptr, fmt::format("[{}]", key))};
}

std::vector<SpecReader> SpecReader::Tables(std::string_view key, size_t least) {
  bool given = false;
  const auto* node = static_cast<const toml::node*>(Find(key, given));
  const toml::array* list = node ? node->as_array() : nullptr;
  if (node != nullptr && (list == nullptr || (!list->empty() && !list->is_array_of_tables()))) {
    shared_->Fail(LineOf(*node), fmt::format("{} is no list of tables: write [[{}]]", key, key));
    return {};
  }
  const toml::node* fallback = node_->defaults ? node_->defaults->get(key) : nullptr;
  const toml::array* defaults = fallback ? fallback->as_array() : nullptr;
  const toml::table* first =
      defaults && !defaults->empty() ? defaults->front().as_table() : nullptr;
  std::vector<SpecReader> readers;
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const toml::table* own = (*list)[i].as_table();
    readers.push_back({shared_, shared_->Add(given ? own : nullptr, given ? first : own,
                                             fmt::format("[[{}]]", key))});
  }
  if (readers.size() < least && node != nullptr) {
    shared_->Fail(LineOf(*node),
                  fmt::format("{} has {} tables: give {} or more", key, readers.size(), least));
  }
  return readers;
}

void SpecReader::Fail(std::string_view key, const std::string& what) {
  const toml::node* node = node_->given ? node_->given->get(key) : nullptr;
  shared_->Fail(node ? LineOf(*node) : 0, what);
}

void SpecReader::Fail(std::string_view key, const std::string& value, const std::string& what) {
  const toml::node* node = node_->given ? node_->given->get(key) : nullptr;
  const toml::array* list = node ? node->as_array() : nullptr;
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if (ValueOf<std::string>((*list)[i]) == value) node = &(*list)[i];
  }
  shared_->Fail(node ? LineOf(*node) : 0, fmt::format("{} = {}: {}", key, Quote(value), what));
}

bool SpecReader::ok() const { return shared_->error.empty(); }

Status SpecReader::Finish() const {
  if (!ok()) return Error{shared_->error};
  // The first in the file, whichever table it is in.
  int line = 0;
  std::string what;
  for (const auto& node : shared_->nodes) {
    if (node->given == nullptr) continue;
    const std::vector<std::string> known(node->read.begin(), node->read.end());
    for (const auto& [key, value] : *node->given) {
      const int at = static_cast<int>(key.source().begin.line);
      if (node->read.contains(key.str()) || (line != 0 && at >= line)) continue;
      line = at;
      what = fmt::format("key {}{} is unknown{} (keys: {})", Quote(key.str()),
                         node->name.empty() ? "" : " of " + node->name,
                         DidYouMean(key.str(), known), JoinNames(known));
    }
  }
  if (line == 0) return Status();
  return Error{SpecPlace(shared_->path, line) + what};
}

std::string SpecPlace(const std::string& path, int line) {
  return "spec " + Quote(path) + (line > 0 ? fmt::format(", line {}", line) : "") + ": ";
}

}  // namespace condense
