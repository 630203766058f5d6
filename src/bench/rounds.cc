#include "bench/rounds.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace condense {

RoundTimes RunInTurns(const std::vector<Arm>& arms, int n_rounds, Yard& yard, int n_threads,
                      const std::string& label, const BenchControl& control) {
  const size_t n_arms = arms.size();
  RoundTimes times;
  times.ns.resize(n_arms);
  for (int round = 0; round < n_rounds; ++round) {
    std::vector<double> ns(n_arms, 0.0), stream;
    for (size_t i = 0; i < n_arms; ++i) {
      if (control.stopped && control.stopped()) {
        times.stopped = true;
        return times;
      }
      const size_t at = round % 2 == 0 ? i : n_arms - 1 - i;
      const Arm& arm = arms[at];
      if (round % arm.every != 0) continue;
      stream.push_back(yard.StreamPass(n_threads));
      if (arm.prepare) arm.prepare(round);
      const auto start = Clock::now();
      arm.run(round);
      ns[at] = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
      if (control.on_progress) {
        control.on_progress(label + ", " + arm.name, static_cast<int64_t>(round * n_arms + i + 1),
                            static_cast<int64_t>(n_rounds * n_arms));
      }
    }
    for (size_t at = 0; at < n_arms; ++at) times.ns[at].push_back(ns[at]);
    times.stream.push_back(SampleOf(stream).median);
    times.peak.push_back(yard.PeakPass(n_threads));
  }
  return times;
}

std::vector<double> GroupMeans(const std::vector<double>& values, int cycle) {
  std::vector<double> means;
  for (size_t begin = 0; begin + cycle <= values.size(); begin += cycle) {
    double sum = 0;
    int n = 0;
    for (size_t i = begin; i < begin + cycle; ++i) {
      sum += values[i];
      n += values[i] > 0;
    }
    means.push_back(n > 0 ? sum / n : 0.0);
  }
  return means;
}

Sample RatioOf(const std::vector<double>& a, const std::vector<double>& b, int cycle,
               double scale) {
  const std::vector<double> a_means = GroupMeans(a, cycle), b_means = GroupMeans(b, cycle);
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a_means.size(), b_means.size()); ++i) {
    if (a_means[i] > 0 && b_means[i] > 0) ratios.push_back(scale * a_means[i] / b_means[i]);
  }
  return SampleOf(ratios);
}

void FillTimes(const RoundTimes& times, size_t arm, int cycle, double units, const Yard& yard,
               BenchRecord& record) {
  const std::vector<double> ns = GroupMeans(times.ns[arm], cycle);
  const std::vector<double> stream = GroupMeans(times.stream, cycle);
  const std::vector<double> peak = GroupMeans(times.peak, cycle);
  std::vector<double> unit_ns, stream_share, peak_share;
  for (size_t i = 0; i < ns.size(); ++i) {
    if (ns[i] == 0) continue;
    unit_ns.push_back(ns[i] / units);
    stream_share.push_back(1e9 * record.bytes * units / ns[i] / stream[i]);
    peak_share.push_back(1e9 * record.flops * units / ns[i] / peak[i]);
  }
  record.ns = SampleOf(unit_ns);
  if (record.bytes > 0) record.stream_share = SampleOf(stream_share);
  if (record.flops > 0) record.peak_share = SampleOf(peak_share);
  record.yardstick = {SampleOf(times.stream), SampleOf(times.peak), yard.buffer_bytes(),
                      yard.huge_share(), yard.trustworthy()};
}

}  // namespace condense
