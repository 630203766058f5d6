// Process-wide state of the plug-in: the policy in force, counters, the observer. Shared by every
// backend instance (one per llama_context); guarded by one mutex, which a graph takes a few times a
// node.
#pragma once

#include <condense/condense.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "attention/layer_attention.h"
#include "base/result.h"
#include "select/policy.h"

namespace condense {

class PluginState {
 public:
  static PluginState& Get();

  Status SetPolicy(const char* spec);
  // The policy in force and a number that changes with every SetPolicy and Forget.
  std::shared_ptr<const Policy> policy(uint64_t* generation);
  // While `on`, `dense` stands in for the policy, which stays.
  void SetDense(bool on);
  std::string policy_spec();
  // A policy that wants products of prompt queries was set once: the next prompt may be computed
  // under another policy, as `compare` does.
  bool query_products();
  // The same for prompts' attention: what any policy that was set has asked for.
  std::shared_ptr<const PromptWants> prompt_wants();

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
  bool observed();
  void Report(std::span<const Observation> observations);

 private:
  PluginState();

  std::mutex mutex_;
  std::shared_ptr<const Policy> policy_;
  const std::shared_ptr<const Policy> dense_policy_;
  bool dense_ = false;
  std::string spec_;
  bool by_default_ = false;  // nobody asked for the policy, nor was told of it
  bool query_products_ = false;
  std::shared_ptr<const PromptWants> prompt_wants_ = std::make_shared<PromptWants>();
  uint64_t generation_ = 1, forget_generation_ = 1;
  condense_counters counters_ = {};
  std::array<condense_layer_counters, CONDENSE_MAX_LAYERS> layers_ = {};
  condense_observer observer_ = nullptr;
  void* observer_user_ = nullptr;
};

}  // namespace condense
