// What codes code: a segment's keys less their centroid, channel by channel, weighted or rotated.
// Included once per target.
#if defined(CONDENSE_KERNELS_CODE_RESIDUALS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_CODE_RESIDUALS_INL_H_
#undef CONDENSE_KERNELS_CODE_RESIDUALS_INL_H_
#else
#define CONDENSE_KERNELS_CODE_RESIDUALS_INL_H_
#endif

#include "kernels/token_codes.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// y[c * 64 + row] = weights[c] (key - centroid) for all channels of a segment's rows; without
// weights, 1 each. `tile`: from the segment's lane on.
template <KvType kType>
HWY_INLINE void WeighSegment(const SegmentKeys& keys, const int8_t* tile, float scale,
                             const float* weights, float* y) {
  const DF d;
  HWY_ALIGN float row[16][16];
  for (size_t c = 0; c < static_cast<size_t>(keys.dim); c += 16) {
    HWY_ALIGN float center[16];
    for (size_t i = 0; i < 16; ++i)
      center[i] = scale * static_cast<float>(tile[(c + i) * kTileSegments]);
    for (size_t first = 0; first < kSegmentRows; first += 16) {
      for (size_t r = 0; r < 16; ++r) {
        for (size_t g = 0; g < 16; g += kLanes) {
          const VF key = Stored<kType>::Load(keys.k + (first + r) * keys.k_stride, c + g);
          const VF off = hn::Sub(key, hn::Load(d, center + g));
          const VF weight = weights != nullptr ? hn::LoadU(d, weights + c + g) : hn::Set(d, 1.0f);
          hn::Store(hn::Mul(weight, off), d, row[r] + g);
        }
      }
      for (size_t i = 0; i < 16; ++i) {
        float* to = y + (c + i) * kSegmentRows + first;
        for (size_t r = 0; r < 16; ++r) to[r] = row[r][i];
      }
    }
  }
}

// kAxes rows of y, from `first_row` on kVectors vectors of them.
template <size_t kAxes, size_t kVectors>
HWY_INLINE void RotateTile(const float* axes, size_t dim, const float* x, float* y) {
  const DF d;
  VF sum[kAxes][kVectors];
  for (size_t a = 0; a < kAxes; ++a) {
    for (size_t v = 0; v < kVectors; ++v) sum[a][v] = hn::Zero(d);
  }
  for (size_t c = 0; c < dim; ++c) {
    VF rows[kVectors];
    for (size_t v = 0; v < kVectors; ++v) rows[v] = hn::LoadU(d, x + c * kSegmentRows + v * kLanes);
    for (size_t a = 0; a < kAxes; ++a) {
      const VF factor = hn::Set(d, axes[a * dim + c]);
      for (size_t v = 0; v < kVectors; ++v) sum[a][v] = hn::MulAdd(factor, rows[v], sum[a][v]);
    }
  }
  for (size_t a = 0; a < kAxes; ++a) {
    for (size_t v = 0; v < kVectors; ++v)
      hn::StoreU(sum[a][v], d, y + a * kSegmentRows + v * kLanes);
  }
}

// y[a * 64 + row] = the sum over channels, ascending, of axes[a * dim + c] · x[c * 64 + row], for
// n_axes axes.
HWY_INLINE void RotateRows(const float* axes, size_t n_axes, size_t dim, const float* x, float* y) {
  // AVX2 has 16 registers, what comes before has no more.
  constexpr size_t kVectors = kLanes == 16 || HWY_ARCH_ARM_A64 ? 4 : 2;
  for (size_t first = 0; first < kSegmentRows; first += kVectors * kLanes) {
    size_t a = 0;
    for (; a + 4 <= n_axes; a += 4)
      RotateTile<4, kVectors>(axes + a * dim, dim, x + first, y + a * kSegmentRows + first);
    for (; a < n_axes; ++a)
      RotateTile<1, kVectors>(axes + a * dim, dim, x + first, y + a * kSegmentRows + first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
