// The scan over token codes: centroid logits, estimates by table look-ups in registers and their
// exponentials. Table entries are bytes, and the two nibbles of a byte of codes never add up to
// more than a byte; such sums are added in 16 bits, even and odd bytes apart.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/token_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/code_scan.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/code_rows-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

using DU8 = hn::Repartition<uint8_t, DF>;
using VU8 = hn::Vec<DU8>;

constexpr size_t kRows = kSegmentRows;
constexpr size_t kBlocks = kRows / 16;  // of 16 rows, a segment
constexpr float kInf = std::numeric_limits<float>::infinity();

// Accumulates both chains of one tile's 16 centroids for kN heads.
template <size_t kN>
HWY_INLINE void TileLogits(const int8_t* tile, size_t dim, const float* q, VF scale, size_t g,
                           float* out, size_t stride) {
  const DF d;
  const hn::Rebind<int8_t, DF> d8;
  VF even[kN], odd[kN];
  for (size_t h = 0; h < kN; ++h) even[h] = odd[h] = hn::Zero(d);
  for (size_t c = 0; c < dim; c += 2) {
    const int8_t* at = tile + c * kTileSegments + g * kLanes;
    const VF c0 = hn::ConvertTo(d, hn::PromoteTo(DI32(), hn::LoadU(d8, at)));
    const VF c1 = hn::ConvertTo(d, hn::PromoteTo(DI32(), hn::LoadU(d8, at + kTileSegments)));
    for (size_t h = 0; h < kN; ++h) {
      even[h] = hn::MulAdd(c0, hn::Set(d, q[h * dim + c]), even[h]);
      odd[h] = hn::MulAdd(c1, hn::Set(d, q[h * dim + c + 1]), odd[h]);
    }
  }
  for (size_t h = 0; h < kN; ++h)
    hn::StoreU(hn::Mul(hn::Add(even[h], odd[h]), scale), d, out + h * stride + g * kLanes);
}

void CentroidLogits(const CodesView& view, const float* q, size_t n_heads, float scale,
                    size_t first, size_t last, float* bases, size_t stride) {
  const DF d;
  const size_t dim = static_cast<size_t>(view.dim);
  for (size_t t = first / kTileSegments; t * kTileSegments < last; ++t) {
    const size_t begin = t * kTileSegments;
    const bool whole = begin >= first && begin + kTileSegments <= last;
    const int8_t* tile = view.centroids + begin * dim;
    ForBatches<6>(n_heads, [&]<size_t kN>(size_t h) HWY_ATTR {
      HWY_ALIGN float buffer[kN * kTileSegments];
      float* out = whole ? bases + h * stride + begin : buffer;
      for (size_t g = 0; g < kRowVectors; ++g) {
        const VF steps = hn::LoadU(d, view.centroid_scales + begin + g * kLanes);
        TileLogits<kN>(tile, dim, q + h * dim, hn::Mul(steps, hn::Set(d, scale)), g, out,
                       whole ? stride : kTileSegments);
      }
      if (whole) return;
      for (size_t i = 0; i < kN; ++i) {
        for (size_t s = std::max(begin, first); s < std::min(begin + kTileSegments, last); ++s)
          bases[(h + i) * stride + s] = buffer[i * kTileSegments + s - begin];
      }
    });
  }
}

// 2 kLanes rows' numbers of 16 bits each.
struct Pairs {
  VU16 even, odd;  // words g kLanes … of either half of a segment (PlaceOfRow)
};

// The sums of 4 kLanes rows' table entries.
template <size_t kPlanes>
HWY_INLINE Pairs RowSums(const QueryTable& table, const VU8 (&low)[kPlanes],
                         const VU8 (&high)[kPlanes]) {
  const DU8 d8;
  const DU16 d16;
  auto all = hn::Zero(d16), odd = hn::Zero(d16);  // all: even + 256 odd
  for (size_t p = 0; p < kPlanes; ++p) {
    const auto table0 = hn::LoadDup128(d8, table.products[2 * p]);
    const auto table1 = hn::LoadDup128(d8, table.products[2 * p + 1]);
    const auto pair = hn::BitCast(
        d16, hn::Add(hn::TableLookupBytes(table0, low[p]), hn::TableLookupBytes(table1, high[p])));
    all = hn::Add(all, pair);
    odd = hn::Add(odd, hn::ShiftRight<8>(pair));
  }
  return {hn::Sub(all, hn::ShiftLeft<8>(odd)), odd};
}

