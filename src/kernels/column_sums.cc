#include "kernels/column_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/column_sums.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>

#include "base/result.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

void AddShares(const float* logits, size_t n, float max, float sum, float* sums) {
  const DF d;
  const VF top = hn::Set(d, max), inverse = hn::Set(d, 1.0f / sum);
  for (size_t i = 0; i < n; i += kLanes) {
    const VF share = ExpNonPositive(hn::Sub(hn::LoadU(d, logits + i), top));
    hn::StoreU(hn::MulAdd(share, inverse, hn::LoadU(d, sums + i)), d, sums + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(AddShares);

}  // namespace

void AddShares(const float* logits, size_t n, float max, float sum, float* sums) {
  CONDENSE_CHECK(n % 16 == 0 && sum > 0);
  HWY_DYNAMIC_DISPATCH(AddShares)(logits, n, max, sum, sums);
}

}  // namespace condense
#endif  // HWY_ONCE
