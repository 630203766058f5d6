#include "select/key_reader.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace condense {

namespace {

constexpr int kLastLayer = std::numeric_limits<int>::max();

}  // namespace

Result<LayerRange> ParseLayers(std::string_view text) {
  const size_t dash = text.find('-');
  const Result<int64_t> first = ParseInt(text.substr(0, dash));
  Result<int64_t> last = first;
  if (dash != std::string_view::npos) {
    last = dash + 1 == text.size() ? int64_t{kLastLayer} : ParseInt(text.substr(dash + 1));
  }
  if (!first.ok() || !last.ok() || first.value() < 0 || last.value() < first.value() ||
      last.value() > kLastLayer) {
    return Error{Quote(text) +
                 " is no range of layers (such as 0-7, 7, or 12- for all from 12 on)"};
  }
  return LayerRange{static_cast<int>(first.value()), static_cast<int>(last.value())};
}

PolicyKey DenseLayersKey() { return {"dense_layers", "none", "layers kept dense: 0-1, 7 or none"}; }

std::string PrintLayers(LayerRange layers) {
  std::string text = std::to_string(layers.first);
  if (layers.last == layers.first) return text;
  text += '-';
  return layers.last == kLastLayer ? text : text + std::to_string(layers.last);
}

KeyReader::KeyReader(const PolicyInfo& info, const PolicySpec& spec) : info_(info) {
  entries_.reserve(info.keys.size() + spec.keys.size());
  for (const PolicyKey& key : info.keys) {
    Entry entry;
    entry.key = &key;
    for (const auto& [name, value] : spec.keys) {
      if (name != key.name) continue;
      entry.given = &value;
      entry.spelled = &name;
    }
    entries_.push_back(entry);
    if (key.per_layer) AddLayers(key, spec);
  }
}

void KeyReader::AddLayers(const PolicyKey& key, const PolicySpec& spec) {
  const size_t first = entries_.size();
  for (const auto& [name, value] : spec.keys) {
    if (!name.starts_with(key.name + "@")) continue;
    const Result<LayerRange> layers = ParseLayers(name.substr(key.name.size() + 1));
    if (!layers.ok()) {
      FailAt(name, name + ": " + layers.error());
      continue;
    }
    Entry entry;
    entry.key = &key;
    entry.layers = layers.value();
    entry.given = &value;
    entry.spelled = &name;
    entries_.push_back(entry);
  }
  std::sort(entries_.begin() + static_cast<std::ptrdiff_t>(first), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.layers->first < b.layers->first; });
  for (size_t i = first + 1; i < entries_.size(); ++i) {
    if (entries_[i].layers->first > entries_[i - 1].layers->last) continue;
    FailAt(*entries_[i].spelled, entries_[i - 1].Name() + " and " + entries_[i].Name() +
                                     " overlap: a layer takes one value");
  }
}

std::string KeyReader::Entry::Name() const {
  return layers ? key->name + "@" + PrintLayers(*layers) : key->name;
}

bool KeyReader::Given(std::string_view key) const { return Find(key).given != nullptr; }

bool KeyReader::GivenAtLayer(std::string_view key) const { return Find(key).layers.has_value(); }

std::string KeyReader::Where() const {
  return layer_ ? " in layer " + std::to_string(*layer_) : std::string();
}

std::vector<LayerRange> KeyReader::LayerRuns() const {
  std::vector<int64_t> edges;
  for (const Entry& entry : entries_) {
    if (!entry.layers) continue;
    edges.push_back(entry.layers->first);
    edges.push_back(int64_t{entry.layers->last} + 1);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<LayerRange> runs;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    const LayerRange run{static_cast<int>(edges[i]), static_cast<int>(edges[i + 1] - 1)};
    const bool covered = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.layers && entry.layers->Contains(run.first);
    });
    if (covered) runs.push_back(run);
  }
  return runs;
}

const KeyReader::Entry& KeyReader::Find(std::string_view key) const {
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.key->name != key) continue;
    if (!entry.layers || (layer_ && entry.layers->Contains(*layer_))) found = &entry;
  }
  CONDENSE_CHECK(found != nullptr);  // a policy asks for a key that it declares
  return *found;
}

KeyReader::Entry& KeyReader::Read(std::string_view key) {
  Entry& entry = const_cast<Entry&>(Find(key));
  entry.read = true;
  return entry;
}

const std::string& KeyReader::Text(const Entry& entry) {
  return entry.given != nullptr ? *entry.given : entry.key->default_value;
}

void KeyReader::Fail(const std::string& message) {
  if (error_.empty()) error_ = info_.name + ": " + message;
}

void KeyReader::FailAt(const std::string& spelled, const std::string& message) {
  if (error_.empty()) wrong_key_ = spelled;
  Fail(message);
}

template <typename T, typename Parse, typename Print>
T KeyReader::Parsed(std::string_view key, T min, T max, Parse parse, Print print) {
  Entry& entry = Read(key);
  const auto value = parse(Text(entry));
  if (!value.ok()) {
    // A default that does not parse is the policy's mistake.
    CONDENSE_CHECK(entry.given != nullptr);
    FailAt(*entry.spelled, entry.Name() + ": " + value.error());
    return min;
  }
  const T number = value.value();
  if (number < min || number > max) {
    CONDENSE_CHECK(entry.given != nullptr);
    FailAt(*entry.spelled, entry.Name() + "=" + Text(entry) + " is out of range: " + print(min) +
                               " to " + print(max));
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
    FailAt(*entry.spelled, entry.key->name + "=" + text + " is unknown" + DidYouMean(text, names) +
                               " (" + JoinNames(names) + ")");
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
  const Result<LayerRange> layers = ParseLayers(text);
  if (!layers.ok() || layers.value().last == kLastLayer) {
    CONDENSE_CHECK(entry.given != nullptr);
    FailAt(*entry.spelled,
           entry.Name() + ": " + Quote(text) + " is no range of layers (such as 0-1, 7 or none)");
    return {};
  }
  entry.canonical = PrintLayers(layers.value());
  return layers.value();
}

const KeyReader::Entry* KeyReader::Unread() const {
  for (const Entry& entry : entries_) {
    if (entry.given != nullptr && !entry.read) return &entry;
  }
  return nullptr;
}

Status KeyReader::Finish() const {
  if (!error_.empty()) return Error{error_};
  const Entry* unread = Unread();
  if (unread == nullptr) return {};
  return Error{info_.name + ": " + unread->Name() + "=" + *unread->given +
               " has no effect beside the other keys"};
}

std::string KeyReader::WrongKey() const {
  if (!error_.empty()) return wrong_key_;
  const Entry* unread = Unread();
  return unread != nullptr ? *unread->spelled : "";
}

std::string KeyReader::CanonicalSpec() const {
  PolicySpec spec{.name = info_.name, .keys = {}};
  for (const Entry& entry : entries_) {
    if (!entry.read) continue;
    if (entry.layers || entry.key->always_printed || entry.canonical != entry.key->default_value) {
      spec.keys.emplace_back(entry.Name(), entry.canonical);
    }
  }
  return PrintSpec(spec);
}

}  // namespace condense
