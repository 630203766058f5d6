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

}  // namespace condense
