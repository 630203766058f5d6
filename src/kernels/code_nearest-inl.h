// The nearest entry of a nibble for 64 rows of y, for encoding and for k-means. Included once per
// target.
#if defined(CONDENSE_KERNELS_CODE_NEAREST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_CODE_NEAREST_INL_H_
#undef CONDENSE_KERNELS_CODE_NEAREST_INL_H_
#else
#define CONDENSE_KERNELS_CODE_NEAREST_INL_H_
#endif

#include <limits>

#include "kernels/token_codes.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// codes[4 j + b] = index of the entry nearest to row 16 b + j, b < 4, ties to the lower index. y:
// [kChannels] rows of 64 values, y_stride apart; entries: [kChannels][16]. A distance that is NaN
// is never the least; entry 0 stands where all are.
template <size_t kChannels>
HWY_INLINE void NearestOf(const float* y, size_t y_stride, const float* entries, uint8_t* codes) {
  constexpr size_t kBlocks = kSegmentRows / 16;
  const DF d;
  const DI32 di;
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF least[kBlocks];
    hn::Vec<DI32> index[kBlocks];
    for (size_t b = 0; b < kBlocks; ++b) {
      least[b] = hn::Set(d, std::numeric_limits<float>::infinity());
      index[b] = hn::Zero(di);
    }
    for (int32_t e = 0; e < kNibbleEntries; ++e) {
      for (size_t b = 0; b < kBlocks; ++b) {
        const float* at = y + b * 16 + g * kLanes;
        VF off = hn::Sub(hn::LoadU(d, at), hn::Set(d, entries[e]));
        VF distance = hn::Mul(off, off);
        for (size_t i = 1; i < kChannels; ++i) {
          off = hn::Sub(hn::LoadU(d, at + i * y_stride),
                        hn::Set(d, entries[i * kNibbleEntries + static_cast<size_t>(e)]));
          distance = hn::MulAdd(off, off, distance);
        }
        const auto nearer = hn::Lt(distance, least[b]);
        least[b] = hn::IfThenElse(nearer, distance, least[b]);
        index[b] = hn::IfThenElse(hn::RebindMask(di, nearer), hn::Set(di, e), index[b]);
      }
    }
    const auto low = hn::Or(index[0], hn::ShiftLeft<8>(index[1]));
    const auto high = hn::Or(hn::ShiftLeft<16>(index[2]), hn::ShiftLeft<24>(index[3]));
    hn::StoreU(hn::BitCast(hn::Repartition<uint8_t, DF>(), hn::Or(low, high)),
               hn::Repartition<uint8_t, DF>(), codes + g * 4 * kLanes);
  }
}

HWY_INLINE void Nearest(size_t n_channels, const float* y, size_t y_stride, const float* entries,
                        uint8_t* codes) {
  switch (n_channels) {
    case 1:
      return NearestOf<1>(y, y_stride, entries, codes);
    case 2:
      return NearestOf<2>(y, y_stride, entries, codes);
    case 3:
      return NearestOf<3>(y, y_stride, entries, codes);
    default:
      return NearestOf<4>(y, y_stride, entries, codes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
