// Attention of a few queries over one chunk of one KV head's rows: partial softmax states and their
// merge (the algebra of FlashAttention 2205.14135 and FlashInfer 2501.01005). Raw pointers and
// views; knows no file, model, policy or ggml. Dispatched to the best instruction set at run time.
//
// Arithmetic, the same for every vector width, number of queries and kind of call:
//   logit of a row   fused multiply-adds over the channels in ascending order, even and odd
//   channels in
//                    two chains that are added last; FP32; K converted to FP32 exactly
//   sum              16 lanes (row mod 16) accumulated block by block, then a fixed tree
//   o                fused multiply-adds over the rows in ascending order, per channel
// so a query's result depends on its own rows alone: never on its neighbours, on threads or on
// tiling.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_type.h"
#include "base/row_mask.h"

namespace condense {

struct AttendArgs {
  // One KV head; row 0 is the chunk's first row (with `blocks` or `rows`: the cache's). Strides in
  // bytes.
  // Rows whose mask bit is 0 in every query are never read.
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  size_t k_stride = 0, v_stride = 0;
  KvType k_type = KvType::kF16, v_type = KvType::kF16;
  int k_dim = 0, v_dim = 0;  // multiples of 16 (of 32 for kQ8_0), at most 256
  int n_blocks = 0;          // 1 … kChunkBlocks
  // Null: the chunk's blocks are n_blocks neighbours from row 0 on. Else [n_blocks]: block i is the
  // 16 rows from row 16 blocks[i] on, in any order; masks and bias follow the list, not the cache.
  const int32_t* blocks = nullptr;
  // Null, or (without `blocks`) [16 n_blocks]: lane l of block i is row rows[16 i + l], in any
  // order; masks and bias follow the list. Entries whose mask bit is 0 in every query are not
  // looked at.
  const int32_t* rows = nullptr;
  // Null, or (with `rows`) [n_queries][logits_stride]: the list's logits as RowLogits gave them. K
  // is not read then.
  const float* logits = nullptr;
  size_t logits_stride = 0;

  int n_queries = 0;         // any number: query heads of the group times query rows
  const float* q = nullptr;  // [n_queries, k_dim], contiguous
  const uint16_t* const* masks =
      nullptr;  // [n_queries] -> [n_blocks] row bits: K is read, mass counted
  const uint16_t* const* v_masks = nullptr;  // null: as masks; else subsets of them: V is read
  const uint16_t* const* bias = nullptr;     // null, or [n_queries] -> [16 n_blocks] f16, added to
                                             // logits (read only at set bits)
  // logit = softcap > 0 ? softcap * tanh(scale * (q.k) / softcap) : scale * (q.k), plus bias
  float scale = 1.0f, softcap = 0.0f;
  // Keys that this thread attends to next, laid out as k: their first rows are brought into the
  // second-level cache towards the end of the call. Null: none.
  const std::byte* next_k = nullptr;
  // With `rows`: next_k is the row 0 of the n_next_rows rows that this thread attends to next. As
  // many as are kept under way are fetched.
  const int32_t* next_rows = nullptr;
  int n_next_rows = 0;
  bool reverse = false;  // sum V in descending row order: the control that shows the noise floor

  // Out, per query. A query without rows gets the empty state: o = 0, max = -inf, sum = 0.
  float* o = nullptr;  // [n_queries, v_dim]: sum over V rows of exp(logit - max) v, not normalised
  float* max = nullptr;    // [n_queries]
  float* sum = nullptr;    // [n_queries]: sum over K rows of exp(logit - max)
  float* sum_v = nullptr;  // null, or [n_queries]: the same over V rows alone
};

// Exponentials: relative error at most 4 ulp; logits 87 below the maximum or lower may become 0.
void AttendChunk(const AttendArgs& args);

// A partial softmax state over some rows. Empty: max = -inf, sum = 0, o = 0.
struct AttendState {
  float* o;  // [v_dim]
  float* max;
  float* sum;
  float* sum_v;  // null where it is not tracked
};

// into = into ∪ from, exact algebra in FP32: exp(max_i - max) rescales. Merging an empty state
// changes no bit; merging into an empty one copies.
void MergeState(const AttendState& into, const AttendState& from, int v_dim);

// out[query, row] = logit as in AttendArgs, -inf where the mask bit is 0. out: [n_queries, 16
// n_blocks]. Uses k*, q, masks, bias, scale, softcap. Bit-equal to the logits inside AttendChunk.
void RowLogits(const AttendArgs& args, float* out);

// Bits of a mask row: bit set where the value is above -inf. mask: f16 [n]; bits: [BlocksFor(n)],
// bits past n are 0. Returns true when a visible value differs from zero (an additive bias).
bool MaskBits(const uint16_t* mask, int n, uint16_t* bits);

}  // namespace condense
