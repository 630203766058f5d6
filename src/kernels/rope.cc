#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

namespace condense {
namespace {

constexpr int kPositionsAtOnce = 1024;

void RotateBy(const RopeRule& rule, const float* at, float sign, float* values) {
  if (rule.pairs == RopePairs::kNone) return;
  const int half = rule.n_dims / 2;
  const int step = rule.pairs == RopePairs::kNeox ? 1 : 2;
  const int other = rule.pairs == RopePairs::kNeox ? half : 1;
  for (int i = 0; i < half; ++i) {
    float* x = values + i * step;
    const float cos = at[i], sin = sign * at[half + i];
    const float a = x[0], b = x[other];
    x[0] = a * cos - b * sin;
    x[other] = a * sin + b * cos;
  }
}

}  // namespace

void RopeTable::Cover(const RopeRule& rule, uint64_t id, int n, int most) {
  if (id_ != id) {
    id_ = id;
    n_positions_ = 0;
    n_dims_ = rule.pairs == RopePairs::kNone ? 0 : rule.n_dims;
  }
  if (n <= n_positions_ || n_dims_ == 0) return;
  const int wanted = (n + kPositionsAtOnce - 1) / kPositionsAtOnce * kPositionsAtOnce;
  values_.reserve(static_cast<size_t>(std::max(wanted, most + kPositionsAtOnce)) * n_dims_);
  values_.resize(static_cast<size_t>(wanted) * n_dims_);
  const int half = n_dims_ / 2;
  const float step = std::pow(rule.freq_base, -2.0f / static_cast<float>(n_dims_));
  for (int position = n_positions_; position < wanted; ++position) {
    float* at = values_.data() + static_cast<size_t>(position) * n_dims_;
    auto theta = static_cast<float>(position);
    for (int i = 0; i < half; ++i, theta *= step) {
      const float factor = rule.factors.empty() ? 1.0f : rule.factors[i];
      const float angle = rule.freq_scale * (theta / factor);
      at[i] = std::cos(angle);
      at[half + i] = std::sin(angle);
    }
  }
  n_positions_ = wanted;
}

void Rotate(const RopeRule& rule, const float* at, float* values) {
  RotateBy(rule, at, 1.0f, values);
}

void RotateBack(const RopeRule& rule, const float* at, float* values) {
  RotateBy(rule, at, -1.0f, values);
}

}  // namespace condense
