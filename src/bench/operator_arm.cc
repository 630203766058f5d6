#include "bench/operator_arm.h"

#include "base/clock.h"

namespace condense {

OperatorArm::OperatorArm(const MadeCaches& caches, const MadeQueries& queries, const Policy& policy,
                         int n_layers, int n_step_layers, int n_query_rows, int n_threads)
    : caches_(caches),
      queries_(queries),
      policy_(policy),
      n_layers_(n_layers),
      n_step_layers_(n_step_layers),
      n_threads_(n_threads),
      out_size_(static_cast<size_t>(n_query_rows) * caches.shape().n_query_heads *
                caches.shape().head_dim),
      layers_(n_layers),
      out_(out_size_ * n_layers) {
  sink_.on_step = [this](const StepCount& step) {
    ++totals_.n_steps;
    totals_.sparse_steps += step.sparse;
    totals_.fallback_steps += !step.sparse && !step.policy_dense;
    totals_.visible_rows += step.visible_rows;
    totals_.nominal_rows += step.nominal_rows;
    totals_.k_bytes += step.k_bytes;
    totals_.v_bytes += step.v_bytes;
    totals_.summary_bytes += step.summary_bytes;
  };
}

void OperatorArm::Run(const CausalMask& mask, int first_row, int n_query_rows) {
  sink_.select_ns = sink_.attend_ns = 0;
  const auto start = Clock::now();
  for (LayerCache& layer : layers_) {
    for (int i = 0; i < n_query_rows; ++i) layer.MarkWritten(0, first_row + i);
  }
  const auto marked = Clock::now();
  for (int layer = 0; layer < n_layers_; ++layer) {
    if (next_in_step_ == 0) check_pending_ = true;
    next_in_step_ = (next_in_step_ + 1) % n_step_layers_;
    Attend(mask, layer, first_row, n_query_rows, policy_, check_pending_);
    if (layers_[layer].has_summaries()) check_pending_ = false;
  }
  const auto end = Clock::now();
  times_.push_back({first_row, NsBetween(start, marked), sink_.select_ns, sink_.attend_ns,
                    NsBetween(start, end)});
}

void OperatorArm::RunLayer(const CausalMask& mask, int layer, int first_row, int n_query_rows,
                           const Policy& policy) {
  for (int i = 0; i < n_query_rows; ++i) layers_[layer].MarkWritten(0, first_row + i);
  Attend(mask, layer, first_row, n_query_rows, policy, true);
}

void OperatorArm::Attend(const CausalMask& mask, int layer, int first_row, int n_query_rows,
                         const Policy& policy, bool check_all_blocks) {
  AttentionNode node =
      MakeNode(caches_, layer, mask, queries_.At(layer, first_row), n_query_rows, Out(layer));
  node.check_all_blocks = check_all_blocks;
  n_rows_ = node.kv.n_rows;
  const uint64_t rebuilds = layers_[layer].rebuilds();
  ComputeAttention(node, layers_[layer], policy, n_threads_, sink_);
  totals_.rebuilds += layers_[layer].rebuilds() - rebuilds;
}

double OperatorArm::ShareOfCaches(size_t (LayerCache::*bytes)() const) const {
  size_t n = 0;
  for (const LayerCache& layer : layers_) n += (layer.*bytes)();
  const double cache_bytes = static_cast<double>(caches_.shape().RowBytes()) * n_rows_;
  return static_cast<double>(n) / (cache_bytes * n_layers_);
}

double OperatorArm::CodesMemoryShare() const { return ShareOfCaches(&LayerCache::code_bytes); }

double OperatorArm::MemoryShare() const { return ShareOfCaches(&LayerCache::bytes); }

void OperatorArm::Reset() {
  totals_ = {};
  times_.clear();
}

}  // namespace condense
