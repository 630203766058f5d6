// Token codes of one KV head: centroids, codes of a closed segment, and a query head's tables.
#include "kernels/token_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/token_codes.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/code_nearest-inl.h"
#include "kernels/code_residuals-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

constexpr size_t kRows = kSegmentRows;
constexpr size_t kMostDim = 256;
constexpr size_t kMostCoded = kMostNibbles * kNibbleChannels;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// mean[c] of n rows, row_at(0) … row_at(n - 1), added in this order. False where one is not finite.
template <KvType kType, class RowAt>
HWY_INLINE bool MeanOfRows(const SegmentKeys& keys, size_t n, const RowAt& row_at, float* mean) {
  const DF d;
  MF finite = hn::Eq(hn::Zero(d), hn::Zero(d));
  const VF share = hn::Set(d, 1.0f / static_cast<float>(n));
  for (size_t c = 0; c < static_cast<size_t>(keys.dim); c += kLanes) {
    VF sum = Stored<kType>::Load(keys.k + row_at(0) * keys.k_stride, c);
    for (size_t i = 1; i < n; ++i)
      sum = hn::Add(sum, Stored<kType>::Load(keys.k + row_at(i) * keys.k_stride, c));
    sum = hn::Mul(sum, share);
    finite = hn::And(finite, hn::Eq(hn::Sub(sum, sum), hn::Zero(d)));
    hn::StoreU(sum, d, mean + c);
  }
  return hn::AllTrue(d, finite);
}

// The same of the rows that count, ascending.
template <KvType kType>
HWY_INLINE bool MeanKey(const SegmentKeys& keys, float* mean) {
  if (keys.counted == ~uint64_t{0})
    return MeanOfRows<kType>(
        keys, kRows, [](size_t i) HWY_ATTR { return i; }, mean);
  size_t rows[kRows];
  size_t n = 0;
  for (uint64_t left = keys.counted; left != 0; left &= left - 1)
    rows[n++] = static_cast<size_t>(std::countr_zero(left));
  return MeanOfRows<kType>(
      keys, n, [&rows](size_t i) HWY_ATTR { return rows[i]; }, mean);
}

void EncodeCentroid(const SegmentKeys& keys, int8_t* tile, size_t lane, float* scale) {
  const DF d;
  const size_t dim = static_cast<size_t>(keys.dim);
  HWY_ALIGN float mean[kMostDim];
  HWY_ALIGN int32_t steps[kMostDim];
  bool finite = false;
  WithType(keys.k_type, [&]<KvType kType>() HWY_ATTR { finite = MeanKey<kType>(keys, mean); });
  float largest = 0;
  for (size_t c = 0; c < dim; ++c) largest = std::max(largest, std::fabs(mean[c]));
  *scale = finite ? largest / 127 : kNan;
  // The steps of means so small that the division overflows are 0; so are those without a scale.
  const float inverse = finite && *scale >= 0x1p-126f ? 1 / *scale : 0;
  if (inverse == 0) {
    if (finite) *scale = 0;
    for (size_t c = 0; c < dim; ++c) tile[c * kTileSegments + lane] = 0;
    return;
  }
  for (size_t c = 0; c < dim; c += kLanes)
    hn::Store(hn::NearestInt(hn::Mul(hn::Load(d, mean + c), hn::Set(d, inverse))), DI32(),
              steps + c);
  for (size_t c = 0; c < dim; ++c)
    tile[c * kTileSegments + lane] = static_cast<int8_t>(std::clamp(steps[c], -127, 127));
}

