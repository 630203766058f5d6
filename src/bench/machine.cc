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

double MultiplyAddLoop(size_t n_rounds, float factor, float term, float* results) {
  const hn::CappedTag<float, kPeakLanes> d;
  hn::Vec<decltype(d)> sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  const auto factors = hn::Set(d, factor), terms = hn::Set(d, term);
  for (size_t round = 0; round < n_rounds; ++round) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = hn::MulAdd(sums[i], factors, terms);
  }
  for (int i = 0; i < kPeakChains; ++i) hn::StoreU(sums[i], d, results + i * kPeakLanes);
  return 2.0 * kPeakChains * static_cast<double>(n_rounds * hn::Lanes(d));
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
double MultiplyAddLoop(size_t n_rounds, float factor, float term, float* results) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAddLoop)(n_rounds, factor, term, results);
}

}  // namespace condense
#endif  // HWY_ONCE
