// Sums of softmax shares by row, over many queries: what attention the rows of a cache get.
#pragma once

#include <cstddef>

namespace condense {

// sums[i] += exp(logits[i] - max) / sum for i in [0, n); n a multiple of 16, one fused multiply-add
// a row. No logit is above max; -inf adds nothing. The same bits on every target with fused
// multiply-add.
void AddShares(const float* logits, size_t n, float max, float sum, float* sums);

}  // namespace condense