// y[i * 64 + row] of the coded channels, 16 rows at a time.
template <KvType kType>
HWY_INLINE void CodedChannels(const TokenCodebook& book, const SegmentKeys& keys,
                              const int8_t* tile, float scale, float* y) {
  const DF d;
  HWY_ALIGN float rows[16][kMostDim];
  HWY_ALIGN float column[16];
  for (size_t first = 0; first < kRows; first += 16) {
    for (size_t r = 0; r < 16; ++r) {
      const std::byte* row = keys.k + (first + r) * keys.k_stride;
      for (size_t c = 0; c < static_cast<size_t>(keys.dim); c += kLanes)
        hn::Store(Stored<kType>::Load(row, c), d, rows[r] + c);
    }
    for (size_t i = 0; i < book.channel.size(); ++i) {
      const size_t c = book.channel[i];
      for (size_t r = 0; r < 16; ++r) column[r] = rows[r][c];
      const VF center = hn::Set(d, scale * static_cast<float>(tile[c * kTileSegments]));
      const VF weight = hn::Set(d, book.weight[i]);
      for (size_t g = 0; g < 16; g += kLanes)
        hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, column + g), center)), d,
                  y + i * kRows + first + g);
    }
  }
}

// The same along the axes of a rotated codebook.
template <KvType kType>
HWY_INLINE void CodedAxes(const TokenCodebook& book, const SegmentKeys& keys, const int8_t* tile,
                          float scale, float* y) {
  HWY_ALIGN float residuals[kMostDim * kRows];
  WeighSegment<kType>(keys, tile, scale, nullptr, residuals);
  RotateRows(book.to_code.data(), book.channel.size(), static_cast<size_t>(keys.dim), residuals, y);
}

HWY_INLINE VF LoadEntries(const TokenCodebook& book, size_t i) {
  return Stored<KvType::kBF16>::Load(reinterpret_cast<const std::byte*>(book.entries.data()), i);
}

void EncodeSegment(const TokenCodebook& book, const SegmentKeys& keys, const int8_t* tile,
                   float scale, uint8_t* codes) {
  HWY_ALIGN float y[kMostCoded * kRows];
  HWY_ALIGN uint8_t nibbles[2][kRows];
  HWY_ALIGN uint8_t written[kRows];  // 0xFF where the row at this place counts; not where all do
  const bool all = keys.counted == ~uint64_t{0};
  for (size_t r = 0; r < kRows && !all; ++r)
    written[r % 16 * 4 + r / 16] = (keys.counted >> r & 1) != 0 ? 0xFF : 0;
  WithType(keys.k_type, [&]<KvType kType>() HWY_ATTR {
    if (book.rotated()) {
      CodedAxes<kType>(book, keys, tile, scale, y);
    } else {
      CodedChannels<kType>(book, keys, tile, scale, y);
    }
  });
  HWY_ALIGN float entries[kMostCoded * kNibbleEntries];
  for (size_t i = 0; i < book.entries.size(); i += kNibbleEntries) {
    for (size_t g = 0; g < kNibbleEntries; g += kLanes)
      hn::StoreU(LoadEntries(book, i + g), DF(), entries + i + g);
  }
  for (size_t n = 0; n < static_cast<size_t>(book.n_nibbles); ++n) {
    const size_t first = book.first[n];
    const size_t n_channels = book.first[n + 1] - first;
    if (n_channels == 0) {
      std::memset(nibbles[n % 2], 0, kRows);
    } else {
      Nearest(n_channels, y + first * kRows, kRows, entries + first * kNibbleEntries,
              nibbles[n % 2]);
    }
    if (n % 2 == 0) continue;
    uint8_t* plane = codes + n / 2 * kRows;
    if (all) {
      for (size_t i = 0; i < kRows; ++i)
        plane[i] = static_cast<uint8_t>(nibbles[0][i] | nibbles[1][i] << 4);
      continue;
    }
    for (size_t i = 0; i < kRows; ++i) {
      const auto code = static_cast<uint8_t>(nibbles[0][i] | nibbles[1][i] << 4);
      plane[i] = static_cast<uint8_t>((plane[i] & ~written[i]) | (code & written[i]));
    }
  }
}

