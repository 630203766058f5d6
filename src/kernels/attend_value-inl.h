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

// Vectors of channels that kN queries keep in registers: sums, values and a weight within 32
// registers of 64 bytes, else within 16.
template <size_t kN>
inline constexpr size_t kChannelVectors = kLanes == 16 ? (kN <= 6 ? 4 : 2) : (kN <= 2 ? 4 : 2);

// Queries that share registers: accumulators of 8 take 16 of 32 registers of 64 bytes, of 6 take 12
// of 16.
inline constexpr size_t kFewBatch = kLanes == 16 ? 8 : 6;
inline constexpr size_t kManyBatch = 6;

// sums[i][j] += weight[16 i] * v[j] for one row.
template <KvType kType, size_t kN, size_t kC>
HWY_INLINE void AddRow(const std::byte* HWY_RESTRICT v, size_t c, const float* HWY_RESTRICT weight,
                       VF (&sums)[kN][kC]) {
  const DF d;
  VF values[kC];
  for (size_t j = 0; j < kC; ++j) values[j] = Stored<kType>::Load(v, c + j * kLanes);
  for (size_t i = 0; i < kN; ++i) {
    const VF w = hn::Set(d, weight[i * kBlockRows]);
    for (size_t j = 0; j < kC; ++j) sums[i][j] = hn::MulAdd(w, values[j], sums[i][j]);
  }
}

// Calls function(row) for the rows of `bits`, ascending or descending.
template <class Function>
HWY_INLINE void ForRows(uint32_t bits, bool reverse, const Function& function) {
  while (bits != 0) {
    const size_t row = reverse ? static_cast<size_t>(std::bit_width(bits) - 1)
                               : static_cast<size_t>(std::countr_zero(bits));
    bits ^= 1u << row;
    function(row);
  }
}

// Blocks of V that a run of queries reads, in the order in which they are added.
struct ValueBlock {
  const std::byte* v;    // row 0
  const float* weights;  // the first query's 16; query i's are 16 i further on
  uint32_t bits;
  Ahead ahead;  // a block to fetch meanwhile
};

// Blocks between the one in work and the one being fetched. 1 to 3 measure alike.
inline constexpr size_t kFetchAhead = 1;

// How a pass over blocks fetches meanwhile: kStream, the blocks kFetchAhead further on into the
// first-level cache and each block's `ahead` into the second; kParts, a share of each `ahead`,
// since other passes over the same blocks fetch the rest.
enum class FetchMode { kStream, kParts };

// o[i][c …] += weights times rows for kN queries and kC vectors of channels, over all blocks.
// fetch_bytes: bytes of a row to fetch, 0 for none; part, n_parts: of FetchMode::kParts.
template <KvType kType, size_t kN, size_t kC, FetchMode kFetch>
HWY_INLINE void AddBlocks(const ValueBlock* blocks, size_t n_blocks, size_t stride, bool reverse,
                          size_t first, size_t c, size_t v_dim, float* HWY_RESTRICT o,
                          size_t fetch_bytes, size_t part, size_t n_parts, Fetch& fetch) {
  const DF d;
  VF sums[kN][kC];
  float* HWY_RESTRICT to = o + first * v_dim + c;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) sums[i][j] = hn::LoadU(d, to + i * v_dim + j * kLanes);
  }
  // As much of a row as this pass reads.
  constexpr size_t kValueBytes = kType == KvType::kF32 ? 4 : 2;
  constexpr size_t kLines = std::max<size_t>(1, kC * kLanes * kValueBytes / 64);
  Fetch later = fetch;  // in registers
  for (size_t b = 0; b < n_blocks; ++b) {
    const std::byte* HWY_RESTRICT v = blocks[b].v;
    const float* HWY_RESTRICT weights = blocks[b].weights + first * kBlockRows;
    const std::byte* ahead = blocks[b].ahead.rows + c * kValueBytes;
    const size_t ahead_stride = blocks[b].ahead.stride;
    if (kFetch == FetchMode::kParts && fetch_bytes != 0)
      FetchPart(blocks[b].ahead, fetch_bytes, part, n_parts);
    if (kFetch == FetchMode::kStream && fetch_bytes != 0 && b + kFetchAhead < n_blocks)
      later.SetRows(blocks[b + kFetchAhead].v, stride, fetch_bytes);
    if (blocks[b].bits == 0xFFFF && !reverse) {
      for (size_t row = 0; row < kBlockRows; ++row) {
        if (kFetch == FetchMode::kStream) {
          later.Row();
          for (size_t line = 0; line < kLines; ++line) FetchLine(ahead + line * 64);
          ahead += ahead_stride;
        }
        AddRow<kType, kN, kC>(v + row * stride, c, weights + row, sums);
      }
    } else {
      ForRows(blocks[b].bits, reverse, [&](size_t row) HWY_ATTR {
        if (kFetch == FetchMode::kStream) later.Row();
        AddRow<kType, kN, kC>(v + row * stride, c, weights + row, sums);
      });
    }
  }
  fetch = later;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) hn::StoreU(sums[i][j], d, to + i * v_dim + j * kLanes);
  }
}

