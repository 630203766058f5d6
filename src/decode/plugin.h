// The plug-in as a program sees it: found, loaded once into this process, and driven through its C
// interface (<condense/condense.h>). Settings and counters are process-wide, as the plug-in's are.
#pragma once

#include <condense/condense.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

// Sums over layers of one-row attention steps, since the last reset.
struct StepCounts {
  uint64_t dense_steps = 0, sparse_steps = 0, fallback_steps = 0;
  uint64_t visible_rows = 0, unique_rows = 0, nominal_rows = 0;
  uint64_t k_bytes = 0, v_bytes = 0, summary_bytes = 0, dense_bytes = 0;

  uint64_t steps() const { return dense_steps + sparse_steps + fallback_steps; }
  // Bytes read, summaries included, as a share of what dense attention reads; 1 where nothing was
  // read.
  double ReadShare() const;
  void Add(const condense_layer_counters& layer);
};

struct CounterSnapshot {
  condense_counters process = {};
  StepCounts total;
  std::vector<condense_layer_counters> layers;  // [process.n_layers]
};

// "short", "nan", "bias", "layer", "budget": the reason's name in records.
const char* FallbackName(int reason);
// By name, where there were any.
std::map<std::string, uint64_t> FallbackCounts(const condense_counters& counters);

class Plugin {
 public:
  // $CONDENSE_PLUGIN, else lib/libggml-condense.so beside this executable's bin/; absolute. Fails,
  // with the places looked at, where there is none.
  static Result<std::string> FindPath();

  // Loads the library as a ggml backend of this process. Before any model is loaded.
  static Result<Plugin> Load(const std::string& path);

  // Puts `spec` in force and returns its canonical spelling; the error names what would be right.
  Result<std::string> SetPolicy(const std::string& spec) const;
  std::string Policy() const;
  std::string PoliciesJson() const { return api_->policies_json(); }

  CounterSnapshot Counters() const;
  void ResetCounters() const { api_->reset_counters(); }
  void Forget() const { api_->forget(); }
  // While `on`, one-row steps are dense, and the policy stays with all that it remembers.
  void SetDense(bool on) const { api_->set_dense(on ? 1 : 0); }
  // What a host schedules while `on` is its own, as if the plug-in were not loaded.
  void LeaveToHost(bool on) const { api_->leave_to_host(on ? 1 : 0); }
  void SetObserver(condense_observer observer, void* user) const {
    api_->set_observer(observer, user);
  }
  // While `on`, observations carry the logits of their rows.
  void ObserveLogits(bool on) const { api_->observe_logits(on ? 1 : 0); }

  std::string Version() const { return api_->version_string(); }
  std::string InstructionSet() const { return api_->instruction_set(); }
  const std::string& path() const { return path_; }
  const condense_api* api() const { return api_; }

 private:
  Plugin(const condense_api* api, std::string path) : api_(api), path_(std::move(path)) {}
  const condense_api* api_;
  std::string path_;
};

// The directory of the running executable.
std::string ExecutableDirectory();

}  // namespace condense
