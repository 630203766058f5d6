#include "select/key_reader.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace condense {

KeyReader::KeyReader(const PolicyInfo& info, const PolicySpec& spec) : info_(info) {
  entries_.reserve(info.keys.size());
  for (const PolicyKey& key : info.keys) {
    Entry entry;
    entry.key = &key;
    for (const auto& [name, value] : spec.keys) {
      if (name == key.name) entry.given = &value;
    }
    entries_.push_back(entry);
  }
}

bool KeyReader::Given(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.key->name == key) return entry.given != nullptr;
  }
  CONDENSE_CHECK(!"a policy asks for a key that it does not declare");
  return false;
}

KeyReader::Entry& KeyReader::Read(std::string_view key) {
  for (Entry& entry : entries_) {
    if (entry.key->name != key) continue;
    entry.read = true;
    return entry;
  }
  CONDENSE_CHECK(!"a policy reads a key that it does not declare");
  return entries_.front();
}

const std::string& KeyReader::Text(const Entry& entry) {
  return entry.given != nullptr ? *entry.given : entry.key->default_value;
}

void KeyReader::Fail(const std::string& message) {
  if (error_.empty()) error_ = info_.name + ": " + message;
}

void KeyReader::FailKey(const Entry& entry, const std::string& what) {
  Fail(entry.key->name + ": " + what);
}

void KeyReader::FailRange(const Entry& entry, const std::string& min, const std::string& max) {
  Fail(entry.key->name + "=" + Text(entry) + " is out of range: " + min + " to " + max);
}

template <typename T, typename Parse, typename Print>
T KeyReader::Parsed(std::string_view key, T min, T max, Parse parse, Print print) {
  Entry& entry = Read(key);
  const auto value = parse(Text(entry));
  if (!value.ok()) {
    // A default that does not parse is the policy's mistake.
    CONDENSE_CHECK(entry.given != nullptr);
    FailKey(entry, value.error());
    return min;
  }
  const T number = value.value();
  if (number < min || number > max) {
    CONDENSE_CHECK(entry.given != nullptr);
    FailRange(entry, print(min), print(max));
    return min;
  }
  entry.canonical = print(number);
  return number;
}

int64_t KeyReader::Int(std::string_view key, int64_t min, int64_t max) {
  return Parsed<int64_t>(key, min, max, ParseInt, [](int64_t n) { return std::to_string(n); });
}

std::optional<int64_t> KeyReader::IntOrAuto(std::string_view key, int64_t min, int64_t max) {
  Entry& entry = Read(key);
  if (Text(entry) == "auto") {
    entry.canonical = "auto";
    return std::nullopt;
  }
  return Int(key, min, max);
}

double KeyReader::Number(std::string_view key, double min, double max) {
  return Parsed<double>(key, min, max, ParseNumber, PrintNumber);
}

std::optional<double> KeyReader::NumberOrOff(std::string_view key, double min, double max) {
  Entry& entry = Read(key);
  if (Text(entry) == "off") {
    entry.canonical = "off";
    return std::nullopt;
  }
  return Number(key, min, max);
}

double KeyReader::Percent(std::string_view key, double min, double max) {
  return Parsed<double>(key, min, max, ParsePercent,
                        [](double value) { return PrintNumber(value) + "%"; });
}

int KeyReader::Choice(std::string_view key, const std::vector<std::string>& names) {
  Entry& entry = Read(key);
  const std::string& text = Text(entry);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    CONDENSE_CHECK(entry.given != nullptr);
    Fail(entry.key->name + "=" + text + " is unknown" + DidYouMean(text, names) + " (" +
         JoinNames(names) + ")");
    return 0;
  }
  entry.canonical = text;
  return static_cast<int>(found - names.begin());
}

std::string KeyReader::String(std::string_view key) {
  Entry& entry = Read(key);
  entry.canonical = Text(entry);
  return entry.canonical;
}

bool KeyReader::Bool(std::string_view key) { return Choice(key, {"off", "on"}) == 1; }

LayerRange KeyReader::Layers(std::string_view key) {
  Entry& entry = Read(key);
  const std::string& text = Text(entry);
  if (text == "none") {
    entry.canonical = text;
    return {};
  }
  const size_t dash = text.find('-');
  const Result<int64_t> first = ParseInt(text.substr(0, dash));
  const Result<int64_t> last = dash == std::string::npos ? first : ParseInt(text.substr(dash + 1));
  if (!first.ok() || !last.ok() || first.value() < 0 || last.value() < first.value() ||
      last.value() > std::numeric_limits<int>::max()) {
    CONDENSE_CHECK(entry.given != nullptr);
    FailKey(entry, Quote(text) + " is no range of layers (such as 0-1, 7 or none)");
    return {};
  }
  entry.canonical = std::to_string(first.value());
  if (last.value() > first.value())
    entry.canonical.append("-").append(std::to_string(last.value()));
  return {static_cast<int>(first.value()), static_cast<int>(last.value())};
}

Status KeyReader::Finish() const {
  if (!error_.empty()) return Error{error_};
  for (const Entry& entry : entries_) {
    if (entry.given != nullptr && !entry.read) {
      return Error{info_.name + ": " + entry.key->name + "=" + *entry.given +
                   " has no effect beside the other keys"};
    }
  }
  return {};
}

std::string KeyReader::CanonicalSpec() const {
  PolicySpec spec{.name = info_.name, .keys = {}};
  for (const Entry& entry : entries_) {
    if (!entry.read) continue;
    if (entry.key->always_printed || entry.canonical != entry.key->default_value) {
      spec.keys.emplace_back(entry.key->name, entry.canonical);
    }
  }
  return PrintSpec(spec);
}

}  // namespace condense