// What the sums of a head's products become exponentials by (QueryTable).
class Exponential {
 public:
  HWY_INLINE explicit Exponential(const QueryTable& table)
      : lowest_(hn::Set(DU16(), table.lowest)),
        most_(hn::Set(DU16(), table.most)),
        factor_(hn::Set(DU16(), table.factor)),
        constant_(hn::Set(DU16(), table.constant)),
        shift_(table.shift) {}
  // kBounded: some sums are below the lowest or too far above it.
  template <bool kBounded>
  HWY_INLINE VU16 Of(VU16 sums) const {
    if (kBounded) sums = hn::Min(hn::SaturatedSub(sums, lowest_), most_);
    return hn::Add(hn::MulHigh(hn::ShiftLeftSame(sums, shift_), factor_), constant_);
  }

 private:
  VU16 lowest_, most_, factor_, constant_;
  int shift_;
};

// The words of two blocks that UpperRows and LowerRows take apart.
HWY_INLINE VU16 WordsOf(hn::Vec<DU32> lower, hn::Vec<DU32> upper) {
  return hn::BitCast(DU16(), hn::Or(lower, hn::ShiftLeft<16>(upper)));
}

// exp(the soft-capped estimate - CapReference) of one block's sums.
HWY_INLINE float CapReference(float softcap) { return std::max(0.0f, softcap - 60.0f); }
HWY_INLINE hn::Vec<DU32> ExpOfCapped(hn::Vec<DU32> sums, float step, float base, float softcap) {
  const DF d;
  const VF cap = hn::Set(d, softcap);
  VF value = hn::ConvertTo(d, hn::BitCast(DI32(), sums));
  value = hn::MulAdd(value, hn::Set(d, step), hn::Set(d, base));
  value = hn::Mul(TanhOrNan(hn::Div(value, cap)), cap);
  value = hn::IfThenElseZero(hn::Eq(value, value), value);
  // Steps of 2^-7 of a power of two, in the lower bits of 2^23 and more.
  constexpr float kMagic = 8388608.0f;
  const VF steps =
      hn::MulAdd(value, hn::Set(d, kStepsOfLogit),
                 hn::Set(d, kMagic + kStepsOfOne - CapReference(softcap) * kStepsOfLogit));
  const VF in_range =
      hn::Min(hn::Max(steps, hn::Set(d, kMagic + kLeastSteps)), hn::Set(d, kMagic + 32000));
  return hn::And(hn::BitCast(DU32(), in_range), hn::Set(DU32(), 0xFFFFu));
}

HWY_INLINE Pairs ExpOfCapped(const Pairs& sums, float step, float base, float softcap) {
  const auto lower = hn::Set(DU32(), 0xFFFFu);
  const auto of = [&](VU16 words) HWY_ATTR {
    const auto both = hn::BitCast(DU32(), words);
    return WordsOf(ExpOfCapped(hn::And(both, lower), step, base, softcap),
                   ExpOfCapped(hn::ShiftRight<16>(both), step, base, softcap));
  };
  return {of(sums.even), of(sums.odd)};
}

// Ones in the bits of the visible rows of the g-th vector of two blocks.
HWY_INLINE VU16 VisibleWords(uint16_t lower, uint16_t upper, size_t g) {
  const DF d;
  const VF ones = hn::BitCast(d, hn::Set(DU32(), 0xFFFFu));
  const auto lanes = [&](uint16_t visible) HWY_ATTR {
    return hn::BitCast(DU32(), hn::IfThenElseZero(RowMaskLanes(visible, g), ones));
  };
  return WordsOf(lanes(lower), lanes(upper));
}

// How far ahead codes are asked for: 4 KiB, since hardware does not look past the end of a page.
constexpr size_t kSegmentsAhead = 16;

