// The scan over token codes: centroid logits, estimates by table look-ups in registers, their
// exponentials and the rows' worths. Table entries are bytes, and the two nibbles of a byte of
// codes never add up to more than a byte; such sums are added in 16 bits, even and odd bytes apart.
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
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

using DU8 = hn::Repartition<uint8_t, DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
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

// The sums of 4 kLanes rows' table entries as FP32: sums[b] is of rows 16 b + g kLanes ….
template <size_t kPlanes>
HWY_INLINE void RowSums(const QueryTable& table, const VU8 (&low)[kPlanes],
                        const VU8 (&high)[kPlanes], VF (&sums)[kBlocks]) {
  const DU8 d8;
  const DU16 d16;
  const DU32 d32;
  auto all = hn::Zero(d16), odd = hn::Zero(d16);  // all: even + 256 odd
  for (size_t p = 0; p < kPlanes; ++p) {
    const auto table0 = hn::LoadDup128(d8, table.products[2 * p]);
    const auto table1 = hn::LoadDup128(d8, table.products[2 * p + 1]);
    const auto pair = hn::BitCast(
        d16, hn::Add(hn::TableLookupBytes(table0, low[p]), hn::TableLookupBytes(table1, high[p])));
    all = hn::Add(all, pair);
    odd = hn::Add(odd, hn::ShiftRight<8>(pair));
  }
  const auto even32 = hn::BitCast(d32, hn::Sub(all, hn::ShiftLeft<8>(odd)));
  const auto odd32 = hn::BitCast(d32, odd);
  const auto low_half = hn::Set(d32, 0xFFFFu);
  const auto value = [](auto words)
                         HWY_ATTR { return hn::ConvertTo(DF(), hn::BitCast(DI32(), words)); };
  sums[0] = value(hn::And(even32, low_half));
  sums[1] = value(hn::And(odd32, low_half));
  sums[2] = value(hn::ShiftRight<16>(even32));
  sums[3] = value(hn::ShiftRight<16>(odd32));
}

// What a pass over segments shares: kHeads heads at most, since their maxima are kept here.
constexpr size_t kHeads = 16;
struct Scan {
  const ScanArgs& args;
  size_t first_head, n_heads;
  HWY_ALIGN float largest[kHeads][16];
  bool nan[kHeads];
};

// kPlain: every row counts, and no soft cap.
template <size_t kPlanes, bool kPlain>
HWY_INLINE void ScanSegment(Scan& scan, size_t s, const uint16_t* visible) {
  const DF d;
  const DU8 d8;
  const ScanArgs& args = scan.args;
  const uint8_t* codes = args.view.codes + s * kPlanes * kRows;
  const auto nibble = hn::Set(d8, uint8_t{15});
  for (size_t g = 0; g < kRowVectors; ++g) {
    VU8 low[kPlanes], high[kPlanes];
    for (size_t p = 0; p < kPlanes; ++p) {
      const VU8 both = hn::LoadU(d8, codes + p * kRows + g * hn::MaxLanes(d8));
      low[p] = hn::And(both, nibble);
      high[p] = hn::BitCast(
          d8, hn::And(hn::ShiftRight<4>(hn::BitCast(DU16(), both)), hn::BitCast(DU16(), nibble)));
    }
    for (size_t i = 0; i < scan.n_heads; ++i) {
      const size_t h = scan.first_head + i;
      const QueryTable& table = args.tables[h];
      const float base = args.bases[h * args.bases_stride + s] + table.offset;
      scan.nan[i] = scan.nan[i] || !(base < kInf);
      VF sums[kBlocks];
      RowSums<kPlanes>(table, low, high, sums);
      float* out = args.estimates + h * args.estimates_stride + s * kRows + g * kLanes;
      float* largest_at = scan.largest[i] + g * kLanes;
      VF largest = hn::Load(d, largest_at);
      for (size_t b = 0; b < kBlocks; ++b) {
        VF estimate = hn::MulAdd(sums[b], hn::Set(d, table.step), hn::Set(d, base));
        if (!kPlain) {
          const VF cap = hn::Set(d, args.softcap);
          if (args.softcap > 0) estimate = hn::Mul(TanhOrNan(hn::Div(estimate, cap)), cap);
          estimate = hn::IfThenElse(RowMaskLanes(visible[b], g), estimate, hn::Set(d, -kInf));
        }
        largest = MaxNumber(estimate, largest);
        hn::StoreU(estimate, d, out + b * 16);
      }
      hn::Store(largest, d, largest_at);
    }
  }
}

HWY_INLINE void SkipSegment(const Scan& scan, size_t s) {
  const DF d;
  for (size_t h = scan.first_head; h < scan.first_head + scan.n_heads; ++h) {
    float* out = scan.args.estimates + h * scan.args.estimates_stride + s * kRows;
    for (size_t r = 0; r < kRows; r += kLanes) hn::StoreU(hn::Set(d, -kInf), d, out + r);
  }
}