// scale (q / w) of the coded channels; rotated, scale q' of the coded axes, summed in 16 lanes.
HWY_INLINE void QueryFactors(const TokenCodebook& book, const float* q, float scale,
                             float* factors) {
  const DF d;
  const size_t dim = static_cast<size_t>(book.dim);
  for (size_t i = 0; i < book.channel.size(); ++i) {
    if (!book.rotated()) {
      factors[i] = scale * q[book.channel[i]] / book.weight[i];
      continue;
    }
    const float* axis = book.to_query.data() + i * dim;
    VF sum[kRowVectors];
    for (size_t g = 0; g < kRowVectors; ++g) {
      sum[g] = hn::Zero(d);
      for (size_t c = g * kLanes; c < dim; c += 16)
        sum[g] = hn::MulAdd(hn::LoadU(d, axis + c), hn::LoadU(d, q + c), sum[g]);
    }
    factors[i] = scale * SumOfLanes(sum);
  }
}

// scale (q / w)·entry per nibble and entry, and their least and greatest per nibble.
struct Products {
  HWY_ALIGN float value[kMostNibbles][kNibbleEntries];
  float least[kMostNibbles], most[kMostNibbles];
};
HWY_INLINE void MakeProducts(const TokenCodebook& book, const float* q, float scale,
                             Products& products) {
  const DF d;
  float factors[kMostCoded];
  QueryFactors(book, q, scale, factors);
  for (size_t n = 0; n < static_cast<size_t>(book.n_nibbles); ++n) {
    VF value[kRowVectors];
    for (size_t g = 0; g < kRowVectors; ++g) value[g] = hn::Zero(d);
    for (size_t i = book.first[n]; i < book.first[n + 1]; ++i) {
      const VF factor = hn::Set(d, factors[i]);
      for (size_t g = 0; g < kRowVectors; ++g)
        value[g] = hn::MulAdd(factor, LoadEntries(book, i * kNibbleEntries + g * kLanes), value[g]);
    }
    VF least = value[0], most = value[0];
    for (size_t g = 0; g < kRowVectors; ++g) {
      hn::Store(value[g], d, products.value[n] + g * kLanes);
      least = hn::Min(least, value[g]);
      most = hn::Max(most, value[g]);
    }
    products.least[n] = hn::GetLane(hn::MinOfLanes(d, least));
    products.most[n] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
}

HWY_INLINE bool AllFinite(const float* values, size_t n) {
  const DF d;
  MF finite = hn::Eq(hn::Zero(d), hn::Zero(d));
  for (size_t c = 0; c < n; c += kLanes) {
    const VF value = hn::LoadU(d, values + c);
    finite = hn::And(finite, hn::Eq(hn::Sub(value, value), hn::Zero(d)));
  }
  return hn::AllTrue(d, finite);
}

constexpr int kMostSteps = 217 * 128;  // from 2^-126 to 2^91

// The largest sum of a row's products to be expected: three deviations above the mean, were all
// codes equally frequent.
float LargestSumExpected(const QueryTable& table, size_t n_nibbles) {
  float mean = 0, variance = 0;
  for (size_t n = 0; n < n_nibbles; ++n) {
    int sum = 0, squares = 0;
    for (int product : table.products[n]) sum += product, squares += product * product;
    const float of_nibble = static_cast<float>(sum) / kNibbleEntries;
    mean += of_nibble;
    variance += static_cast<float>(squares) / kNibbleEntries - of_nibble * of_nibble;
  }
  return mean + 3 * std::sqrt(variance);
}

// How the scan takes exponentials of the sums of the table's products, which are `most` at most.
void SetExponential(QueryTable* table, size_t n_nibbles, int most) {
  const float steps = table->step * kStepsOfLogit;
  float lowest = 0, constant = kStepsOfOne;
  table->bounded = steps * static_cast<float>(most) > 80 * kStepsOfLogit;
  if (!table->bounded) {
    constant -= steps * static_cast<float>(most);  // the largest p is 1
  } else {
    const float top = std::min(LargestSumExpected(*table, n_nibbles), static_cast<float>(most));
    lowest = std::floor(std::max(0.0f, top - (kStepsOfOne - kLeastSteps) / steps));
    constant = kLeastSteps;
    most = std::clamp(static_cast<int>(kMostSteps / steps), 1, most - static_cast<int>(lowest));
  }
  table->lowest = static_cast<uint16_t>(lowest);
  table->most = static_cast<uint16_t>(most);
  table->constant = static_cast<uint16_t>(constant);
  table->shift = 0;
  while (most << (table->shift + 1) <= 0xFFFF) ++table->shift;
  // Where one product more is more than all that there is room for, that much.
  const float wanted = std::min(steps, static_cast<float>(kMostSteps) / static_cast<float>(most));
  table->factor = static_cast<uint16_t>(std::round(std::ldexp(wanted, 16 - table->shift)));
  table->reference = table->step * lowest + (kStepsOfOne - table->constant) / kStepsOfLogit;
}

void MakeQueryTable(const TokenCodebook& book, const float* q, float scale, QueryTable* table) {
  const DF d;
  const size_t n_nibbles = static_cast<size_t>(book.n_nibbles);
  Products products;
  std::memset(table->products, 0, sizeof(table->products));
  table->step = 0;
  table->offset = kNan;
  SetExponential(table, n_nibbles, 1);
  if (!AllFinite(q, static_cast<size_t>(book.dim))) return;
  MakeProducts(book, q, scale, products);
  float widest = 0, offset = 0;
  for (size_t n = 0; n < n_nibbles; n += 2) {
    widest = std::max(widest, (products.most[n] - products.least[n]) +
                                  (products.most[n + 1] - products.least[n + 1]));
    offset += products.least[n] + products.least[n + 1];
  }
  if (!(widest + std::fabs(offset) <= std::numeric_limits<float>::max())) return;
  table->offset = offset;
  if (widest < 0x1p-118f) return;  // the steps would be subnormal
  // Rounding adds at most half a step to either of a pair.
  table->step = widest / 254;
  const VF inverse = hn::Set(d, 254 / widest);
  int most = 1;
  for (size_t n = 0; n < n_nibbles; ++n) {
    const VF least = hn::Set(d, products.least[n]);
    most += static_cast<int>((products.most[n] - products.least[n]) * (254 / widest) + 1);
    for (size_t e = 0; e < kNibbleEntries; e += kLanes) {
      const VF value = hn::Sub(hn::Load(d, products.value[n] + e), least);
      const hn::Rebind<uint8_t, DF> d8;
      hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Mul(value, inverse))), d8,
                 table->products[n] + e);
    }
  }
  SetExponential(table, n_nibbles, most);
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(EncodeCentroid);
HWY_EXPORT(EncodeSegment);
HWY_EXPORT(MakeQueryTable);

