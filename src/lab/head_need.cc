#include "lab/head_need.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode/run.h"
#include "lab/mass_probe.h"

namespace condense {
namespace {

// Sums the omitted mass of one layer's KV heads.
class LayerObserver {
 public:
  LayerObserver(const Plugin& plugin, int layer) : plugin_(plugin), layer_(layer) {
    plugin_.SetObserver(
        [](const condense_observation* seen, size_t n, void* user) {
          for (size_t i = 0; i < n; ++i) static_cast<LayerObserver*>(user)->Take(seen[i]);
        },
        this);
  }
  ~LayerObserver() { plugin_.SetObserver(nullptr, nullptr); }
  LayerObserver(const LayerObserver&) = delete;
  LayerObserver& operator=(const LayerObserver&) = delete;

  struct Head {
    double mass = 0;
    int64_t n_query_heads = 0;  // of all steps
  };
  const std::vector<Head>& heads() const { return heads_; }

 private:
  void Take(const condense_observation& seen) {
    if (seen.layer != layer_) return;
    const auto head = static_cast<size_t>(seen.kv_head);
    if (heads_.size() <= head) heads_.resize(head + 1);
    heads_[head].mass += seen.omitted_mass;
    ++heads_[head].n_query_heads;
  }

  const Plugin& plugin_;
  const int layer_;
  std::vector<Head> heads_;
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
      for (size_t layer = 0; status.ok() && layer < has_attention_.size(); ++layer) {
        if (has_attention_[layer]) status = MeasureLayer(static_cast<int>(layer), prefix);
      }
      if (!status.ok()) return Error{status.error()};
      needs_.n_steps += static_cast<int64_t>(prefix.history.size());
    }
    return Finish();
  }

 private:
  Status Begin(const std::string& policy) {
    const Result<std::string> set = plugin_.SetPolicy(policy);
    if (!set.ok()) return Error{set.error()};
    Status status = session_.Rewind();
    plugin_.Forget();
    plugin_.ResetCounters();
    return status;
  }

  // The prompt, and one dense step that shows which layers have attention.
  Status Prefill(const HeadNeedPrefix& prefix, const Session::Progress& on_prefill) {
    const Result<std::string> dense = plugin_.SetPolicy("dense");
    if (!dense.ok()) return Error{dense.error()};
    const Result<Logits> logits = session_.Prefill(prefix.prompt, on_prefill);
    if (!logits.ok()) return Error{logits.error()};
    const Status begun = Begin("dense");
    if (!begun.ok()) return begun;
    const Result<Logits> step = session_.Step(prefix.history.front());
    if (!step.ok()) return Error{step.error()};
    has_attention_.clear();
    int n = 0;
    for (const condense_layer_counters& layer : plugin_.Counters().layers) {
      has_attention_.push_back(layer.dense_steps > 0);
      n += has_attention_.back();
    }
    if (n == 0) return Error{"the plug-in saw no attention of this model: nothing to measure"};
    heads_.resize(std::max(heads_.size(), has_attention_.size()));
    n_total_ = static_cast<int64_t>(n) * static_cast<int64_t>(spec_.prefixes.size());
    return Status();
  }

  Status MeasureLayer(int layer, const HeadNeedPrefix& prefix) {
    Status status = Begin(WithDenseBefore(streaming_, layer));
    if (!status.ok()) return status;
    const LayerObserver observer(plugin_, layer);
    status = TeacherForcedRun(session_, prefix.history, [](int, Logits) {});
    if (!status.ok()) return status;
    auto& heads = heads_[layer];
    heads.resize(std::max(heads.size(), observer.heads().size()));
    for (size_t g = 0; g < observer.heads().size(); ++g) {
      heads[g].mass += observer.heads()[g].mass;
      heads[g].n_query_heads += observer.heads()[g].n_query_heads;
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
        const LayerObserver::Head& head = heads_[layer][g];
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
  const std::string streaming_;  // every head streams
  std::vector<bool> has_attention_;
  std::vector<std::vector<LayerObserver::Head>> heads_;  // by layer, then KV head
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
