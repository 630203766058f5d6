// What every kernel benchmark reports beside its time: bytes read per second, also as a share of
// the core's stream, and multiply-adds as a share of its peak.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <vector>

#include "bench/machine.h"

namespace condense {

// Larger than the last-level caches of servers.
inline constexpr size_t kLargeBytes = size_t{448} << 20;

// CPU time of this thread, as in the benchmarks' rates: other programs on the core do not count.
inline double Seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median of several passes, bytes per second.
inline double StreamBandwidth() {
  static const double bandwidth = [] {
    const std::vector<float> values(kLargeBytes / sizeof(float), 1.0f);
    std::vector<double> rates;
    for (int pass = 0; pass < 5; ++pass) {
      const double begin = Seconds();
      benchmark::DoNotOptimize(SumStream(values.data(), values.size()));
      rates.push_back(kLargeBytes / (Seconds() - begin));
    }
    std::sort(rates.begin(), rates.end());
    return rates[2];
  }();
  return bandwidth;
}

// Register-only multiply-adds, as the machine's yardstick does them; returns the operations.
inline double Multiply(size_t n_rounds) {
  volatile float factor = 1.0f, term = 0.5f;
  float results[kPeakChains * kPeakLanes];
  const double flops = MultiplyAddLoop(n_rounds, factor, term, results);
  benchmark::DoNotOptimize(results);
  return flops;
}

inline double PeakFlops() {
  static const double peak = [] {
    std::vector<double> rates;
    for (int pass = 0; pass < 9; ++pass) {
      const double begin = Seconds();
      const double flops = Multiply(2000000);
      rates.push_back(flops / (Seconds() - begin));
    }
    std::sort(rates.begin(), rates.end());
    return rates[4];
  }();
  return peak;
}

inline void Report(benchmark::State& state, double bytes, double flops) {
  const double n = static_cast<double>(state.iterations());
  state.counters["bytes/s"] = benchmark::Counter(bytes * n, benchmark::Counter::kIsRate);
  if (bytes > 0) {
    state.counters["of_stream"] =
        benchmark::Counter(bytes * n / StreamBandwidth(), benchmark::Counter::kIsRate);
  }
  if (flops > 0)
    state.counters["of_peak"] =
        benchmark::Counter(flops * n / PeakFlops(), benchmark::Counter::kIsRate);
}

}  // namespace condense
