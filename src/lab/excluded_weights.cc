#include "lab/excluded_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "metrics/logits.h"

namespace condense {

void ExcludedWeights::Take(std::span<const float> logits, std::span<const uint16_t> read) {
  const std::vector<double> weights = SoftmaxWeights(logits);
  double left_out = 0;
  ++n_heads_;
  for (size_t row = 0; row < logits.size(); ++row) {
    if (std::isinf(logits[row]) || HasRow(read, static_cast<int>(row))) continue;
    const double weight = weights[row];
    ++n_rows_;
    for (size_t i = 0; i < kRoundings.size(); ++i)
      rows_below_[i] += weight <= kRoundings[i].half_ulp ? 1 : 0;
    largest_ = std::max(largest_, weight);
    left_out += weight;
  }
  for (size_t i = 0; i < kRoundings.size(); ++i)
    heads_below_[i] += left_out <= kRoundings[i].half_ulp ? 1 : 0;
  mass_ += left_out;
}

void ExcludedWeights::Add(const ExcludedWeights& other) {
  n_rows_ += other.n_rows_;
  n_heads_ += other.n_heads_;
  for (size_t i = 0; i < kRoundings.size(); ++i) {
    rows_below_[i] += other.rows_below_[i];
    heads_below_[i] += other.heads_below_[i];
  }
  largest_ = std::max(largest_, other.largest_);
  mass_ += other.mass_;
}

double ExcludedWeights::ShareOfRows(size_t i) const {
  return static_cast<double>(rows_below_[i]) / static_cast<double>(n_rows_);
}
double ExcludedWeights::ShareOfHeads(size_t i) const {
  return static_cast<double>(heads_below_[i]) / static_cast<double>(n_heads_);
}
double ExcludedWeights::MeanMass() const { return mass_ / static_cast<double>(n_heads_); }

}  // namespace condense
