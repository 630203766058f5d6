// Gathers what the plug-in's observer reports during a teacher-forced run: omitted mass by decision
// and by layer, and the layer bound E_l. Costs a dense attention beside each sparse one, so never
// in a timed run.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "decode/plugin.h"
#include "metrics/teacher.h"

namespace condense {

class ObservedMass {
 public:
  struct Decision {
    double mean = 0, max = 0;  // over layers and query heads; 0 where nothing was observed
  };
  // Ends a decision: what was observed since the last call.
  Decision EndDecision();

  struct Layer {
    double mass_mean = 0, mass_max = 0, bound_mean = 0;
    std::vector<double> head_means;  // of the omitted mass, by query head
  };
  // By layer, over the decisions ended so far.
  std::map<int, Layer> Layers() const;

  // Takes observations as the plug-in hands them over: one node, all heads of one layer.
  void Take(const condense_observation* observations, size_t n);

 private:
  struct LayerSums {
    double mass = 0, mass_max = 0, bound = 0;
    size_t n_heads = 0, n_decisions = 0;
    std::vector<HeadOmission> current;
    std::vector<double> heads;  // sums by query head
  };
  std::map<int, LayerSums> layers_;
};

// Hands `take` what the plug-in observes from construction to destruction: one node, all heads of
// one layer, at a time.
class ScopedObserver {
 public:
  using Take = std::function<void(std::span<const condense_observation>)>;
  // `with_logits`: observations carry the logits of their rows.
  ScopedObserver(const Plugin& plugin, Take take, bool with_logits = false);
  ~ScopedObserver();
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  const Plugin& plugin_;
  const Take take_;
};

}  // namespace condense
