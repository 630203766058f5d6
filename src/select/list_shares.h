// Softmax shares of the rows of a list: exact, in a fixed order.
#pragma once

#include <cstdint>
#include <span>

#include "select/policy.h"

namespace condense {

// Query heads [first_head, first_head + n_heads) of one KV head.
struct HeadRange {
  int kv_head = 0, first_head = 0, n_heads = 0;
};

// sums[i] += the shares that the heads give rows[i], each head's softmax taken over the rows of the
// list that `visible` has (empty: all). q: [n_query_heads, k_dim]. A head that sees none of them
// gives nothing. False, with sums spoilt, where a head's largest logit is not finite.
bool AddListShares(const LayerQuery& query, const HeadRange& heads, const float* q,
                   std::span<const int32_t> rows, std::span<const uint16_t> visible, float* sums);

}  // namespace condense
