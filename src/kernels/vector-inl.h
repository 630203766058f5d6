// Per-target building blocks: loads of every KV type as FP32, row masks, exponential and tanh.
// Included once per target. A virtual vector of 16 rows is kRowVectors vectors of kLanes floats.
// Targets without fused multiply-add (SSSE3, SSE4, EMU128) round twice where others round once.
#if defined(CONDENSE_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_VECTOR_INL_H_
#undef CONDENSE_KERNELS_VECTOR_INL_H_
#else
#define CONDENSE_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/kv_type.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU32 = hn::Rebind<uint32_t, DF>;
using DI32 = hn::Rebind<int32_t, DF>;
using VF = hn::Vec<DF>;
using MF = hn::Mask<DF>;
inline constexpr size_t kLanes = hn::MaxLanes(DF());
inline constexpr size_t kRowVectors = 16 / kLanes;

// As many f16 at `from` as D has lanes; exact, subnormals, infinities and NaN included. Highway's
// own emulation of older instruction sets takes infinities and NaN for numbers.
template <class D>
HWY_INLINE hn::Vec<D> LoadF16(D d, const void* from) {
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(from)));
#else
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto half = hn::PromoteTo(d32, hn::LoadU(d16, static_cast<const uint16_t*>(from)));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000u)));
  const auto magnitude = hn::And(half, hn::Set(d32, 0x7FFFu));
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto inf_bits = hn::IfThenElseZero(hn::Ge(scaled, hn::Set(d, 0x1p16f)),
                                           hn::BitCast(d, hn::Set(d32, 0x7F800000u)));
  return hn::Or(hn::Or(scaled, inf_bits), hn::BitCast(d, sign));
#endif
}

HWY_INLINE float LoadF16(const void* from) {
  return hn::GetLane(LoadF16(hn::CappedTag<float, 1>(), from));
}

// kLanes values of a stored row, from channel c (a multiple of kLanes).
template <KvType kType>
struct Stored;

template <>
struct Stored<KvType::kF32> {
  static HWY_INLINE VF Load(const std::byte* row, size_t c) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(row) + c);
  }
};
template <>
struct Stored<KvType::kF16> {
  static HWY_INLINE VF Load(const std::byte* row, size_t c) { return LoadF16(DF(), row + 2 * c); }
};
template <>
struct Stored<KvType::kBF16> {
  static HWY_INLINE VF Load(const std::byte* row, size_t c) {
    const hn::Rebind<uint16_t, DF> d16;
    const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + c);
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), half)));
  }
};
template <>
struct Stored<KvType::kQ8_0> {
  // Exact: 11 bits of scale times 8 bits of value.
  static HWY_INLINE VF Load(const std::byte* row, size_t c) {
    const std::byte* block = row + c / kQ8BlockValues * kQ8BlockBytes;
    const hn::Rebind<int8_t, DF> d8;
    const auto values = hn::PromoteTo(
        DI32(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(block + 2 + c % kQ8BlockValues)));
    return hn::Mul(hn::ConvertTo(DF(), values), hn::Set(DF(), LoadF16(block)));
  }
};

// Calls function.template operator()<kType>() for the run-time type.
template <class Function>
HWY_INLINE void WithType(KvType type, const Function& function) {
  switch (type) {
    case KvType::kF32:
      return function.template operator()<KvType::kF32>();
    case KvType::kF16:
      return function.template operator()<KvType::kF16>();
    case KvType::kBF16:
      return function.template operator()<KvType::kBF16>();
    case KvType::kQ8_0:
      return function.template operator()<KvType::kQ8_0>();
  }
}

// Splits n queries into batches of 1, 2, 3, 4, 6, 7 or 8, at most kMost, and calls
// function.template operator()<kN>(first) for each. Results do not depend on the split.
template <size_t kMost, class Function>
HWY_INLINE void ForBatches(size_t n, const Function& function) {
  size_t first = 0;
  const auto take = [&]<size_t kN>() HWY_ATTR {
    function.template operator()<kN>(first);
    first += kN;
  };
  while (first < n) {
    const size_t left = n - first;
    if (kMost >= 8 && left == 8) {
      take.template operator()<kMost >= 8 ? 8 : 4>();
    } else if (kMost >= 8 && left == 7) {
      take.template operator()<kMost >= 8 ? 7 : 4>();
    } else if (left >= 9 || left == 6) {
      take.template operator()<6>();
    } else if (left == 4 || left >= 7) {
      take.template operator()<4>();
    } else if (left >= 3) {
      take.template operator()<3>();
    } else if (left == 2) {
      take.template operator()<2>();
    } else {
      take.template operator()<1>();
    }
  }
}

// Largest of two; a NaN in `value` is passed over.
HWY_INLINE VF MaxNumber(VF value, VF so_far) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(value, so_far);  // the second operand where one is NaN
#else
  return hn::IfThenElse(hn::Gt(value, so_far), value, so_far);
#endif
}

// Memory that is needed later, fetched a line at a time during the work on something earlier. In
// one go the fetches would fill the core's line buffers and hold up that work (measured: 6 instead
// of 9 GB/s from memory).
class Fetch {
 public:
  // Into the first-level cache: rows of `bytes` bytes, one with each Row().
  HWY_INLINE void SetRows(const std::byte* rows, size_t stride, size_t bytes, size_t n_rows = 16) {
    row_ = rows;
    stride_ = stride;
    second_ = bytes > 64 ? 64 : bytes - 1;
    bytes_ = bytes;
    rows_left_ = n_rows;
  }
  HWY_INLINE void Row() {
    if (rows_left_ == 0) return;
    --rows_left_;
    hwy::Prefetch(row_);
    hwy::Prefetch(row_ + second_);
    for (size_t offset = 128; offset < bytes_; offset += 64) hwy::Prefetch(row_ + offset);
    row_ += stride_;
  }

