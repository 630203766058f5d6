#include "kernels/top.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/top.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Integers in the scores' order. [least, most] spans them. False where a score is NaN.
HWY_INLINE bool MakeKeys(const float* HWY_RESTRICT scores, size_t n, int32_t* HWY_RESTRICT keys,
                         int32_t* least, int32_t* most) {
  const DF d;
  const DI32 di;
  auto low = hn::Set(di, std::numeric_limits<int32_t>::max());
  auto high = hn::Set(di, std::numeric_limits<int32_t>::min());
  MF ordered = hn::Eq(hn::Zero(d), hn::Zero(d));
  const auto key_of = [&](VF score) HWY_ATTR {
    const auto bits = hn::BitCast(di, hn::Add(score, hn::Zero(d)));  // -0 + 0 = +0
    // Of a negative number every bit but the sign flips.
    return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7FFFFFFF)));
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF score = hn::LoadU(d, scores + i);
    ordered = hn::And(ordered, hn::Eq(score, score));
    const auto key = key_of(score);
    hn::StoreU(key, di, keys + i);
    low = hn::Min(low, key);
    high = hn::Max(high, key);
  }
  *least = hn::GetLane(hn::MinOfLanes(di, low));
  *most = hn::GetLane(hn::MaxOfLanes(di, high));
  bool all_ordered = hn::AllTrue(d, ordered);
  for (; i < n; ++i) {
    all_ordered = all_ordered && scores[i] == scores[i];
    keys[i] = hn::GetLane(key_of(hn::Set(d, scores[i])));
    *least = std::min(*least, keys[i]);
    *most = std::max(*most, keys[i]);
  }
  return all_ordered;
}

// Keys above `bound`.
HWY_INLINE size_t CountAbove(const int32_t* HWY_RESTRICT keys, size_t n, int32_t bound) {
  const DI32 di;
  const auto above = hn::Set(di, bound);
  auto count0 = hn::Zero(di), count1 = count0;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    count0 = hn::Sub(count0, hn::VecFromMask(di, hn::Gt(hn::LoadU(di, keys + i), above)));
    count1 = hn::Sub(count1, hn::VecFromMask(di, hn::Gt(hn::LoadU(di, keys + i + kLanes), above)));
  }
  size_t count = static_cast<size_t>(hn::GetLane(hn::SumOfLanes(di, hn::Add(count0, count1))));
  for (; i < n; ++i) count += keys[i] > bound;
  return count;
}

int TopScores(const float* scores, int n_scores, int n_best, int32_t* keys, int* best) {
  const size_t n = static_cast<size_t>(n_scores);
  int32_t least, most;
  if (!MakeKeys(scores, n, keys, &least, &most)) return -1;
  const size_t wanted = std::min(static_cast<size_t>(std::max(n_best, 0)), n);
  if (wanted == n) std::iota(best, best + n, 0);
  if (wanted == n || wanted == 0) return static_cast<int>(wanted);
  // The wanted-th best key lies in (below, most]: more than `wanted` keys, or just as many, are
  // above `below`. No key is the least integer.
  int64_t below = int64_t{least} - 1, top = most;
  size_t above = n;
  while (above != wanted && below + 1 < top) {
    const int64_t middle = below + (top - below) / 2;
    const size_t count = CountAbove(keys, n, static_cast<int32_t>(middle));
    if (count >= wanted) {
      below = middle;
      above = count;
    } else {
      top = middle;
    }
  }
  // Of keys equal to the lowest that is taken, as many as are wanted, by index.
  const int32_t lowest = static_cast<int32_t>(below + 1);
  size_t ties = wanted - CountAbove(keys, n, lowest);
  const DI32 di;
  const auto bound = hn::Set(di, static_cast<int32_t>(below));
  size_t taken = 0;
  const auto take = [&](size_t i) {
    if (keys[i] == lowest) {
      if (ties == 0) return;
      --ties;
    }
    best[taken++] = static_cast<int>(i);
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(di, hn::Gt(hn::LoadU(di, keys + i), bound), bytes);
    for (uint32_t bits = bytes[0] | (bytes[1] << 8); bits != 0; bits &= bits - 1)
      take(i + static_cast<size_t>(std::countr_zero(bits)));
  }
  for (; i < n; ++i) {
    if (keys[i] > below) take(i);
  }
  return static_cast<int>(taken);
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(TopScores);

}  // namespace

int TopScores(const float* scores, int n, int n_best, int32_t* keys, int* best) {
  return HWY_DYNAMIC_DISPATCH(TopScores)(scores, n, n_best, keys, best);
}

}  // namespace condense
#endif  // HWY_ONCE
