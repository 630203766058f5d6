#include "plugin/state.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "plugin/log.h"
#include "select/policy_file.h"
#include "select/registry.h"

namespace condense {

PluginState& PluginState::Get() {
  // Leaked on purpose: hosts may still compute while static objects are destroyed.
  static PluginState* state = new PluginState();
  return *state;
}

namespace {

// A policy file says what model it was made for; which one the host runs cannot be seen from here.
void SayWhatIsNotChecked(const std::string& path, const PolicyProvenance& made) {
  if (made.model.empty()) return;
  LogWarning("policy file '" + path + "' was made for the model " + made.model +
             ": whether this program runs that one the plug-in cannot check");
}

}  // namespace

PluginState::PluginState() : dense_policy_(std::move(MakePolicy("dense").value().policy)) {
  const char* wanted = std::getenv("CONDENSE_POLICY");
  if (wanted == nullptr || *wanted == '\0') {
    CONDENSE_CHECK(SetPolicy(kDefaultPolicy).ok());
    by_default_ = true;
    return;
  }
  PolicyProvenance made;
  const Status status = SetPolicy(wanted, &made);
  if (!status.ok()) {
    LogWarning("CONDENSE_POLICY: " + status.error() + "; attention stays dense");
    CONDENSE_CHECK(SetPolicy("dense").ok());
  } else if (NamesPolicyFile(wanted)) {
    SayWhatIsNotChecked(PolicyFilePath(wanted), made);
  }
}

Status PluginState::SetPolicy(const char* spec, PolicyProvenance* provenance) {
  if (spec == nullptr) return Error{"no policy spec was given"};
  Result<BoundPolicy> made = MakePolicy(spec);
  if (!made.ok()) return Error{made.error()};
  if (provenance != nullptr) *provenance = std::move(made->made);
  std::lock_guard lock(mutex_);
  InForce& now = in_force_;
  now.policy = std::move(made->policy);
  now.query_products = now.query_products || now.policy->wants_query_products();
  PromptWants wants = now.prompt_wants != nullptr ? *now.prompt_wants : PromptWants();
  wants.Add(now.policy->prompt_wants());
  if (!wants.empty() && (now.prompt_wants == nullptr || wants != *now.prompt_wants))
    now.prompt_wants = std::make_shared<PromptWants>(std::move(wants));
  spec_ = std::move(made->spec);
  by_default_ = false;
  ++now.generation;
  return {};
}

PluginState::InForce PluginState::in_force() {
  std::lock_guard lock(mutex_);
  InForce in_force = in_force_;
  in_force.call_shares = in_force.policy->prompt_wants().last_call;
  if (dense_) in_force.policy = dense_policy_;
  return in_force;
}

void PluginState::SetDense(bool on) {
  std::lock_guard lock(mutex_);
  dense_ = on;
}

std::string PluginState::policy_spec() {
  std::lock_guard lock(mutex_);
  return spec_;
}

void PluginState::Forget() {
  std::lock_guard lock(mutex_);
  ++in_force_.generation;
  ++forget_generation_;
}

uint64_t PluginState::forget_generation() {
  std::lock_guard lock(mutex_);
  return forget_generation_;
}

void PluginState::Count(const StepCount& step) {
  std::unique_lock lock(mutex_);
  if (step.sparse && std::exchange(by_default_, false)) {
    const std::string spec = spec_;
    lock.unlock();
    LogWarning("decode steps are sparse, by the policy " + spec +
               "; CONDENSE_POLICY=dense in the environment keeps them dense");
    lock.lock();
  }
  if (step.reason != Fallback::kNone) ++counters_.fallbacks[static_cast<int>(step.reason)];
  if (step.layer < 0 || step.layer >= CONDENSE_MAX_LAYERS) return;
  condense_layer_counters& layer = layers_[step.layer];
  if (step.sparse) {
    ++layer.sparse_steps;
  } else if (step.policy_dense) {
    ++layer.dense_steps;
  } else {
    ++layer.fallback_steps;
  }
  layer.visible_rows += step.visible_rows;
  layer.unique_rows += step.unique_rows;
  layer.nominal_rows += step.nominal_rows;
  layer.k_bytes += step.k_bytes;
  layer.v_bytes += step.v_bytes;
  layer.summary_bytes += step.summary_bytes;
  layer.dense_bytes += step.dense_bytes;
}

void PluginState::CountMultiRows(int layer, uint64_t rows) {
  std::lock_guard lock(mutex_);
  if (layer >= 0 && layer < CONDENSE_MAX_LAYERS) layers_[layer].multi_rows += rows;
}

void PluginState::CountNode(const AttentionNode& node, uint64_t select_ns, uint64_t attend_ns,
                            uint64_t rebuilds) {
  std::lock_guard lock(mutex_);
  ++counters_.nodes;
  counters_.n_layers = std::max<uint64_t>(counters_.n_layers, node.layer + 1);
  counters_.n_query_heads = node.n_query_heads;
  counters_.n_kv_heads = node.kv.n_kv_heads;
  counters_.select_ns += select_ns;
  counters_.attend_ns += attend_ns;
  counters_.rebuilds += rebuilds;
}

void PluginState::CountDeclined() {
  std::lock_guard lock(mutex_);
  ++counters_.declined;
}

condense_counters PluginState::counters() {
  std::lock_guard lock(mutex_);
  return counters_;
}

bool PluginState::layer_counters(uint32_t layer, condense_layer_counters* out) {
  if (layer >= CONDENSE_MAX_LAYERS) return false;
  std::lock_guard lock(mutex_);
  *out = layers_[layer];
  return true;
}

void PluginState::ResetCounters() {
  std::lock_guard lock(mutex_);
  counters_ = {};
  layers_ = {};
}

void PluginState::SetObserver(condense_observer observer, void* user) {
  std::lock_guard lock(mutex_);
  observer_ = observer;
  observer_user_ = user;
}

void PluginState::ObserveLogits(bool on) {
  std::lock_guard lock(mutex_);
  observe_logits_ = on;
}

bool PluginState::observes_logits() {
  std::lock_guard lock(mutex_);
  return observe_logits_;
}

bool PluginState::observed() {
  std::lock_guard lock(mutex_);
  return observer_ != nullptr;
}

void PluginState::Report(std::span<const Observation> observations) {
  condense_observer observer;
  void* user;
  {
    std::lock_guard lock(mutex_);
    observer = observer_;
    user = observer_user_;
  }
  if (observer == nullptr) return;
  std::vector<condense_observation> out(observations.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const Observation& from = observations[i];
    out[i] = {from.layer,
              from.query_head,
              from.kv_head,
              from.visible_rows,
              from.rows_read,
              from.omitted_mass,
              from.value_norm_max,
              from.output_error,
              from.output_norm,
              from.identity_error,
              from.read.data(),
              static_cast<int32_t>(from.read.size()),
              from.logits.empty() ? nullptr : from.logits.data()};
  }
  observer(out.data(), out.size(), user);
}

}  // namespace condense
