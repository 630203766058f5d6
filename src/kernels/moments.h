// Second moments for the axes of rotated codebooks (kernels/key_axes.h). FP32, in a fixed order:
// the same bits on every target with fused multiply-adds.
#pragma once

#include <cstddef>
#include <vector>

namespace condense {

// products[i * dim + j] += share q_i q_j for j >= i; some of the entries below the diagonal change
// too. dim: a multiple of 16. Of 64 channels about 300 cycles (AVX-512).
void AddProducts(const float* q, int dim, float share, float* products);

// [dim, dim]: mean of (x_i - mean_i) (x_j - mean_j) over rows; x: [n_segments, dim, 64 rows]. Zeros
// without a segment. dim: a multiple of 16.
std::vector<double> Covariance(const float* x, size_t n_segments, size_t dim, const float* mean);

}  // namespace condense
