#include "lab/observation.h"

#include <algorithm>
#include <utility>

namespace condense {

ScopedObserver::ScopedObserver(const Plugin& plugin, Take take, bool with_logits)
    : plugin_(plugin), take_(std::move(take)) {
  plugin_.ObserveLogits(with_logits);
  plugin_.SetObserver(
      [](const condense_observation* observations, size_t n, void* user) {
        static_cast<ScopedObserver*>(user)->take_({observations, n});
      },
      this);
}

ScopedObserver::~ScopedObserver() {
  plugin_.SetObserver(nullptr, nullptr);
  plugin_.ObserveLogits(false);
}

void ObservedMass::Take(const condense_observation* observations, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const condense_observation& seen = observations[i];
    LayerSums& sums = layers_[seen.layer];
    sums.current.push_back({seen.omitted_mass, seen.value_norm_max});
    const auto head = static_cast<size_t>(seen.query_head);
    if (sums.heads.size() <= head) sums.heads.resize(head + 1, 0.0);
    sums.heads[head] += seen.omitted_mass;
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
    const auto n = static_cast<double>(sums.n_decisions);
    Layer& out = layers[layer];
    out = {sums.mass / static_cast<double>(sums.n_heads), sums.mass_max, sums.bound / n, {}};
    for (double sum : sums.heads) out.head_means.push_back(sum / n);
  }
  return layers;
}

}  // namespace condense
