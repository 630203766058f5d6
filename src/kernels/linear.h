// Small dense products of trained gates, in FP32 and in a fixed order without fused multiply-adds:
// the same bits on every machine. They run once for every block that fills and once a query, not
// over a cache.
#pragma once

namespace condense {

// out[o] += sum_i x[i] w[i][o], i ascending. w: [n_in, n_out].
void AddProduct(const float* x, int n_in, const float* w, int n_out, float* out);

// Sum over 16 lanes (i mod 16), which are added in halves.
float DotInLanes(const float* a, const float* b, int n);

// values[i] *= weight[i] / sqrt(mean of squares + epsilon); the sum in double.
void RmsNorm(const float* weight, int n, float epsilon, float* values);

}  // namespace condense
