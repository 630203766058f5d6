// ggml's own CPU attention, FLASH_ATTN_EXT as llama.cpp builds it, over the same caches, queries
// and mask: the baseline of the same run. One graph holds a node a layer.
#pragma once

#include <memory>

#include "base/result.h"
#include "bench/made_cache.h"

namespace condense {

class HostOperator {
 public:
  // Fails where ggml has no CPU backend.
  static Result<std::unique_ptr<HostOperator>> Make(int n_threads);
  ~HostOperator();

  // The graph of n_layers layers over the mask's rows; again only when these were padded further.
  // `queries` begin at `row` in every layer. Everything is borrowed until the next call.
  Status Build(const MadeCaches& caches, int n_layers, const MadeQueries& queries, int row,
               const CausalMask& mask, int n_query_rows);
  Status Compute();
  // [n_query_rows, n_query_heads, head_dim]
  const float* Out(int layer) const;

 private:
  struct Impl;
  HostOperator();
  std::unique_ptr<Impl> impl_;
};

}  // namespace condense
