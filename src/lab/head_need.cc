#include "lab/head_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "decode/run.h"
#include "lab/mass_probe.h"
#include "lab/observation.h"
#include "lab/runs.h"

namespace condense {
namespace {

// Omitted mass of one KV head of a layer.
struct HeadSum {
  double mass = 0;
  int64_t n_query_heads = 0;  // of all steps
};

class Measurer {
 public:
  Measurer(Session& session, const Plugin& plugin, const HeadNeedSpec& spec,
           const HeadNeedProgress& on_step)
      : session_(session),
        plugin_(plugin),
        spec_(spec),
        on_step_(on_step),
        streaming_(fmt::format("duo:sink={},window={}", spec.sink, spec.window)) {}

  Result<HeadNeeds> Run(const Session::Progress& on_prefill) {
    for (const HeadNeedPrefix& prefix : spec_.prefixes) {
      Status status = Prefill(prefix, on_prefill);
      for (size_t i = 0; status.ok() && i < layers_.size(); ++i) {
        status = MeasureLayer(layers_[i], prefix);
      }
      if (!status.ok()) return Error{status.error()};
      needs_.n_steps += static_cast<int64_t>(prefix.history.size());
    }
    return Finish();
  }

 private:
  // The prompt, and one dense step that shows which layers have attention.
  Status Prefill(const HeadNeedPrefix& prefix, const Session::Progress& on_prefill) {
    const Result<DensePrefillResult> prefill =
        DensePrefill(session_, plugin_, prefix.prompt, {&streaming_, 1}, on_prefill);
    if (!prefill.ok()) return Error{prefill.error()};
    Result<std::vector<int>> layers = AttentionLayers(session_, plugin_, prefix.history.front());
    if (!layers.ok()) return Error{layers.error()};
    layers_ = std::move(layers.value());
    if (layers_.empty())
      return Error{"the plug-in saw no attention of this model: nothing to measure"};
    heads_.resize(std::max(heads_.size(), static_cast<size_t>(layers_.back()) + 1));
    n_total_ = static_cast<int64_t>(layers_.size() * spec_.prefixes.size());
    return Status();
  }

  Status MeasureLayer(int layer, const HeadNeedPrefix& prefix) {
    Status status = BeginRun(session_, plugin_, WithDenseBefore(streaming_, layer));
    if (!status.ok()) return status;
    std::vector<HeadSum> sums;
    const ScopedObserver observer(plugin_, [&](std::span<const condense_observation> node) {
      for (const condense_observation& seen : node) {
        if (seen.layer != layer) continue;
        const auto head = static_cast<size_t>(seen.kv_head);
        if (sums.size() <= head) sums.resize(head + 1);
        sums[head].mass += seen.omitted_mass;
        ++sums[head].n_query_heads;
      }
    });
    status = TeacherForcedRun(session_, prefix.history, [](int, Logits) {});
    if (!status.ok()) return status;
    auto& heads = heads_[layer];
    heads.resize(std::max(heads.size(), sums.size()));
    for (size_t g = 0; g < sums.size(); ++g) {
      heads[g].mass += sums[g].mass;
      heads[g].n_query_heads += sums[g].n_query_heads;
    }
    ++n_done_;
    if (on_step_) on_step_(static_cast<int>(n_done_), static_cast<int>(n_total_));
    return Status();
  }

  // Layers that saw nothing outside have needs of 0, and so have layers without attention.
  Result<HeadNeeds> Finish() {
    needs_.n_layers = std::max(session_.model().n_layers(), static_cast<int>(heads_.size()));
    for (const auto& heads : heads_) {
      const int n = static_cast<int>(heads.size());
      if (n == 0) continue;
      if (needs_.n_kv_heads > 0 && n != needs_.n_kv_heads) {
        return Error{fmt::format(
            "this model has layers of {} and of {} KV heads, which a profile has no place for",
            needs_.n_kv_heads, n)};
      }
      needs_.n_kv_heads = n;
    }
    if (needs_.n_kv_heads == 0) {
      return Error{fmt::format(
          "no step left rows out beside the first {} and the last {}: give a longer prompt",
          spec_.sink, spec_.window)};
    }
    needs_.mass.assign(static_cast<size_t>(needs_.n_layers) * needs_.n_kv_heads, 0.0);
    for (size_t layer = 0; layer < heads_.size(); ++layer) {
      for (size_t g = 0; g < heads_[layer].size(); ++g) {
        const HeadSum& head = heads_[layer][g];
        if (head.n_query_heads == 0) continue;
        needs_.mass[layer * needs_.n_kv_heads + g] =
            head.mass / static_cast<double>(head.n_query_heads);
      }
    }
    return std::move(needs_);
  }

  Session& session_;
  const Plugin& plugin_;
  const HeadNeedSpec& spec_;
  const HeadNeedProgress& on_step_;
  const std::string streaming_;              // every head streams
  std::vector<int> layers_;                  // with attention
  std::vector<std::vector<HeadSum>> heads_;  // by layer, then KV head
  int64_t n_done_ = 0, n_total_ = 1;
  HeadNeeds needs_;
};

}  // namespace

double HeadNeeds::Largest() const {
  return mass.empty() ? 0 : *std::max_element(mass.begin(), mass.end());
}

Result<HeadNeeds> MeasureHeadNeeds(Session& session, const Plugin& plugin, const HeadNeedSpec& spec,
                                   const Session::Progress& on_prefill,
                                   const HeadNeedProgress& on_step) {
  return Measurer(session, plugin, spec, on_step).Run(on_prefill);
}

}  // namespace condense