// AddBlocks over all channels for n queries that read the same rows.
template <KvType kType, size_t kMost, FetchMode kFetch>
HWY_INLINE void AddBlocksOfQueries(const ValueBlock* blocks, size_t n_blocks, size_t stride,
                                   bool reverse, size_t n, size_t v_dim, float* o,
                                   size_t fetch_bytes, Fetch& fetch) {
  ForBatches<kMost>(n, [&]<size_t kN>(size_t first) HWY_ATTR {
    constexpr size_t kC = kChannelVectors<kN>;
    size_t c = 0;
    const auto bytes = [&] {
      return c == 0 && (first == 0 || kFetch == FetchMode::kParts) ? fetch_bytes : 0;
    };
    const size_t part = first / kMost, n_parts = (n + kMost - 1) / kMost;
    for (; c + kC * kLanes <= v_dim; c += kC * kLanes) {
      AddBlocks<kType, kN, kC, kFetch>(blocks, n_blocks, stride, reverse, first, c, v_dim, o,
                                       bytes(), part, n_parts, fetch);
    }
    for (; c < v_dim; c += kLanes) {
      AddBlocks<kType, kN, 1, kFetch>(blocks, n_blocks, stride, reverse, first, c, v_dim, o,
                                      bytes(), part, n_parts, fetch);
    }
  });
}

// Converts the rows of `bits` of one block to FP32, row r to v32 + r * v_dim.
template <KvType kType>
HWY_INLINE void WidenRows(const std::byte* v, size_t stride, uint32_t bits, size_t v_dim,
                          float* HWY_RESTRICT v32, Fetch& later) {
  Fetch fetch = later;  // in registers
  const auto widen = [&](size_t row) HWY_ATTR {
    fetch.Row();
    for (size_t c = 0; c < v_dim; c += kLanes)
      hn::Store(Stored<kType>::Load(v + row * stride, c), DF(), v32 + row * v_dim + c);
  };
  if (bits == 0xFFFF) {
    for (size_t row = 0; row < kBlockRows; ++row) widen(row);
  } else {
    ForRows(bits, false, widen);
  }
  later = fetch;
}

// The same for q8_0, with the scales of 16 rows converted at once.
template <>
HWY_INLINE void WidenRows<KvType::kQ8_0>(const std::byte* v, size_t stride, uint32_t bits,
                                         size_t v_dim, float* HWY_RESTRICT v32, Fetch& fetch) {
  const DF d;
  const hn::Rebind<int8_t, DF> d8;
  HWY_ALIGN uint16_t halves[kBlockRows] = {};
  HWY_ALIGN float scales[kBlockRows];
  for (size_t block = 0; block < v_dim / kQ8BlockValues; ++block) {
    const std::byte* from = v + block * kQ8BlockBytes;
    float* HWY_RESTRICT to = v32 + block * kQ8BlockValues;
    const auto scale_of = [&](size_t row) { std::memcpy(halves + row, from + row * stride, 2); };
    const auto widen = [&](size_t row) HWY_ATTR {
      const int8_t* values = reinterpret_cast<const int8_t*>(from + row * stride + 2);
      const VF scale = hn::Set(d, scales[row]);
      for (size_t c = 0; c < kQ8BlockValues; c += kLanes) {
        const VF whole = hn::ConvertTo(d, hn::PromoteTo(DI32(), hn::LoadU(d8, values + c)));
        hn::Store(hn::Mul(whole, scale), d, to + row * v_dim + c);
      }
    };
    const auto all_scales = [&]() HWY_ATTR {
      for (size_t g = 0; g < kRowVectors; ++g)
        hn::Store(LoadF16(d, halves + g * kLanes), d, scales + g * kLanes);
    };
    if (bits == 0xFFFF) {
      for (size_t row = 0; row < kBlockRows; ++row) scale_of(row);
      all_scales();
      for (size_t row = 0; row < kBlockRows; ++row) {
        if (block == 0) fetch.Row();
        widen(row);
      }
    } else {
      ForRows(bits, false, scale_of);
      all_scales();
      ForRows(bits, false, widen);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
