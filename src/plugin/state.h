// Process-wide state of the plug-in: the policy in force, counters, the observer. Shared by every
// backend instance (one per llama_context); guarded by one mutex, which a graph takes a few times a
// node.
#pragma once

#include <condense/condense.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "attention/layer_attention.h"
#include "base/result.h"
#include "select/policy.h"
#include "select/policy_provenance.h"

namespace condense {

class PluginState {
 public:
  static PluginState& Get();

  // `made`: what the policy file says that the spec names, if it names one.
  Status SetPolicy(const char* spec, PolicyProvenance* made = nullptr);
  struct InForce {
    std::shared_ptr<const Policy> policy;
    // What any policy that was set has asked to be kept of prompts: the next prompt may be computed
    // under another one, as `compare` does. prompt_wants is null until one asked.
    bool query_products = false;
    std::shared_ptr<const PromptWants> prompt_wants;
    // Of verifications it is kept for the policy in force alone, `dense` standing in or not.
    bool call_shares = false;
    uint64_t generation = 1;  // changes with every SetPolicy and Forget
  };
  InForce in_force();
  // While `on`, `dense` stands in for the policy, which stays.
  void SetDense(bool on);
  std::string policy_spec();

  // While `on`, the device supports no operation.
  void LeaveToHost(bool on) { leave_to_host_ = on; }
  bool leaves_to_host() const { return leave_to_host_; }

  void Forget();
  // Changes whenever summaries must be dropped.
  uint64_t forget_generation();

  void Count(const StepCount& step);
  void CountMultiRows(int layer, uint64_t rows);
  void CountNode(const AttentionNode& node, uint64_t select_ns, uint64_t attend_ns,
                 uint64_t rebuilds);
  void CountDeclined();
  condense_counters counters();
  bool layer_counters(uint32_t layer, condense_layer_counters* out);
  void ResetCounters();

  void SetObserver(condense_observer observer, void* user);
  void ObserveLogits(bool on);
  // Whether an observer is set, and whether it wants logits.
  bool observed();
  bool observes_logits();
  void Report(std::span<const Observation> observations);

 private:
  PluginState();

  std::mutex mutex_;
  InForce in_force_;
  const std::shared_ptr<const Policy> dense_policy_;
  bool dense_ = false;
  std::atomic<bool> leave_to_host_ = false;
  std::string spec_;
  bool by_default_ = false;  // nobody asked for the policy, nor was told of it
  uint64_t forget_generation_ = 1;
  condense_counters counters_ = {};
  std::array<condense_layer_counters, CONDENSE_MAX_LAYERS> layers_ = {};
  condense_observer observer_ = nullptr;
  void* observer_user_ = nullptr;
  bool observe_logits_ = false;
};

}  // namespace condense
