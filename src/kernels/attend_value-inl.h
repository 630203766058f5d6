// The weighted sum of value rows: channels in lanes, rows one after the other, so that each
// channel's additions have one order whatever the vector width and the number of queries.
#if defined(CONDENSE_KERNELS_ATTEND_VALUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_ATTEND_VALUE_INL_H_
#undef CONDENSE_KERNELS_ATTEND_VALUE_INL_H_
#else
#define CONDENSE_KERNELS_ATTEND_VALUE_INL_H_
#endif

#include "kernels/attend_scratch.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Rows of one block in the order in which they are added.
struct RowOrder {
  const std::byte* rows[16];
  uint8_t index[16];  // row within the block
  size_t n;
};

// o[i][c …] += weights[i][row] * v[row][c …] for kN queries and kC vectors of channels, over the
// rows in order.
template <KvType kType, size_t kN, size_t kC>
HWY_INLINE void AddRows(const RowOrder& order, size_t c, const float* const* weights,
                        float* const* o, Fetch& fetch) {
  const DF d;
  VF sums[kN][kC];
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) sums[i][j] = hn::LoadU(d, o[i] + c + j * kLanes);
  }
  Fetch later = fetch;  // in registers
  for (size_t at = 0; at < order.n; ++at) {
    later.Row();
    VF v[kC];
    for (size_t j = 0; j < kC; ++j) v[j] = Stored<kType>::Load(order.rows[at], c + j * kLanes);
    for (size_t i = 0; i < kN; ++i) {
      const VF weight = hn::Set(d, weights[i][order.index[at]]);
      for (size_t j = 0; j < kC; ++j) sums[i][j] = hn::MulAdd(weight, v[j], sums[i][j]);
    }
  }
  fetch = later;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) hn::StoreU(sums[i][j], d, o[i] + c + j * kLanes);
  }
}

// AddRows over all channels for n queries that read the same rows.
template <KvType kType>
HWY_INLINE void AddRowsOfQueries(const RowOrder& order, size_t v_dim, size_t n,
                                 const float* const* weights, float* const* o, Fetch& fetch) {
  ForBatches(n, [&]<size_t kN>(size_t first) HWY_ATTR {
    // Sums, values and a weight within 32 registers of 64 bytes, else within 16.
    constexpr size_t kC = kLanes == 16 || kN <= 2 ? 4 : 2;
    size_t c = 0;
    for (; c + kC * kLanes <= v_dim; c += kC * kLanes) {
      AddRows<kType, kN, kC>(order, c, weights + first, o + first, fetch);
    }
    for (; c < v_dim; c += kLanes)
      AddRows<kType, kN, 1>(order, c, weights + first, o + first, fetch);
  });
}

// Converts the rows of `bits` of one block to FP32, row r to v32 + r * v_dim.
HWY_INLINE void WidenRows(KvType type, const std::byte* v, size_t stride, uint16_t bits,
                          size_t v_dim, float* v32) {
  WithType(type, [&]<KvType kType>() HWY_ATTR {
    for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
      const size_t row = static_cast<size_t>(std::countr_zero(rest));
      for (size_t c = 0; c < v_dim; c += kLanes) {
        hn::StoreU(Stored<kType>::Load(v + row * stride, c), DF(), v32 + row * v_dim + c);
      }
    }
  });
}

HWY_INLINE void FillOrder(const std::byte* v, size_t stride, uint16_t bits, bool reverse,
                          RowOrder& order) {
  size_t n = 0;
  if (!reverse) {
    for (uint32_t rest = bits; rest != 0; rest &= rest - 1, ++n) {
      order.index[n] = static_cast<uint8_t>(std::countr_zero(rest));
      order.rows[n] = v + order.index[n] * stride;
    }
  } else {
    for (uint32_t rest = bits; rest != 0; ++n) {
      order.index[n] = static_cast<uint8_t>(std::bit_width(rest) - 1);
      order.rows[n] = v + order.index[n] * stride;
      rest ^= 1u << order.index[n];
    }
  }
  order.n = n;
}

// One block's part of o for n queries; query i reads the rows of bits[i] (not 0) at v.
HWY_INLINE void AddBlock(KvType type, const std::byte* v, size_t stride, size_t v_dim, bool reverse,
                         size_t n, const uint16_t* bits, const float* const* weights,
                         float* const* o, Fetch& fetch, AttendScratch& scratch) {
  if (n > kMaxBatch || type == KvType::kQ8_0) {
    uint16_t any = 0;
    for (size_t i = 0; i < n; ++i) any = static_cast<uint16_t>(any | bits[i]);
    WidenRows(type, v, stride, any, v_dim, scratch.v32);
    type = KvType::kF32;
    v = reinterpret_cast<const std::byte*>(scratch.v32);
    stride = v_dim * sizeof(float);
  }
  RowOrder order;
  for (size_t first = 0; first < n;) {
    size_t end = first + 1;
    while (end < n && bits[end] == bits[first]) ++end;
    FillOrder(v, stride, bits[first], reverse, order);
    switch (type) {
      case KvType::kF32:
        AddRowsOfQueries<KvType::kF32>(order, v_dim, end - first, weights + first, o + first,
                                       fetch);
        break;
      case KvType::kF16:
        AddRowsOfQueries<KvType::kF16>(order, v_dim, end - first, weights + first, o + first,
                                       fetch);
        break;
      default:  // kQ8_0 was widened above
        AddRowsOfQueries<KvType::kBF16>(order, v_dim, end - first, weights + first, o + first,
                                        fetch);
        break;
    }
    first = end;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
