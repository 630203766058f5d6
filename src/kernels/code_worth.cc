// From a scan's exponentials to rows worth reading: masses of segments, worths over the heads of a
// group, and the rows above a bound.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/token_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_worth.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/append-inl.h"
#include "kernels/code_rows-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

constexpr size_t kRows = kSegmentRows;
constexpr float kInf = std::numeric_limits<float>::infinity();

// exp(x) for x <= 0, 0 below -87 and at -inf, relative error at most 2^-13. ExpNonPositive takes
// half as many instructions again.
HWY_INLINE VF RoughExp(VF x) {
  const DF d;
  const VF log2e = hn::Set(d, 1.44269504f);
  const VF magic = hn::Set(d, 12582912.0f);  // rounds to an integer, as in ExpNonPositive
  const VF rounded = hn::MulAdd(x, log2e, magic);
  const VF f = hn::MulSub(x, log2e, hn::Sub(rounded, magic));
  // Minimax for 2^f, |f| <= 1/2: relative error 7.5e-5.
  VF y = hn::MulAdd(f, hn::Set(d, 0.05517166906f), hn::Set(d, 0.24261112219f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.69326098547f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.99992807354f));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(DI32(), rounded));
  y = hn::BitCast(d, hn::Add(hn::BitCast(DI32(), y), power));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), y);
}

float SegmentMass(const float* references, const float* sums, float max, size_t first, size_t last,
                  float* factors) {
  const DF d;
  const VF top = hn::Set(d, max);
  VF mass[kRowVectors];
  for (VF& sum : mass) sum = hn::Zero(d);
  size_t s = first;
  for (; s + 16 <= last; s += 16) {
    for (size_t g = 0; g < kRowVectors; ++g) {
      const size_t at = s + g * kLanes;
      const VF factor = RoughExp(hn::Sub(hn::LoadU(d, references + at), top));
      hn::StoreU(factor, d, factors + at);
      mass[g] = hn::MulAdd(factor, hn::LoadU(d, sums + at), mass[g]);
    }
  }
  HWY_ALIGN float rest[2][16];
  for (size_t i = 0; i < 16; ++i) {
    rest[0][i] = s + i < last ? references[s + i] : -kInf;
    rest[1][i] = s + i < last ? sums[s + i] : 0.0f;
  }
  for (size_t g = 0; g < kRowVectors; ++g) {
    const VF factor = RoughExp(hn::Sub(hn::Load(d, rest[0] + g * kLanes), top));
    mass[g] = hn::MulAdd(factor, hn::Load(d, rest[1] + g * kLanes), mass[g]);
    hn::Store(factor, d, rest[0] + g * kLanes);
  }
  std::memcpy(factors + s, rest[0], (last - s) * sizeof(float));
  return SumOfLanes(mass);
}

