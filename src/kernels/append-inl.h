// Lanes of a vector that a mask names, one after the other in memory.
#if defined(CONDENSE_KERNELS_APPEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_APPEND_INL_H_
#undef CONDENSE_KERNELS_APPEND_INL_H_
#else
#define CONDENSE_KERNELS_APPEND_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Calls function(lane, number of lanes before it) for every lane of the mask, ascending; returns
// how many there are.
template <class Function>
HWY_INLINE size_t ForLanes(hn::Mask<DI32> mask, const Function& function) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(DI32(), mask, bytes);
  size_t count = 0;
  for (uint32_t bits = bytes[0] | uint32_t{bytes[1]} << 8; bits != 0; bits &= bits - 1, ++count)
    function(static_cast<size_t>(std::countr_zero(bits)), count);
  return count;
}

// Writes the lanes of the mask to `to`, and perhaps something to the rest of a whole vector there;
// returns how many they are.
HWY_INLINE size_t AppendWhere(hn::Vec<DI32> lanes, hn::Mask<DI32> mask, int32_t* to) {
  const DI32 di;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Intel's compressing stores are slow, a register's compression is not.
  hn::StoreU(hn::Compress(lanes, mask), di, to);
  return hn::CountTrue(di, mask);
#else
  // Highway compresses by a table, which GCC copies to the stack each time (130 instructions).
  if (hn::AllFalse(di, mask)) return 0;
  HWY_ALIGN int32_t values[kLanes];
  hn::Store(lanes, di, values);
  return ForLanes(mask, [&](size_t lane, size_t i) { to[i] = values[lane]; });
#endif
}

// The same of two vectors at once.
HWY_INLINE size_t AppendWith(VF lanes, hn::Vec<DI32> others, MF mask, float* to,
                             int32_t* to_others) {
  const DI32 di;
  const auto also = hn::RebindMask(di, mask);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  hn::StoreU(hn::Compress(lanes, mask), DF(), to);
  hn::StoreU(hn::Compress(others, also), di, to_others);
  return hn::CountTrue(di, also);
#else
  if (hn::AllFalse(di, also)) return 0;
  HWY_ALIGN float values[kLanes];
  HWY_ALIGN int32_t other_values[kLanes];
  hn::Store(lanes, DF(), values);
  hn::Store(others, di, other_values);
  return ForLanes(also, [&](size_t lane, size_t i) {
    to[i] = values[lane];
    to_others[i] = other_values[lane];
  });
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
