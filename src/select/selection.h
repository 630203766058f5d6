// What one query row of one layer reads: the outcome of a policy.
#pragma once

#include <cstdint>
#include <vector>

#include "base/row_mask.h"
#include "cache/kv_view.h"

namespace condense {

// Why a step of a sparse policy reads everything. Values equal enum condense_fallback.
enum class Fallback : int {
  kNone = -1,
  kShort = 0,
  kNan = 1,
  kBias = 2,
  kLayer = 3,
  kBudget = 4,
  kUntracked = 5
};

struct Selection {
  // Everything visible is read; the masks below are then unused.
  bool dense = true;
  Fallback reason = Fallback::kNone;

  // Sets of rows, one per KV head, or one per query head. [n_sets, n_blocks] words.
  bool per_query_head = false;
  int n_blocks = 0;
  std::vector<uint16_t> k_masks;  // rows whose K is read exactly and whose mass counts
  std::vector<uint16_t> v_masks;  // empty: the same; else subsets whose V is read too
  // Where V is read for fewer rows than K: the value that takes the mass of the others. Empty: they
  // take part in the normaliser only by being dropped (their mass is left out).
  std::vector<float> rest_value;  // [n_query_heads, v_dim]

  // What stands in the softmax for rows that are not read: a partial state of each query head
  // (kernels/attend.h; empty: max = -inf, sum = 0, o = 0), merged after those of the rows read.
  struct PartialState {
    std::vector<float> o;         // [n_query_heads, v_dim]: not normalised
    std::vector<float> max, sum;  // [n_query_heads]
  };
  bool has_tail = false;
  PartialState tail;

  // The logits of every row of k_masks, where the policy had to compute them (kernels/attend.h,
  // RowLogits): attention then reads no K. Rows in entries of 16, in any order.
  struct KeyLogits {
    std::vector<int32_t> rows;      // [16 n_entries]
    std::vector<uint16_t> lanes;    // [n_entries] which of them count
    std::vector<uint16_t> v_lanes;  // [n_entries] of which of these V is read too
    std::vector<float> logits;      // [group, stride]; [group, 16 n_entries] of it are set
    size_t stride = 0;
  };
  bool has_logits = false;
  std::vector<KeyLogits> logits;  // has_logits (not with per_query_head): at least one a KV head
  uint64_t logits_ns = 0;         // spent on them: a part of attention that choosing came to do

  // Rows are read here instead of in the host's cache: the same rows in another form.
  bool reads_copies = false;
  KvView copies;
  const KvView& ReadFrom(const KvView& host) const { return reads_copies ? copies : host; }

  // Bytes read to choose, all KV heads: summaries, codes, and K rows read beyond k_masks.
  uint64_t summary_bytes = 0;

  // As made, but for the memory that its sets have.
  void Reset() {
    dense = true;
    reason = Fallback::kNone;
    per_query_head = false;
    n_blocks = 0;
    k_masks.clear();
    v_masks.clear();
    rest_value.clear();
    has_tail = false;
    has_logits = false;
    logits_ns = 0;
    reads_copies = false;
    summary_bytes = 0;
  }

  uint16_t* KMask(int set) { return k_masks.data() + static_cast<size_t>(set) * n_blocks; }
  const uint16_t* KMask(int set) const {
    return k_masks.data() + static_cast<size_t>(set) * n_blocks;
  }
  const uint16_t* VMask(int set) const {
    return v_masks.empty() ? KMask(set) : v_masks.data() + static_cast<size_t>(set) * n_blocks;
  }
};

}  // namespace condense