float LargestOf(const float* values, size_t n) {
  const DF d;
  VF most = hn::Set(d, -kInf);
  MF ordered = hn::Eq(most, most);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF value = hn::LoadU(d, values + i);
    ordered = hn::And(ordered, hn::Eq(value, value));
    most = MaxNumber(value, most);
  }
  float largest = LargestLane(most);
  bool nan = !hn::AllTrue(d, ordered);
  for (; i < n; ++i) {
    nan = nan || values[i] != values[i];
    largest = values[i] > largest ? values[i] : largest;
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

float ExpOf(const float* logits, size_t n, float max, float* p) {
  const DF d;
  const VF top = hn::Set(d, max == -kInf ? 0.0f : max);
  VF sum[kRowVectors];
  for (VF& lanes : sum) lanes = hn::Zero(d);
  for (size_t i = 0; i < n; i += 16) {
    for (size_t g = 0; g < kRowVectors; ++g) {
      const VF value = RoughExp(hn::Sub(hn::LoadU(d, logits + i + g * kLanes), top));
      hn::StoreU(value, d, p + i + g * kLanes);
      sum[g] = hn::Add(sum[g], value);
    }
  }
  return SumOfLanes(sum);
}

void WorthOf(const float* p, size_t stride, size_t n_heads, const float* share, size_t n,
             float* worth) {
  const DF d;
  for (size_t i = 0; i < n; i += kLanes) {
    VF sum = hn::Zero(d);
    for (size_t h = 0; h < n_heads; ++h)
      sum = hn::MulAdd(hn::LoadU(d, p + h * stride + i), hn::Set(d, share[h]), sum);
    hn::StoreU(sum, d, worth + i);
  }
}

// kHeads heads whose factors are kept in registers; 0: any number.
template <size_t kHeads>
size_t Collect(const CollectArgs& args, size_t first, size_t last, float least,
               float* HWY_RESTRICT worths, int32_t* HWY_RESTRICT rows) {
  const DF d;
  const DI32 di;
  const size_t n_heads = kHeads != 0 ? kHeads : static_cast<size_t>(args.n_heads);
  const VF bound = hn::Set(d, least);
  size_t n = 0;
  for (size_t s = first; s < last; ++s) {
    uint64_t counts = ~uint64_t{0};
    if (args.visible != nullptr) std::memcpy(&counts, args.visible + s * (kRows / 16), 8);
    if (counts == 0) continue;
    VF factors[kHeads != 0 ? kHeads : 1];
    for (size_t h = 0; h < kHeads; ++h)
      factors[h] = hn::Set(d, args.factors[h * args.segment_stride + s] * args.share[h]);
    for (size_t r = 0; r < kRows; r += kLanes) {
      const uint16_t* p = args.p + s * kRows + PlaceOfRow(static_cast<int>(r % 32));
      VF worth = hn::Zero(d);
      for (size_t h = 0; h < n_heads; ++h) {
        const VF factor =
            kHeads != 0 ? factors[kHeads != 0 ? h : 0]
                        : hn::Set(d, args.factors[h * args.segment_stride + s] * args.share[h]);
        const VU16 words = hn::LoadU(DU16(), p + h * args.p_stride);
        worth = hn::MulAdd(r < 32 ? LowerRows(words) : UpperRows(words), factor, worth);
      }
      MF above = hn::Ge(worth, bound);
      if (counts != ~uint64_t{0}) {
        above = hn::And(
            above, RowMaskLanes(static_cast<uint16_t>(counts >> (r / 16 * 16)), r % 16 / kLanes));
      }
      n += AppendWith(worth, hn::Iota(di, static_cast<int32_t>(s * kRows + r)), above, worths + n,
                      rows + n);
    }
  }
  return n;
}

size_t CollectRows(const CollectArgs& args, size_t first, size_t last, float least, float* worths,
                   int32_t* rows) {
  switch (args.n_heads) {
    case 1:
      return Collect<1>(args, first, last, least, worths, rows);
    case 2:
      return Collect<2>(args, first, last, least, worths, rows);
    case 3:
      return Collect<3>(args, first, last, least, worths, rows);
    case 4:
      return Collect<4>(args, first, last, least, worths, rows);
    default:
      return Collect<0>(args, first, last, least, worths, rows);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(SegmentMass);
HWY_EXPORT(LargestOf);
HWY_EXPORT(ExpOf);
HWY_EXPORT(WorthOf);
HWY_EXPORT(CollectRows);

}  // namespace

float SegmentMass(const float* references, const float* sums, float max, int first, int last,
                  float* factors) {
  CONDENSE_CHECK(0 <= first && first <= last);
  return HWY_DYNAMIC_DISPATCH(SegmentMass)(references, sums, max, static_cast<size_t>(first),
                                           static_cast<size_t>(last), factors);
}

float LargestOf(const float* values, int n) {
  CONDENSE_CHECK(n >= 0);
  return HWY_DYNAMIC_DISPATCH(LargestOf)(values, static_cast<size_t>(n));
}

float ExpOf(const float* logits, int n, float max, float* p) {
  CONDENSE_CHECK(n >= 0 && n % 16 == 0);
  return HWY_DYNAMIC_DISPATCH(ExpOf)(logits, static_cast<size_t>(n), max, p);
}

void WorthOf(const float* p, size_t stride, int n_heads, const float* share, int n, float* worth) {
  CONDENSE_CHECK(n >= 0 && n % 16 == 0);
  HWY_DYNAMIC_DISPATCH(WorthOf)
  (p, stride, static_cast<size_t>(n_heads), share, static_cast<size_t>(n), worth);
}

int CollectRows(const CollectArgs& args, int first, int last, float least, float* worths,
                int32_t* rows) {
  CONDENSE_CHECK(0 <= first && first <= last);
  return static_cast<int>(HWY_DYNAMIC_DISPATCH(CollectRows)(
      args, static_cast<size_t>(first), static_cast<size_t>(last), least, worths, rows));
}

}  // namespace condense
#endif  // HWY_ONCE
