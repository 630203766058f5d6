// Typed reading of a policy spec's keys, for PolicyInfo::make. Every read checks type and range;
// the first error is kept and later reads return what the default says, so a make function needs no
// error handling of its own. A key that was given but never read is an error in the end: no setting
// is silently without effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "select/registry.h"

namespace condense {

// Layers first … last, both included; none where last < first.
struct LayerRange {
  int first = 0, last = -1;
  bool Contains(int layer) const { return layer >= first && layer <= last; }
};

// "0-7", "7" or "12-": all layers from 12 on.
Result<LayerRange> ParseLayers(std::string_view text);
std::string PrintLayers(LayerRange layers);

// The key of policies that may leave layers dense, read by KeyReader::Layers.
PolicyKey DenseLayersKey();

// A key may have values of its own for some layers (`window@0-7=1024`). Reads give the value of
// the layer that AtLayer set, or what holds where no layer says otherwise.
class KeyReader {
 public:
  // Both are borrowed. `spec` names only keys that `info` has.
  KeyReader(const PolicyInfo& info, const PolicySpec& spec);

  const std::string& policy() const { return info_.name; }
  // True where the spec spells the key; says nothing about its value and does not count as a read.
  bool Given(std::string_view key) const;

  // Maximal runs of layers for which the same keys have values of their own, at least one.
  std::vector<LayerRange> LayerRuns() const;
  void AtLayer(int layer) { layer_ = layer; }
  void AtEveryLayer() { layer_.reset(); }
  // True where the spec spells the key for this layer.
  bool GivenAtLayer(std::string_view key) const;
  // "" or " in layer 4", for messages.
  std::string Where() const;

  int64_t Int(std::string_view key, int64_t min, int64_t max);
  // nullopt for "auto".
  std::optional<int64_t> IntOrAuto(std::string_view key, int64_t min, int64_t max);
  double Number(std::string_view key, double min, double max);
  // nullopt for "off".
  std::optional<double> NumberOrOff(std::string_view key, double min, double max);
  // 5 for "5%".
  double Percent(std::string_view key, double min, double max);
  // Index into `names`.
  int Choice(std::string_view key, const std::vector<std::string>& names);
  // As it is spelled.
  std::string String(std::string_view key);
  // "on" or "off".
  bool Bool(std::string_view key);
  // "0-1", "7", or "none".
  LayerRange Layers(std::string_view key);

  // For what the key's type cannot say. The message follows "NAME: ".
  void Fail(const std::string& message);

  // The first error; else a given key that nobody read.
  Status Finish() const;
  // The key that Finish's error is about, as the spec spells it; "" where it is about none.
  std::string WrongKey() const;
  // Meaningful after Finish said ok.
  std::string CanonicalSpec() const;

 private:
  struct Entry {
    const PolicyKey* key = nullptr;
    std::optional<LayerRange> layers;      // none: where no layer says otherwise
    const std::string* given = nullptr;    // null: the default holds
    const std::string* spelled = nullptr;  // the key as the spec has it; null likewise
    std::string canonical;                 // set by a read
    bool read = false;

    std::string Name() const;
  };
  void AddLayers(const PolicyKey& key, const PolicySpec& spec);
  // The entry in force.
  const Entry& Find(std::string_view key) const;
  Entry& Read(std::string_view key);
  static const std::string& Text(const Entry& entry);
  // About a key as the spec has it.
  void FailAt(const std::string& spelled, const std::string& message);
  const Entry* Unread() const;
  template <typename T, typename Parse, typename Print>
  T Parsed(std::string_view key, T min, T max, Parse parse, Print print);

  const PolicyInfo& info_;
  std::vector<Entry> entries_;  // in registry order, those of layers behind their key's, ascending
  std::optional<int> layer_;
  std::string error_, wrong_key_;
};

}  // namespace condense
