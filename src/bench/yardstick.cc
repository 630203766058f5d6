#include "bench/yardstick.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "bench/machine.h"

namespace condense {
namespace {

constexpr size_t kPeakRounds = 400000;  // about a millisecond
constexpr int kCacheRepeats = 64;
constexpr size_t kPartBytes = 4096;  // parts of the buffer are whole pages

const float* Floats(const Buffer& buffer, size_t at) {
  return reinterpret_cast<const float*>(buffer.data() + at);
}

}  // namespace

Result<std::unique_ptr<Yard>> Yard::Make(uint64_t buffer_bytes, uint64_t free_bytes, int n_threads,
                                         bool huge_pages) {
  auto yard = std::make_unique<Yard>();
  const uint64_t second_level = CacheBytes(2);
  yard->n_cache_bytes_ = (second_level > 0 ? second_level / 2 : 131072) / kPartBytes * kPartBytes;
  const uint64_t asked = buffer_bytes > 0 ? buffer_bytes : MemoryPassBytes(free_bytes);
  yard->n_bytes_ = std::max(asked, yard->n_cache_bytes_ * n_threads) / kPartBytes * kPartBytes;
  Result<Buffer> buffer = Buffer::Map(yard->n_bytes_, huge_pages);
  if (!buffer.ok()) return Error{buffer.error()};
  yard->buffer_ = std::move(buffer.value());
  auto* values = reinterpret_cast<float*>(yard->buffer_.data());
  const auto n_parts = static_cast<int64_t>(yard->n_bytes_ / kPartBytes);
#pragma omp parallel for num_threads(n_threads) schedule(static)
  for (int64_t part = 0; part < n_parts; ++part) {
    std::fill_n(values + part * (kPartBytes / sizeof(float)), kPartBytes / sizeof(float), 1.0f);
  }
  yard->CheckGrowth();
  return yard;
}

double Yard::StreamPass(int n_threads) {
  const size_t n_parts = n_bytes_ / kPartBytes;
  float total = 0;
  const auto start = Clock::now();
#pragma omp parallel num_threads(n_threads) reduction(+ : total)
  {
    const size_t thread = omp_get_thread_num(), n = omp_get_num_threads();
    const size_t begin = n_parts * thread / n * kPartBytes;
    const size_t end = n_parts * (thread + 1) / n * kPartBytes;
    total += SumStream(Floats(buffer_, begin), (end - begin) / sizeof(float));
  }
  const double seconds = SecondsSince(start);
  results_right_ = results_right_ && total > 0;
  return static_cast<double>(n_bytes_) / seconds;
}

double Yard::CachePass(int n_threads) {
  float total = 0;
  double seconds = 0;
#pragma omp parallel num_threads(n_threads) reduction(+ : total) reduction(max : seconds)
  {
    const float* mine = Floats(buffer_, n_cache_bytes_ * omp_get_thread_num());
    const size_t n = n_cache_bytes_ / sizeof(float);
    total += SumStream(mine, n);
#pragma omp barrier
    const auto start = Clock::now();
    for (int i = 0; i < kCacheRepeats; ++i) total += SumStream(mine, n);
    seconds = SecondsSince(start);
  }
  results_right_ = results_right_ && total > 0;
  return static_cast<double>(n_cache_bytes_) * kCacheRepeats * n_threads / seconds;
}

double Yard::TimePeak(int n_threads, size_t n_rounds, double* flops) {
  // Out of the compiler's sight: neither the loop nor its result can be known before it runs.
  volatile float factor = 1.0f, term = 0.5f;
  const float factor_now = factor, term_now = term;
  double sum = 0, seconds = 0;
  bool right = true;
#pragma omp parallel num_threads(n_threads) reduction(+ : sum) \
    reduction(max : seconds) reduction(&& : right)
  {
    float results[kPeakChains * kPeakLanes];
    const auto start = Clock::now();
    sum = MultiplyAddLoop(n_rounds, factor_now, term_now, results);
    seconds = SecondsSince(start);
    const int n_lanes = static_cast<int>(sum / (2.0 * kPeakChains * static_cast<double>(n_rounds)));
    for (int i = 0; i < kPeakChains; ++i) {
      // Exact: halves below 2^23.
      const float closed = static_cast<float>(i) + 0.5f * static_cast<float>(n_rounds);
      for (int lane = 0; lane < n_lanes; ++lane) {
        right = right && results[i * kPeakLanes + lane] == closed;
      }
    }
  }
  results_right_ = results_right_ && right;
  *flops = sum;
  return seconds;
}

double Yard::PeakPass(int n_threads) {
  double flops = 0;
  const double seconds = TimePeak(n_threads, kPeakRounds, &flops);
  return flops / seconds;
}

void Yard::CheckGrowth() {
  std::vector<double> ratios;
  double flops = 0;
  for (int i = 0; i < 9; ++i) {
    const double once = TimePeak(1, kPeakRounds, &flops);
    ratios.push_back(TimePeak(1, 2 * kPeakRounds, &flops) / once);
  }
  const double ratio = SampleOf(ratios).median;
  time_grows_ = ratio >= 1.7 && ratio <= 2.3;
}

Result<BenchOutcome> BenchMachine(const BenchOptions& options, const BenchControl& control) {
  Result<std::unique_ptr<Yard>> made =
      Yard::Make(options.buffer_bytes, options.free_bytes, options.n_threads, options.huge_pages);
  if (!made.ok()) return Error{made.error()};
  Yard& yard = *made.value();
  struct Kind {
    const char* name;
    double (Yard::*pass)(int);
    bool reads;
    uint64_t n_bytes;
  };
  const Kind kinds[] = {{"stream", &Yard::StreamPass, true, yard.buffer_bytes()},
                        {"cache", &Yard::CachePass, true, yard.cache_bytes()},
                        {"multiply-add", &Yard::PeakPass, false, 0}};
  std::vector<int> thread_counts = {1};
  if (options.n_threads > 1) thread_counts.push_back(options.n_threads);
  const size_t n_passes = std::size(kinds) * thread_counts.size();
  std::vector<std::vector<double>> rates(n_passes);

  const int n_rounds = options.n_rounds > 0 ? options.n_rounds : 15;
  BenchOutcome outcome = BenchOutcome::kDone;
  for (int round = 0; round < n_rounds && outcome == BenchOutcome::kDone; ++round) {
    for (size_t i = 0; i < n_passes; ++i) {
      if (control.stopped && control.stopped()) {
        outcome = BenchOutcome::kStopped;
        break;
      }
      const size_t at = round % 2 == 0 ? i : n_passes - 1 - i;
      const Kind& kind = kinds[at / thread_counts.size()];
      rates[at].push_back((yard.*kind.pass)(thread_counts[at % thread_counts.size()]));
      if (control.on_progress) {
        control.on_progress("machine", static_cast<int64_t>(round * n_passes + i + 1),
                            static_cast<int64_t>(n_rounds * n_passes));
      }
    }
  }

  std::vector<BenchRecord> records;
  for (size_t at = 0; at < n_passes; ++at) {
    if (rates[at].empty()) continue;
    const Kind& kind = kinds[at / thread_counts.size()];
    BenchRecord record;
    record.bench = "machine";
    record.arm = kind.name;
    record.per = "pass";
    record.source = kind.reads ? (kind.n_bytes == yard.buffer_bytes() ? "memory" : "cache") : "";
    record.n_threads = thread_counts[at % thread_counts.size()];
    // A unit is a second's work turned around: the time of one pass follows from its rate.
    const double work = kind.reads ? static_cast<double>(kind.n_bytes) : 1e9;
    std::vector<double> ns;
    for (double rate : rates[at]) ns.push_back(1e9 * work / rate);
    record.ns = SampleOf(ns);
    (kind.reads ? record.bytes : record.flops) = work;
    record.trustworthy = yard.trustworthy();
    const size_t stream = at % thread_counts.size();
    const size_t peak = 2 * thread_counts.size() + stream;
    record.yardstick = {SampleOf(rates[stream]), SampleOf(rates[peak]), yard.buffer_bytes(),
                        yard.huge_share(), yard.trustworthy()};
    records.push_back(std::move(record));
  }
  if (control.on_records) {
    const Status written = control.on_records(records);
    if (!written.ok()) return Error{written.error()};
  }
  return outcome;
}

}  // namespace condense
