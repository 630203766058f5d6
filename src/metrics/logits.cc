#include "metrics/logits.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace condense {

double LogSumExp(std::span<const float> logits) {
  CONDENSE_CHECK(!logits.empty());
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

std::vector<double> SoftmaxWeights(std::span<const float> logits) {
  CONDENSE_CHECK(!logits.empty());
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  weights.reserve(logits.size());
  double sum = 0;
  for (float x : logits) sum += weights.emplace_back(std::exp(x - top));
  for (double& weight : weights) weight /= sum;
  return weights;
}

double NegativeLogLikelihood(std::span<const float> logits, int token) {
  CONDENSE_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  return LogSumExp(logits) - logits[token];
}

LogitComparison CompareLogits(std::span<const float> dense, std::span<const float> sparse,
                              int target) {
  CONDENSE_CHECK(dense.size() == sparse.size());
  CONDENSE_CHECK(target >= 0 && static_cast<size_t>(target) < dense.size());
  LogitComparison result;
  result.dense = FindTopTwo(dense);
  result.sparse = FindTopTwo(sparse);
  const double log_sum_dense = LogSumExp(dense);
  const double log_sum_sparse = LogSumExp(sparse);
  result.nll_dense = log_sum_dense - dense[target];
  result.nll_sparse = log_sum_sparse - sparse[target];
  double kl = 0;
  for (size_t i = 0; i < dense.size(); ++i) {
    const double log_p = dense[i] - log_sum_dense;
    const double log_q = sparse[i] - log_sum_sparse;
    kl += std::exp(log_p) * (log_p - log_q);
    result.delta = std::max(result.delta, std::abs(static_cast<double>(sparse[i]) - dense[i]));
  }
  // KL is never negative; the sum of a near-equal pair is, by rounding.
  result.kl = std::max(kl, 0.0);
  return result;
}

}  // namespace condense
