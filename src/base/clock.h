// Time as the counters take it.
#pragma once

#include <chrono>
#include <cstdint>

namespace condense {

using Clock = std::chrono::steady_clock;

inline uint64_t NsBetween(Clock::time_point from, Clock::time_point to) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}
inline uint64_t NsSince(Clock::time_point start) { return NsBetween(start, Clock::now()); }

inline double Seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }
inline double SecondsSince(Clock::time_point start) { return Seconds(NsSince(start)); }

}  // namespace condense
