// What policies share that choose rows by attention: exact softmax shares of rows, the best rows of
// a ranking, one choice a KV head. Which rows are always read: select/row_parts.h; their keys:
// select/row_keys.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "select/policy.h"

namespace condense {

// exp(logit) of rows over its sum, per query head, in FP32 with a sum in double: the same bits for
// every thread count. Allocates nothing once its buffers have grown to the cache's size.
class RowShares {
 public:
  // Of `rows` ([n_blocks], visible ones). `keys`: query.kv, or copies of its rows. False where a
  // logit is NaN or infinite, or all of a head are -inf; one that is -inf is a share of 0.
  bool Compute(const LayerQuery& query, const KvView& keys, std::span<const uint16_t> rows);

  // 16 n_blocks.
  size_t n_rows() const { return n_rows_; }
  // worth[row] = the sum of the shares of heads [first, last), in their order. [n_rows()]
  void Worths(int first, int last, float* worth) const;

 private:
  size_t n_rows_ = 0;
  std::vector<float> p_;       // [n_query_heads, n_rows_] logits, then exp(logit - the largest)
  std::vector<double> share_;  // [n_query_heads] what 1 of p_ is as a share
};

// As the model caps logits, if it does.
inline float SoftCapped(const LayerQuery& query, float logit) {
  return query.softcap > 0 ? query.softcap * std::tanh(logit / query.softcap) : logit;
}

// The largest becomes 1: p = exp(p - largest). Returns the inverse of their sum; nullopt where one
// is NaN or infinite, or all are -inf.
std::optional<double> ExpShares(std::span<float> p);

// Query heads [first_head, first_head + n_heads) of one KV head.
struct HeadRange {
  int kv_head = 0, first_head = 0, n_heads = 0;
};
inline HeadRange GroupOf(const LayerQuery& query, int kv_head) {
  return {kv_head, kv_head * query.group(), query.group()};
}

// Logits of up to 512 neighbouring rows, [n_heads, 16 n_blocks], -inf where their bit in `rows` is
// 0. first_block: of the cache.
void BlockLogits(const LayerQuery& query, const KvView& keys, const HeadRange& heads,
                 int first_block, int n_blocks, const uint16_t* rows, float* logits);

// What a list of n rows takes in ListLogits: whole blocks.
inline size_t ListStride(size_t n) {
  return static_cast<size_t>(BlocksFor(static_cast<int>(n))) * kBlockRows;
}
// Logits of any rows, in any order: [n_heads, stride], ListStride(rows.size()) of each set, -inf
// past the last row. q: [n_query_heads, k_dim], the step's own or another query.
void ListLogits(const LayerQuery& query, const KvView& keys, const HeadRange& heads, const float* q,
                std::span<const int32_t> rows, float* logits, size_t stride);

// sums[i] += the shares that the heads give rows[i], each head's softmax taken over the rows of the
// list that `visible` has (empty: all). A head that sees none of them gives nothing. False, with
// sums spoilt, where a logit is not finite.
bool AddListShares(const LayerQuery& query, const HeadRange& heads, const float* q,
                   std::span<const int32_t> rows, std::span<const uint16_t> visible, float* sums);

// The rows of a mask, ascending.
void ListRows(std::span<const uint16_t> mask, std::vector<int32_t>& rows);

// Sorts indices of `worth`, none of it NaN: greater first, then the lower index.
void SortByWorth(std::span<const double> worth, std::span<int32_t> order);

// How many of `order` it takes, from the first on, until `base` and their worth reach `target`; all
// of them where they do not.
int CountToMass(std::span<const double> worth, std::span<const int32_t> order, double base,
                double target);

// One KV head's rows, best first.
struct RowRanking {
  std::vector<float> worth;    // [16 n_blocks]
  std::vector<int32_t> keys;   // scratch
  std::vector<int32_t> order;  // rows
};
// Adds the n_best of `candidates` ([n_blocks], at least as many rows) with the greatest
// ranking.worth to `mask`; of equal ones the lower row. Overwrites the worth of other rows.
void AddBestRows(std::span<const uint16_t> candidates, int n_best, RowRanking& ranking,
                 std::span<uint16_t> mask);

// out[i] = the largest of the `pool` (odd) values around values[i], or their sum over `pool`; at
// the ends there are fewer, and the missing ones count as zeros, as torch's avg_pool1d counts its
// padding. Not in place.
void PoolAround(std::span<const float> values, int pool, bool average, std::span<float> out);

// rows & ~others, to `out`.
void RowsWithout(std::span<const uint16_t> rows, std::span<const uint16_t> others,
                 std::vector<uint16_t>& out);

// Makes `selection` of `always` ([n_blocks]) and the rows that choose(kv_head, head, mask) adds to
// it, KV heads side by side. `choose` returns the bytes that it read to choose, or nullopt where
// something is not finite: then, and where no row is left out, the selection is dense. heads:
// scratch, grows to one a KV head.
template <class Head, class Choose>
void ChooseByHead(const LayerQuery& query, std::span<const uint16_t> always,
                  std::vector<Head>& heads, Selection& selection, const Choose& choose) {
  const int n_heads = query.kv->n_kv_heads;
  const size_t n_blocks = query.visible.size();
  selection.n_blocks = static_cast<int>(n_blocks);
  selection.k_masks.resize(n_heads * n_blocks);
  if (heads.size() < static_cast<size_t>(n_heads)) heads.resize(n_heads);
  bool finite = true, all_read = true;
  uint64_t bytes = 0;
#pragma omp parallel for num_threads(query.n_threads) if (query.n_threads > 1) schedule(static) \
    reduction(&& : finite, all_read) reduction(+ : bytes)
  for (int g = 0; g < n_heads; ++g) {
    const std::span<uint16_t> mask(selection.KMask(g), n_blocks);
    std::copy(always.begin(), always.end(), mask.begin());
    const std::optional<uint64_t> read = choose(g, heads[g], mask);
    finite = finite && read;
    bytes += read.value_or(0);
    all_read = all_read && CountRows(mask) == query.n_visible;
  }
  if (!finite || all_read) {
    selection.Reset();
    selection.reason = finite ? Fallback::kShort : Fallback::kNan;
    return;
  }
  selection.dense = false;
  selection.summary_bytes = bytes;
}

}  // namespace condense