void CheckKeys(const SegmentKeys& keys, int lane) {
  CONDENSE_CHECK(keys.dim >= 16 && keys.dim <= 256);
  CONDENSE_CHECK(keys.dim % (keys.k_type == KvType::kQ8_0 ? 32 : 16) == 0);
  CONDENSE_CHECK(lane >= 0 && lane < kTileSegments && keys.counted != 0);
}

}  // namespace

size_t TokenCodebook::bytes() const {
  return sizeof(*this) + first.size() + channel.size() + sizeof(uint16_t) * entries.size() +
         sizeof(float) * (weight.size() + to_code.size() + to_query.size());
}

void EncodeCentroid(const SegmentKeys& keys, int8_t* tile, int lane, float* scale) {
  CheckKeys(keys, lane);
  HWY_DYNAMIC_DISPATCH(EncodeCentroid)(keys, tile, static_cast<size_t>(lane), scale);
}

void EncodeSegment(const TokenCodebook& book, const SegmentKeys& keys, const int8_t* tile, int lane,
                   float scale, uint8_t* codes) {
  CheckKeys(keys, lane);
  CONDENSE_CHECK(book.dim == keys.dim);
  HWY_DYNAMIC_DISPATCH(EncodeSegment)(book, keys, tile + lane, scale, codes);
}

void MakeQueryTable(const TokenCodebook& book, const float* q, float scale, QueryTable* table) {
  CONDENSE_CHECK(!book.empty());
  HWY_DYNAMIC_DISPATCH(MakeQueryTable)(book, q, scale, table);
}

}  // namespace condense
#endif  // HWY_ONCE
