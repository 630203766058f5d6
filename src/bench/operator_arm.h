// One arm of an operator benchmark: what the plug-in does for the attention of every layer of a
// step (rows noted as written, whole blocks checked in the first layer with summaries, selection,
// attention, merge), with its own block indexes and sequence memories over shared caches.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/layer_attention.h"
#include "bench/made_cache.h"

namespace condense {

// Sums over layer-steps since the last reset.
struct StepTotals {
  uint64_t n_steps = 0;  // of one query row in one layer
  uint64_t sparse_steps = 0, fallback_steps = 0;
  uint64_t visible_rows = 0, nominal_rows = 0;
  uint64_t k_bytes = 0, v_bytes = 0, summary_bytes = 0;
  uint64_t rebuilds = 0;
};

// One Run over all layers.
struct StepTime {
  int first_row = 0;
  uint64_t mark_ns = 0, select_ns = 0, attend_ns = 0, ns = 0;
};

class OperatorArm {
 public:
  // Over the first n_layers layers. The host's model has n_step_layers: so often a step begins.
  OperatorArm(const MadeCaches& caches, const MadeQueries& queries, const Policy& policy,
              int n_layers, int n_step_layers, int n_query_rows, int n_threads);
  OperatorArm(const OperatorArm&) = delete;
  OperatorArm& operator=(const OperatorArm&) = delete;

  // Attention of the cache's newest rows, `mask`'s, in every layer. Their contents are there.
  void Run(const CausalMask& mask, int first_row, int n_query_rows);
  // The same with another policy, in one layer; its output alone is of interest.
  void RunLayer(const CausalMask& mask, int layer, int first_row, int n_query_rows,
                const Policy& policy);

  // [n_query_rows, n_query_heads, head_dim] of the last Run.
  float* Out(int layer) { return out_.data() + layer * out_size_; }
  const StepTotals& totals() const { return totals_; }
  int n_layers() const { return n_layers_; }
  // After a Run, what is kept in memory beside the caches, as a share of the K and V bytes that the
  // last node saw, visible or not: codes, centroids and codebooks; everything.
  double CodesMemoryShare() const;
  double MemoryShare() const;
  const std::vector<StepTime>& times() const { return times_; }
  // Forgets totals and times, not summaries.
  void Reset();

 private:
  double ShareOfCaches(size_t (LayerCache::*bytes)() const) const;
  void Attend(const CausalMask& mask, int layer, int first_row, int n_query_rows,
              const Policy& policy, bool check_all_blocks);

  const MadeCaches& caches_;
  const MadeQueries& queries_;
  const Policy& policy_;
  const int n_layers_, n_step_layers_, n_threads_;
  const size_t out_size_;
  std::vector<LayerCache> layers_;
  std::vector<float> out_;
  AttentionSink sink_;
  StepTotals totals_;
  std::vector<StepTime> times_;
  int n_rows_ = 0;              // of the last node's view
  int next_in_step_ = 0;        // which of the model's layers comes next
  bool check_pending_ = false;  // no layer with summaries was looked at as a whole in this step yet
};

}  // namespace condense