// kPlain: every row counts, and no soft cap.
template <size_t kPlanes, bool kPlain>
HWY_INLINE void ScanSegment(const ScanArgs& args, size_t s, const uint16_t* visible) {
  const DU8 d8;
  const DU16 d16;
  const uint8_t* codes = args.view.codes + s * kPlanes * kRows;
  for (size_t p = 0; p < kPlanes; ++p)
    FetchLine(reinterpret_cast<const std::byte*>(codes) + (kSegmentsAhead * kPlanes + p) * kRows);
  const auto nibble = hn::Set(d8, uint8_t{15});
  const bool capped = !kPlain && args.softcap > 0;
  VU8 low[kRowVectors][kPlanes], high[kRowVectors][kPlanes];
  for (size_t g = 0; g < kRowVectors; ++g) {
    for (size_t p = 0; p < kPlanes; ++p) {
      const VU8 both = hn::LoadU(d8, codes + p * kRows + g * hn::MaxLanes(d8));
      low[g][p] = hn::And(both, nibble);
      high[g][p] = hn::BitCast(
          d8, hn::And(hn::ShiftRight<4>(hn::BitCast(DU16(), both)), hn::BitCast(DU16(), nibble)));
    }
  }
  for (size_t h = 0; h < static_cast<size_t>(args.n_heads); ++h) {
    const QueryTable& table = args.tables[h];
    const size_t at = h * args.segment_stride + s;
    const float base = args.bases[at] + table.offset;
    // NaN and infinities stay.
    args.references[at] =
        capped ? CapReference(args.softcap) + (base - base) : base + table.reference;
    const Exponential exponential(table);
    VF sum[kRowVectors];
    for (size_t g = 0; g < kRowVectors; ++g) {
      Pairs p = RowSums<kPlanes>(table, low[g], high[g]);
      if (capped) {
        p = ExpOfCapped(p, table.step, base, args.softcap);
      } else if (table.bounded) {
        p = {exponential.Of<true>(p.even), exponential.Of<true>(p.odd)};
      } else {
        p = {exponential.Of<false>(p.even), exponential.Of<false>(p.odd)};
      }
      if (!kPlain) {
        p.even = hn::And(p.even, VisibleWords(visible[0], visible[2], g));
        p.odd = hn::And(p.odd, VisibleWords(visible[1], visible[3], g));
      }
      uint16_t* out = args.p + h * args.p_stride + s * kRows + 2 * g * kLanes;
      hn::StoreU(p.even, d16, out);
      hn::StoreU(p.odd, d16, out + kRows / 2);
      sum[g] = hn::Add(hn::Add(LowerRows(p.even), LowerRows(p.odd)),
                       hn::Add(UpperRows(p.even), UpperRows(p.odd)));
    }
    args.sums[at] = SumOfLanes(sum);
  }
}

HWY_INLINE void SkipSegment(const ScanArgs& args, size_t s) {
  for (size_t h = 0; h < static_cast<size_t>(args.n_heads); ++h) {
    args.references[h * args.segment_stride + s] = -kInf;
    args.sums[h * args.segment_stride + s] = 0;
    std::fill_n(args.p + h * args.p_stride + s * kRows, kRows, uint16_t{0});
  }
}

template <size_t kPlanes>
HWY_INLINE void ScanRange(const ScanArgs& args, size_t first, size_t last) {
  static constexpr uint16_t kAll[kBlocks] = {0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  for (size_t s = first; s < last; ++s) {
    const uint16_t* visible = args.visible != nullptr ? args.visible + kBlocks * s : kAll;
    uint64_t rows;
    std::memcpy(&rows, visible, sizeof(rows));
    if (rows == 0) {
      SkipSegment(args, s);
    } else if (~rows == 0 && !(args.softcap > 0)) {
      ScanSegment<kPlanes, true>(args, s, visible);
    } else {
      ScanSegment<kPlanes, false>(args, s, visible);
    }
  }
}

void ScanCodes(const ScanArgs& args, size_t first, size_t last) {
  if (args.view.n_nibbles == 8) {
    ScanRange<4>(args, first, last);
  } else {
    ScanRange<8>(args, first, last);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(CentroidLogits);
HWY_EXPORT(ScanCodes);

}  // namespace

void CentroidLogits(const CodesView& view, const float* q, int n_heads, float scale, int first,
                    int last, float* bases, size_t stride) {
  CONDENSE_CHECK(0 <= first && first <= last && last <= view.n_segments);
  CONDENSE_CHECK(view.dim > 0 && view.dim % 2 == 0);
  HWY_DYNAMIC_DISPATCH(CentroidLogits)
  (view, q, static_cast<size_t>(n_heads), scale, static_cast<size_t>(first),
   static_cast<size_t>(last), bases, stride);
}

void ScanCodes(const ScanArgs& args, int first, int last) {
  CONDENSE_CHECK(0 <= first && first <= last && last <= args.view.n_segments);
  CONDENSE_CHECK(args.view.n_nibbles == 8 || args.view.n_nibbles == kMostNibbles);
  HWY_DYNAMIC_DISPATCH(ScanCodes)(args, static_cast<size_t>(first), static_cast<size_t>(last));
}

}  // namespace condense
#endif  // HWY_ONCE
