#include "kernels/quantize.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

constexpr size_t kVectors = kQ8BlockValues / kLanes;

// NaN where a value is not finite.
HWY_INLINE float LargestMagnitude(const VF* values) {
  const DF d;
  VF most = hn::Zero(d);
  MF finite = hn::Eq(most, most);
  for (size_t i = 0; i < kVectors; ++i) {
    const VF magnitude = hn::Abs(values[i]);
    finite = hn::And(finite, hn::Lt(magnitude, hn::Set(d, std::numeric_limits<float>::infinity())));
    most = MaxNumber(magnitude, most);
  }
  return hn::AllTrue(d, finite) ? LargestLane(most) : std::numeric_limits<float>::quiet_NaN();
}

template <KvType kType>
HWY_INLINE void Quantize(const std::byte* row, size_t dim, std::byte* to) {
  const DF d;
  const hn::Rebind<int8_t, DF> d8;
  for (size_t c = 0; c < dim; c += kQ8BlockValues, to += kQ8BlockBytes) {
    VF values[kVectors];
    for (size_t i = 0; i < kVectors; ++i) values[i] = Stored<kType>::Load(row, c + i * kLanes);
    const uint16_t scale = F16FromF32Saturated(LargestMagnitude(values) / 127);
    std::memcpy(to, &scale, sizeof(scale));
    const float step = F32FromF16(scale);
    const VF inverse = hn::Set(d, step > 0 ? 1 / step : 0.0f);
    for (size_t i = 0; i < kVectors; ++i) {
      // A scale that was rounded down makes the largest value 127 and a little.
      const VF quotient =
          hn::Min(hn::Max(hn::Mul(values[i], inverse), hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
      const auto whole = hn::DemoteTo(d8, hn::NearestInt(quotient));
      hn::StoreU(whole, d8, reinterpret_cast<int8_t*>(to + 2 + i * kLanes));
    }
  }
}

void QuantizeRow(const std::byte* row, KvType type, size_t dim, std::byte* to) {
  WithType(type, [&]<KvType kType>() HWY_ATTR { Quantize<kType>(row, dim, to); });
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(QuantizeRow);

}  // namespace

void QuantizeRow(const std::byte* row, KvType type, int dim, std::byte* to) {
  CONDENSE_CHECK(dim > 0 && dim % static_cast<int>(kQ8BlockValues) == 0);
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(row, type, static_cast<size_t>(dim), to);
}

}  // namespace condense
#endif  // HWY_ONCE
