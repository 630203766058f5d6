#include "kernels/moments.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moments.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/token_codes.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Products of kTile channels with kTile others are kept in registers.
constexpr size_t kTile = 4;

void AddProducts(const float* q, size_t dim, float share, float* products) {
  const DF d;
  for (size_t i = 0; i < dim; ++i) {
    const VF factor = hn::Set(d, share * q[i]);
    float* row = products + i * dim;
    for (size_t j = i / 16 * 16; j < dim; j += kLanes)
      hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, q + j), hn::LoadU(d, row + j)), d, row + j);
  }
}

// Sums over all rows for channels i … i + 3 with j … j + 3: 16 lanes (row mod 16), rows ascending,
// then the tree.
HWY_INLINE void SumTile(const float* x, size_t n_segments, size_t dim, const float* mean, size_t i,
                        size_t j, float* sums) {
  const DF d;
  VF lanes[kTile * kTile][kRowVectors];
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF sum[kTile * kTile];
    for (VF& value : sum) value = hn::Zero(d);
    for (size_t s = 0; s < n_segments; ++s) {
      const float* rows = x + s * dim * kSegmentRows + g * kLanes;
      for (size_t r = 0; r < kSegmentRows; r += 16) {
        VF left[kTile];
        for (size_t a = 0; a < kTile; ++a) {
          left[a] =
              hn::Sub(hn::LoadU(d, rows + (i + a) * kSegmentRows + r), hn::Set(d, mean[i + a]));
        }
        for (size_t b = 0; b < kTile; ++b) {
          const VF right =
              hn::Sub(hn::LoadU(d, rows + (j + b) * kSegmentRows + r), hn::Set(d, mean[j + b]));
          for (size_t a = 0; a < kTile; ++a)
            sum[a * kTile + b] = hn::MulAdd(left[a], right, sum[a * kTile + b]);
        }
      }
    }
    for (size_t t = 0; t < kTile * kTile; ++t) lanes[t][g] = sum[t];
  }
  for (size_t t = 0; t < kTile * kTile; ++t) sums[t] = SumOfLanes(lanes[t]);
}

void Covariance(const float* x, size_t n_segments, size_t dim, const float* mean, double* result) {
  const auto n = static_cast<double>(n_segments * kSegmentRows);
  for (size_t i = 0; i < dim; i += kTile) {
    for (size_t j = i; j < dim; j += kTile) {
      float sums[kTile * kTile];
      SumTile(x, n_segments, dim, mean, i, j, sums);
      for (size_t a = 0; a < kTile; ++a) {
        for (size_t b = 0; b < kTile; ++b) {
          const double value = static_cast<double>(sums[a * kTile + b]) / n;
          result[(i + a) * dim + j + b] = result[(j + b) * dim + i + a] = value;
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(AddProducts);
HWY_EXPORT(Covariance);

}  // namespace

void AddProducts(const float* q, int dim, float share, float* products) {
  HWY_DYNAMIC_DISPATCH(AddProducts)(q, static_cast<size_t>(dim), share, products);
}

std::vector<double> Covariance(const float* x, size_t n_segments, size_t dim, const float* mean) {
  std::vector<double> result(dim * dim, 0.0);
  if (n_segments > 0) HWY_DYNAMIC_DISPATCH(Covariance)(x, n_segments, dim, mean, result.data());
  return result;
}

}  // namespace condense
#endif  // HWY_ONCE
