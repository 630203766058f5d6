// Attention of one graph node: dense, sparse, or observed (both, and what the sparse one left out).
// The work is split over (KV head, chunk) or (row tile, KV head); partial states are merged in
// chunk order, so the bits depend on neither the thread count nor the number of query rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/layer_cache.h"
#include "cache/kv_view.h"
#include "cache/prompt_attention.h"
#include "select/policy.h"

namespace condense {

// One FLASH_ATTN_EXT node. Strides in bytes. Query heads share KV head h / (n_query_heads /
// n_kv_heads).
struct AttentionNode {
  int layer = 0;
  int n_streams = 1, n_rows = 1, n_query_heads = 1;  // query rows a stream
  // Look at every block for rows that changed unseen, not just at two: the first layer of a step
  // does.
  bool check_all_blocks = false;
  // Keep products of prompt queries even where this policy does not want them: a later one may.
  bool query_products = false;
  // Likewise what is kept of prompts' attention; null or empty: nothing. Borrowed.
  const PromptWants* prompt_wants = nullptr;
  bool call_shares = true;       // whether what is kept of calls is kept of verifications too
  int first_stream = 0;          // stream of the cache that stream 0 of this node is
  const std::byte* q = nullptr;  // f32; [stream][head][row][k_dim] by strides
  size_t q_row = 0, q_head = 0, q_stream = 0;
  KvView kv;  // stream 0
  size_t k_stream = 0, v_stream = 0;
  const std::byte* mask = nullptr;  // f16 rows of kv.n_rows values, or null: every row is visible
  size_t mask_row = 0, mask_head = 0, mask_stream = 0;
  int mask_heads = 1, mask_streams = 1;  // head h uses mask head h % mask_heads, streams alike
  const float* sinks = nullptr;  // [n_query_heads] logits that take mass and give no value, or null
  float scale = 1.0f, softcap = 0.0f;
  float* out = nullptr;  // [stream][row][head][v_dim], contiguous

  KvView View(int stream) const {
    KvView view = kv;
    view.k += stream * k_stream;
    view.v += stream * v_stream;
    return view;
  }
};

// One one-row step, for the counters.
struct StepCount {
  int layer = 0;
  bool sparse = false;
  bool policy_dense = false;
  Fallback reason = Fallback::kNone;
  uint64_t visible_rows = 0, unique_rows = 0, nominal_rows = 0;
  uint64_t k_bytes = 0, v_bytes = 0, summary_bytes = 0, dense_bytes = 0;
};

// One query head of an observed step; the fields of struct condense_observation.
struct Observation {
  int layer = 0, query_head = 0, kv_head = 0, visible_rows = 0, rows_read = 0;
  float omitted_mass = 0, value_norm_max = 0, output_error = 0, output_norm = 0, identity_error = 0;
  std::span<const uint16_t> read;  // [n_blocks] rows whose key is read; valid during the call
  std::span<const float> logits;   // [16 n_blocks], or empty; valid during the call
};

// What a node reports. Called on the thread that computes the graph.
struct AttentionSink {
  std::function<void(const StepCount&)> on_step;
  std::function<void(int layer, uint64_t rows)> on_multi_rows;
  std::function<void(std::span<const Observation>)> on_observations;  // empty: do not observe
  bool observe_logits = false;
  // Added to. Keys whose logits a policy computes are attended to then (Selection::logits_ns).
  uint64_t select_ns = 0, attend_ns = 0;
};

// Computes node.out. `cache` carries the block index, what was written before this node, and
// sequence memories. Uses up to `n_threads` threads of the caller's OpenMP team.
void ComputeAttention(const AttentionNode& node, LayerCache& cache, const Policy& policy,
                      int n_threads, AttentionSink& sink);

}  // namespace condense
