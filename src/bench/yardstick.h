// The yardstick that every figure stands beside: stream-read bandwidth from memory and from cache,
// FP32 multiply-adds in registers, on as many threads as asked. A peak counts only if its loop's
// results are the closed form's and its time grows with its rounds.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/memory.h"
#include "bench/options.h"
#include "bench/record.h"

namespace condense {

class Yard {
 public:
  // buffer_bytes: 0 for MemoryPassBytes(free_bytes). The buffer's pages are touched by the team.
  static Result<std::unique_ptr<Yard>> Make(uint64_t buffer_bytes, uint64_t free_bytes,
                                            int n_threads, bool huge_pages);

  // One timed pass over the buffer: bytes a second. Leaves the caches without older data.
  double StreamPass(int n_threads);
  // Each thread reads its own part of the buffer, half its second-level cache, again and again.
  double CachePass(int n_threads);
  // Operations a second of all threads together.
  double PeakPass(int n_threads);

  uint64_t buffer_bytes() const { return n_bytes_; }
  uint64_t cache_bytes() const { return n_cache_bytes_; }  // a thread
  double huge_share() const { return buffer_.HugeShare(); }
  // Every result of every PeakPass was the closed form's, and twice the rounds took between 1.7
  // and 2.3 times as long.
  bool trustworthy() const { return results_right_ && time_grows_; }

 private:
  void CheckGrowth();
  double TimePeak(int n_threads, size_t n_rounds, double* flops);

  Buffer buffer_;
  uint64_t n_bytes_ = 0, n_cache_bytes_ = 0;
  bool results_right_ = true, time_grows_ = false;
};

// `condense bench machine`: every pass on one thread and on all, in turns. One record each.
Result<BenchOutcome> BenchMachine(const BenchOptions& options, const BenchControl& control);

}  // namespace condense
