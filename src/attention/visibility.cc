#include "attention/visibility.h"

#include "attention/layer_attention.h"
#include "base/row_mask.h"
#include "kernels/attend.h"

namespace condense {

const uint16_t* Visibility::Bias(int stream, int head, int row) const {
  return reinterpret_cast<const uint16_t*>(
      node_->mask + (stream % n_streams_) * node_->mask_stream +
      (head % n_heads_) * node_->mask_head + row * node_->mask_row);
}

void Visibility::Scan(const AttentionNode& node, int n_threads) {
  node_ = &node;
  n_blocks_ = BlocksFor(node.kv.n_rows);
  if (node.mask == nullptr) {
    // Every query row sees every row: one set of words serves them all.
    n_streams_ = n_heads_ = 1;
    n_rows_ = node.n_rows;
    has_bias_ = false;
    bits_.assign(static_cast<size_t>(n_rows_) * n_blocks_, 0);
    for (int r = 0; r < n_rows_; ++r) {
      AddRange({bits_.data() + static_cast<size_t>(r) * n_blocks_, static_cast<size_t>(n_blocks_)},
               {0, node.kv.n_rows});
    }
    return;
  }
  n_streams_ = node.mask_streams;
  n_heads_ = node.mask_heads;
  n_rows_ = node.n_rows;
  const int n = n_streams_ * n_heads_ * n_rows_;
  bits_.resize(static_cast<size_t>(n) * n_blocks_);
  bool bias = false;
  // A decode step's mask is a few kilobytes: waking the team would cost more than reading it.
  const bool parallel = static_cast<size_t>(n) * node.kv.n_rows > 65536;
#pragma omp parallel for num_threads(n_threads) if (parallel) reduction(|| : bias)
  for (int i = 0; i < n; ++i) {
    const int row = i % n_rows_, head = i / n_rows_ % n_heads_, stream = i / n_rows_ / n_heads_;
    const bool found = MaskBits(Bias(stream, head, row), node.kv.n_rows,
                                bits_.data() + static_cast<size_t>(i) * n_blocks_);
    bias = bias || found;
  }
  has_bias_ = bias;
}

}  // namespace condense
