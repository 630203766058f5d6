#include "lab/observation.h"

#include <algorithm>

namespace condense {
namespace {

void OnObservation(const condense_observation* observations, size_t n, void* user) {
  static_cast<ObservedMass*>(user)->Take(observations, n);
}

}  // namespace

ScopedObserver::ScopedObserver(const Plugin& plugin, ObservedMass& mass) : plugin_(plugin) {
  plugin_.SetObserver(OnObservation, &mass);
}

ScopedObserver::~ScopedObserver() { plugin_.SetObserver(nullptr, nullptr); }

void ObservedMass::Take(const condense_observation* observations, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const condense_observation& seen = observations[i];
    layers_[seen.layer].current.push_back({seen.omitted_mass, seen.value_norm_max});
  }
}

ObservedMass::Decision ObservedMass::EndDecision() {
  Decision decision;
  size_t n_heads = 0;
  for (auto& [layer, sums] : layers_) {
    if (sums.current.empty()) continue;
    for (const HeadOmission& head : sums.current) {
      decision.mean += head.omitted_mass;
      decision.max = std::max(decision.max, head.omitted_mass);
      sums.mass += head.omitted_mass;
      sums.mass_max = std::max(sums.mass_max, head.omitted_mass);
    }
    n_heads += sums.current.size();
    sums.n_heads += sums.current.size();
    sums.bound += LayerBound(sums.current);
    ++sums.n_decisions;
    sums.current.clear();
  }
  if (n_heads > 0) decision.mean /= static_cast<double>(n_heads);
  return decision;
}

std::map<int, ObservedMass::Layer> ObservedMass::Layers() const {
  std::map<int, Layer> layers;
  for (const auto& [layer, sums] : layers_) {
    if (sums.n_decisions == 0) continue;
    layers[layer] = {sums.mass / static_cast<double>(sums.n_heads), sums.mass_max,
                     sums.bound / static_cast<double>(sums.n_decisions)};
  }
  return layers;
}

}  // namespace condense