template <size_t kPlanes>
HWY_INLINE void ScanRange(Scan& scan, size_t first, size_t last, float* max) {
  const DF d;
  const ScanArgs& args = scan.args;
  for (size_t i = 0; i < scan.n_heads; ++i) {
    scan.nan[i] = false;
    for (float& lane : scan.largest[i]) lane = -kInf;
  }
  static constexpr uint16_t kAll[kBlocks] = {0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  for (size_t s = first; s < last; ++s) {
    const uint16_t* visible = args.visible != nullptr ? args.visible + kBlocks * s : kAll;
    uint64_t rows;
    std::memcpy(&rows, visible, sizeof(rows));
    if (rows == 0) {
      SkipSegment(scan, s);
    } else if (~rows == 0 && !(args.softcap > 0)) {
      ScanSegment<kPlanes, true>(scan, s, visible);
    } else {
      ScanSegment<kPlanes, false>(scan, s, visible);
    }
  }
  for (size_t i = 0; i < scan.n_heads; ++i) {
    VF largest = hn::Load(d, scan.largest[i]);
    for (size_t g = 1; g < kRowVectors; ++g)
      largest = hn::Max(largest, hn::Load(d, scan.largest[i] + g * kLanes));
    const float most = LargestLane(largest);
    max[scan.first_head + i] =
        scan.nan[i] || most == kInf ? std::numeric_limits<float>::quiet_NaN() : most;
  }
}

void ScanCodes(const ScanArgs& args, size_t first, size_t last, float* max) {
  const size_t n_heads = static_cast<size_t>(args.n_heads);
  for (size_t h = 0; h < n_heads; h += kHeads) {
    Scan scan{args, h, std::min(kHeads, n_heads - h), {}, {}};
    if (args.view.n_nibbles == 8) {
      ScanRange<4>(scan, first, last, max);
    } else {
      ScanRange<8>(scan, first, last, max);
    }
  }
}

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

void ExpEstimates(float* estimates, size_t stride, size_t n_heads, const float* max, size_t first,
                  size_t last, float* sums, size_t sums_stride) {
  const DF d;
  for (size_t h = 0; h < n_heads; ++h) {
    const VF shift = hn::Set(d, max[h] == -kInf ? 0.0f : max[h]);
    for (size_t s = first; s < last; ++s) {
      float* rows = estimates + h * stride + s * kRows;
      VF sum[kRowVectors];
      for (size_t g = 0; g < kRowVectors; ++g) {
        sum[g] = hn::Zero(d);
        for (size_t b = 0; b < kBlocks; ++b) {
          float* at = rows + b * 16 + g * kLanes;
          const VF p = RoughExp(hn::Sub(hn::LoadU(d, at), shift));
          hn::StoreU(p, d, at);
          sum[g] = hn::Add(sum[g], p);
        }
      }
      sums[h * sums_stride + s] = SumOfLanes(sum);
    }
  }
}

float SumInOrder(const float* values, size_t n) {
  const DF d;
  VF sum[kRowVectors];
  HWY_ALIGN float tail[16] = {};
  std::memcpy(tail, values + n / 16 * 16, n % 16 * sizeof(float));
  for (size_t g = 0; g < kRowVectors; ++g) {
    sum[g] = hn::Zero(d);
    for (size_t i = g * kLanes; i < n / 16 * 16; i += 16)
      sum[g] = hn::Add(sum[g], hn::LoadU(d, values + i));
    sum[g] = hn::Add(sum[g], hn::Load(d, tail + g * kLanes));
  }
  return SumOfLanes(sum);
}

void WorthOfRows(const float* p, size_t stride, size_t n_heads, const float* share, size_t first,
                 size_t last, float* worth) {
  const DF d;
  for (size_t r = first * kRows; r < last * kRows; r += 2 * kLanes) {
    VF sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    for (size_t h = 0; h < n_heads; ++h) {
      const VF factor = hn::Set(d, share[h]);
      sum0 = hn::MulAdd(hn::LoadU(d, p + h * stride + r), factor, sum0);
      sum1 = hn::MulAdd(hn::LoadU(d, p + h * stride + r + kLanes), factor, sum1);
    }
    hn::StoreU(sum0, d, worth + r);
    hn::StoreU(sum1, d, worth + r + kLanes);
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
HWY_EXPORT(ExpEstimates);
HWY_EXPORT(SumInOrder);
HWY_EXPORT(WorthOfRows);

// A range of segments as the kernels take it.
struct Range {
  Range(int first_in, int last_in)
      : first(static_cast<size_t>(first_in)), last(static_cast<size_t>(last_in)) {
    CONDENSE_CHECK(0 <= first_in && first_in <= last_in);
  }
  size_t first, last;
};

}  // namespace

void CentroidLogits(const CodesView& view, const float* q, int n_heads, float scale, int first,
                    int last, float* bases, size_t stride) {
  const Range range(first, last);
  CONDENSE_CHECK(view.dim > 0 && view.dim % 2 == 0 && last <= view.n_segments);
  HWY_DYNAMIC_DISPATCH(CentroidLogits)
  (view, q, static_cast<size_t>(n_heads), scale, range.first, range.last, bases, stride);
}

void ScanCodes(const ScanArgs& args, int first, int last, float* max) {
  const Range range(first, last);
  CONDENSE_CHECK(last <= args.view.n_segments);
  CONDENSE_CHECK(args.view.n_nibbles == 8 || args.view.n_nibbles == kMostNibbles);
  HWY_DYNAMIC_DISPATCH(ScanCodes)(args, range.first, range.last, max);
}

void ExpEstimates(float* estimates, size_t stride, int n_heads, const float* max, int first,
                  int last, float* sums, size_t sums_stride) {
  const Range range(first, last);
  HWY_DYNAMIC_DISPATCH(ExpEstimates)
  (estimates, stride, static_cast<size_t>(n_heads), max, range.first, range.last, sums,
   sums_stride);
}

float SumInOrder(const float* values, int n) {
  CONDENSE_CHECK(n >= 0);
  return HWY_DYNAMIC_DISPATCH(SumInOrder)(values, static_cast<size_t>(n));
}

void WorthOfRows(const float* p, size_t stride, int n_heads, const float* share, int first,
                 int last, float* worth) {
  const Range range(first, last);
  HWY_DYNAMIC_DISPATCH(WorthOfRows)
  (p, stride, static_cast<size_t>(n_heads), share, range.first, range.last, worth);
}

}  // namespace condense
#endif  // HWY_ONCE
