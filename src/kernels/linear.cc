#include "kernels/linear.h"

#include <cmath>
#include <cstddef>

namespace condense {

void AddProduct(const float* x, int n_in, const float* w, int n_out, float* __restrict out) {
  for (int i = 0; i < n_in; ++i) {
    const float value = x[i];
    const float* __restrict row = w + static_cast<size_t>(i) * n_out;
    for (int o = 0; o < n_out; ++o) out[o] += value * row[o];
  }
}

float DotInLanes(const float* a, const float* b, int n) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

void RmsNorm(const float* weight, int n, float epsilon, float* values) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += static_cast<double>(values[i]) * values[i];
  const auto factor = static_cast<float>(1.0 / std::sqrt(squares / n + epsilon));
  for (int i = 0; i < n; ++i) values[i] = weight[i] * (values[i] * factor);
}

}  // namespace condense