 private:
  const std::byte* row_ = nullptr;
  size_t stride_ = 0, second_ = 0, bytes_ = 0, rows_left_ = 0;
};

// Into the second-level cache.
HWY_INLINE void FetchLine(const std::byte* at) { __builtin_prefetch(at, 0, 2); }

// Rows that lie anywhere, in the order of their use: keys, then values, then the keys of the next
// call. Each row's lines are asked for once, one row with each Row() that was allowed, and into the
// second-level cache: straight into the first, a scattered step takes 4 % longer.
class RowStream {
 public:
  // rows: [n_keys + n_values + n_next] addresses.
  HWY_INLINE RowStream(const std::byte* const* rows, size_t n_keys, size_t n_values, size_t n_next,
                       size_t key_bytes, size_t value_bytes)
      : next_(rows),
        values_(rows + n_keys),
        end_(rows + n_keys + n_values + n_next),
        n_values_(n_values),
        key_bytes_(key_bytes),
        value_bytes_(value_bytes) {}
  // Lets the next calls of Row() fetch n rows more.
  HWY_INLINE void Allow(size_t n) {
    left_ = std::min(left_ + n, static_cast<size_t>(end_ - next_));
  }
  HWY_INLINE void Row() {
    if (left_ == 0) return;
    --left_;
    const std::byte* row = *next_;
    const size_t bytes =
        static_cast<size_t>(next_ - values_) < n_values_ ? value_bytes_ : key_bytes_;
    ++next_;
    for (size_t offset = 0; offset < bytes; offset += 64) FetchLine(row + offset);
  }
  HWY_INLINE void AllowedRows() {
    while (left_ != 0) Row();
  }

 private:
  const std::byte *const *next_, *const *values_, *const *end_;
  size_t n_values_, key_bytes_, value_bytes_;
  size_t left_ = 0;
};
struct NoFetch {  // where nothing is fetched row by row
  HWY_INLINE void Row() {}
};

// The same for a block further ahead, into the second-level cache: rows `stride` bytes apart.
// Without one, some readable address and stride 0.
struct Ahead {
  const std::byte* rows;
  size_t stride;
};
// The part-th of n_parts of a block ahead, all lines of its rows.
HWY_INLINE void FetchPart(const Ahead& ahead, size_t bytes, size_t part, size_t n_parts) {
  for (size_t row = 16 * part / n_parts; row < 16 * (part + 1) / n_parts; ++row) {
    const std::byte* at = ahead.rows + row * ahead.stride;
    for (size_t offset = 0; offset < bytes; offset += 64) FetchLine(at + offset);
  }
}

// The largest lane; none is NaN.
HWY_INLINE float LargestLane(VF lanes) {
#if HWY_TARGET == HWY_EMU128  // whose MaxOfLanes begins at the lowest finite number
  HWY_ALIGN float values[kLanes];
  hn::Store(lanes, DF(), values);
  return *std::max_element(values, values + kLanes);
#else
  return hn::GetLane(hn::MaxOfLanes(DF(), lanes));
#endif
}

// Lanes of the g-th vector among the block's 16 rows.
HWY_INLINE MF RowMaskLanes(uint16_t bits, size_t g) {
  const uint64_t shifted = static_cast<uint64_t>(bits) >> (g * kLanes);
  uint8_t bytes[8];
  std::memcpy(bytes, &shifted, 8);
  return hn::LoadMaskBits(DF(), bytes);
}

// exp(x) for x <= 0: relative error at most 4 ulp above -87, exactly 0 below and at -inf, exactly 1
// at 0, NaN at NaN. Highway's Exp gives 0 at NaN and spends a third more instructions on the range
// above 0.
HWY_INLINE VF ExpNonPositive(VF x) {
  const DF d;
  const DU32 du;
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const VF magic = hn::Set(d, 12582912.0f);
  const VF rounded = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const VF n = hn::Sub(rounded, magic);
  // ln 2 in two parts, the first with few bits, so that the products are exact where it matters.
  VF r = hn::NegMulAdd(n, hn::Set(d, 355.0f / 512), x);
  r = hn::NegMulAdd(n, hn::Set(d, static_cast<float>(0.693147180559945309 - 355.0 / 512)), r);
  // Minimax for |r| <= ln 2 / 2 with exp(0) = 1: 1.8 units of 2^-24.
  VF y = hn::MulAdd(r, hn::Set(d, 0.0083125234f), hn::Set(d, 0.041890126f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.16667114f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.49999231f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, rounded)), hn::Set(du, 0x3F800000u));
  y = hn::Mul(y, hn::BitCast(d, power));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), y);
}

HWY_INLINE float ExpNonPositive(float x) { return hn::GetLane(ExpNonPositive(hn::Set(DF(), x))); }

// Highway's Tanh, but NaN at NaN.
HWY_INLINE VF TanhOrNan(VF x) { return hn::IfThenElse(hn::Ne(x, x), x, hn::Tanh(DF(), x)); }

// The fixed tree over 16 lanes: halves are added until one is left.
HWY_INLINE float SumOfLanes(const VF (&lanes)[kRowVectors]) {
  [[maybe_unused]] const hn::CappedTag<float, 4> d4;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const hn::Half<DF> d8;
  const auto eight = hn::Add(hn::LowerHalf(d8, lanes[0]), hn::UpperHalf(d8, lanes[0]));
#elif HWY_TARGET == HWY_AVX2
  const DF d8;
  const auto eight = hn::Add(lanes[0], lanes[1]);
#endif
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#else
  const auto four = hn::Add(hn::Add(lanes[0], lanes[2]), hn::Add(lanes[1], lanes[3]));
#endif
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
