#include "metrics/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/result.h"

namespace condense {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double SortedQuantile(std::span<const double> sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[below + 1] - sorted[below]);
}

// Wilson's, at the normal quantile `z`; n > 0.
Interval ScoreInterval(double share, double n, double z) {
  const double z2 = z * z;
  const double centre = share + z2 / (2 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + z2 / (4 * n * n));
  const double denominator = 1 + z2 / n;
  return {(centre - half) / denominator, (centre + half) / denominator};
}

}  // namespace

double Mean(std::span<const double> sample) {
  if (sample.empty()) return kNaN;
  double sum = 0;
  for (double x : sample) sum += x;
  return sum / static_cast<double>(sample.size());
}

double StandardError(std::span<const double> sample) {
  if (sample.size() < 2) return kNaN;
  const double mean = Mean(sample);
  double squares = 0;
  for (double x : sample) squares += (x - mean) * (x - mean);
  const double n = static_cast<double>(sample.size());
  return std::sqrt(squares / (n - 1) / n);
}

double Maximum(std::span<const double> sample) {
  if (sample.empty()) return kNaN;
  return *std::max_element(sample.begin(), sample.end());
}

double Quantile(std::span<const double> sample, double p) {
  CONDENSE_CHECK(p >= 0 && p <= 1);
  if (sample.empty()) return kNaN;
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  return SortedQuantile(sorted, p);
}

Quartiles QuartilesOf(std::span<const double> sample) {
  if (sample.empty()) return {kNaN, kNaN, kNaN};
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  return {SortedQuantile(sorted, 0.25), SortedQuantile(sorted, 0.5), SortedQuantile(sorted, 0.75)};
}

Interval WilsonInterval(int64_t successes, int64_t n) {
  CONDENSE_CHECK(successes >= 0 && successes <= n);
  if (n == 0) return {0, 1};
  const double total = static_cast<double>(n);
  Interval ends = ScoreInterval(static_cast<double>(successes) / total, total, kZ95);
  // The ends are 0 and 1 exactly where the share is: rounding must not leave them beside it.
  if (successes == 0) ends.low = 0;
  if (successes == n) ends.high = 1;
  return ends;
}

double NormalQuantile(double p) {
  CONDENSE_CHECK(p > 0 && p < 1);
  // Halving on the distribution function: 80 steps leave less than rounding.
  double low = -40, high = 40;
  for (int step = 0; step < 80; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

double WilsonLowerBound(double share, int64_t n, double z) {
  if (n == 0) return 0;
  return std::max(0.0, ScoreInterval(share, static_cast<double>(n), z).low);
}

double BinomialUpperBound(int64_t successes, int64_t n, double confidence) {
  CONDENSE_CHECK(successes >= 0 && successes <= n && confidence > 0 && confidence < 1);
  if (successes == n) return 1;
  // The largest p at which as few are still seen with probability 1 - confidence.
  const auto at_most = [&](double p) {
    const double log_odds = std::log(p) - std::log1p(-p);
    double log_term = static_cast<double>(n) * std::log1p(-p), sum = 0;
    for (int64_t k = 0; k <= successes; ++k) {
      sum += std::exp(log_term);
      log_term += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1)) + log_odds;
    }
    return sum;
  };
  double low = 0, high = 1;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (at_most(middle) > 1 - confidence ? low : high) = middle;
  }
  return high;
}

}  // namespace condense
