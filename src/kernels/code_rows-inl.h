// The order in which a scan leaves the rows of a segment (PlaceOfRow), taken apart.
#if defined(CONDENSE_KERNELS_CODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_CODE_ROWS_INL_H_
#undef CONDENSE_KERNELS_CODE_ROWS_INL_H_
#else
#define CONDENSE_KERNELS_CODE_ROWS_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

using DU16 = hn::Repartition<uint16_t, DF>;
using VU16 = hn::Vec<DU16>;

// Of words that hold rows j and 32 + j each, the exponentials of either in FP32.
HWY_INLINE VF LowerRows(VU16 words) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::BitCast(DU32(), words)));
}
HWY_INLINE VF UpperRows(VU16 words) {
  return hn::BitCast(DF(), hn::And(hn::BitCast(DU32(), words), hn::Set(DU32(), 0xFFFF0000u)));
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
