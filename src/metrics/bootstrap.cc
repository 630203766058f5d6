#include "metrics/bootstrap.h"

#include <limits>
#include <random>
#include <vector>

namespace condense {

Interval BootstrapInterval(std::span<const double> sample,
                           const std::function<double(std::span<const double>)>& statistic,
                           int n_resamples, uint64_t seed) {
  if (sample.empty() || n_resamples < 1) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  std::mt19937_64 random(seed);
  std::vector<double> drawn(sample.size()), values;
  values.reserve(n_resamples);
  for (int i = 0; i < n_resamples; ++i) {
    // Not std::uniform_int_distribution, which differs between libraries.
    for (double& x : drawn) x = sample[random() % sample.size()];
    values.push_back(statistic(drawn));
  }
  return {Quantile(values, 0.025), Quantile(values, 0.975)};
}

}  // namespace condense
