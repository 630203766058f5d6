// Summaries of samples: mean, standard error, quantiles, and Wilson's interval for a share.
// Wilson: E. B. Wilson, JASA 22 (1927) 209. Quantiles interpolate linearly between order statistics
// (Hyndman and Fan's type 7, as llama.cpp's perplexity tool). Pure functions of their arguments.
// Every function of an empty sample gives NaN: a figure without data is no figure.
#pragma once

#include <cstdint>
#include <span>

namespace condense {

// The 97.5 % point of the standard normal distribution.
inline constexpr double kZ95 = 1.959963984540054;

struct Interval {
  double low = 0, high = 0;
};

struct Quartiles {
  double low = 0, median = 0, high = 0;  // 25 %, 50 %, 75 %
};

double Mean(std::span<const double> sample);

// Standard error of the mean, sample deviation (n - 1) over sqrt(n). NaN below two values.
double StandardError(std::span<const double> sample);

double Maximum(std::span<const double> sample);

// `p` in [0, 1]. The sample need not be sorted.
double Quantile(std::span<const double> sample, double p);

Quartiles QuartilesOf(std::span<const double> sample);

// The 95 % score interval of `successes` among `n`; {0, 1} where n is 0.
Interval WilsonInterval(int64_t successes, int64_t n);

// The `p` quantile of the standard normal distribution, 0 < p < 1.
double NormalQuantile(double p);

// Wilson's one-sided lower bound on a share of which `share` was seen among `n`, at the normal
// quantile `z`; 0 where n is 0.
double WilsonLowerBound(double share, int64_t n, double z);

// The one-sided upper bound on a probability of which `successes` were seen among `n` draws that
// holds with `confidence` or more, whatever n: C. J. Clopper and E. S. Pearson, Biometrika 26
// (1934) 404. Wilson's falls short of its confidence where few are seen. 1 where n is 0.
double BinomialUpperBound(int64_t successes, int64_t n, double confidence);

}  // namespace condense
