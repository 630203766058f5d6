#include "bench/machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float SumStream(const float* values, size_t n) {
  const hn::CappedTag<float, 16> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<float, 16>());
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i < n; i += 4 * kLanes) {
    a = hn::Add(a, hn::LoadU(d, values + i));
    b = hn::Add(b, hn::LoadU(d, values + i + kLanes));
    c = hn::Add(c, hn::LoadU(d, values + i + 2 * kLanes));
    e = hn::Add(e, hn::LoadU(d, values + i + 3 * kLanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

double MultiplyAddLoop(size_t n_rounds, float* sink) {
  const hn::CappedTag<float, 16> d;
  constexpr size_t kChains = 12;
  hn::Vec<decltype(d)> sums[kChains];
  for (size_t i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  for (size_t round = 0; round < n_rounds; ++round) {
    for (size_t i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(sums[i], factor, term);
  }
  auto total = sums[0];
  for (size_t i = 1; i < kChains; ++i) total = hn::Add(total, sums[i]);
  *sink = hn::GetLane(hn::SumOfLanes(d, total));
  return 2.0 * kChains * static_cast<double>(n_rounds * hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {

HWY_EXPORT(SumStream);
HWY_EXPORT(MultiplyAddLoop);

float SumStream(const float* values, size_t n) {
  return HWY_DYNAMIC_DISPATCH(SumStream)(values, n);
}
double MultiplyAddLoop(size_t n_rounds, float* sink) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAddLoop)(n_rounds, sink);
}

}  // namespace condense
#endif  // HWY_ONCE
