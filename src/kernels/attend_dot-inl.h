// q.k for blocks of 16 rows, rows in lanes. A block's keys are transposed once, by channel pairs:
// the tile is [pair][16 rows][2 channels], so that even and odd channels are neighbouring lanes of
// one accumulator and every vector width does the same additions in the same order.
#if defined(CONDENSE_KERNELS_ATTEND_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#undef CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#else
#define CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#endif

#include "kernels/attend_scratch.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// A vector whose 128-bit blocks are the 16 bytes at rows[0], rows[step], rows[2 step], rows[3
// step], each plus `offset` bytes.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadRowBlocks(D d, const std::byte* const* rows, size_t step, size_t offset) {
  constexpr size_t kBlocks = hn::MaxLanes(D()) * sizeof(T) / 16;
  const auto load = [&](size_t b) HWY_ATTR {
    return hn::LoadDup128(d, reinterpret_cast<const T*>(rows[b * step] + offset));
  };
  if constexpr (kBlocks == 1) {
    return hn::LoadU(d, reinterpret_cast<const T*>(rows[0] + offset));
  } else if constexpr (kBlocks == 2) {
    return hn::ConcatUpperLower(d, load(1), load(0));
  } else {
    return hn::ConcatUpperLower(d, hn::OddEvenBlocks(load(3), load(2)),
                                hn::OddEvenBlocks(load(1), load(0)));
  }
}

// 16 rows of 16-bit values (dim a multiple of 8) into tile [dim / 2][16][2].
HWY_INLINE void TransposePairs16(const std::byte* const* rows, size_t dim,
                                 uint16_t* HWY_RESTRICT tile, Fetch& later) {
  const DU32 d;
  const hn::Repartition<uint64_t, DU32> d64;
  uint32_t* HWY_RESTRICT pairs = reinterpret_cast<uint32_t*>(tile);
  Fetch fetch = later;  // in registers
  for (size_t pair = 0; pair < dim / 2; pair += 4) {
    fetch.Row();
    fetch.Row();
    for (size_t g = 0; g < kRowVectors; ++g) {
      const std::byte* const* from = rows + g * kLanes;
      const auto x0 = LoadRowBlocks(d, from, 4, 4 * pair);
      const auto x1 = LoadRowBlocks(d, from + 1, 4, 4 * pair);
      const auto x2 = LoadRowBlocks(d, from + 2, 4, 4 * pair);
      const auto x3 = LoadRowBlocks(d, from + 3, 4, 4 * pair);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, x0, x1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, x2, x3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, x0, x1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, x2, x3));
      uint32_t* HWY_RESTRICT to = pairs + pair * 16 + g * kLanes;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + 16);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 32);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 48);
    }
  }
  later = fetch;
}

// The same for FP32 rows; dim a multiple of 4.
HWY_INLINE void TransposePairs32(const std::byte* const* rows, size_t dim, float* HWY_RESTRICT tile,
                                 Fetch& later) {
  const hn::Repartition<uint64_t, DU32> d;
  constexpr size_t kRows = kLanes / 2;
  uint64_t* HWY_RESTRICT pairs = reinterpret_cast<uint64_t*>(tile);
  Fetch fetch = later;  // in registers
  for (size_t pair = 0; pair < dim / 2; pair += 2) {
    fetch.Row();
    for (size_t row = 0; row < 16; row += kRows) {
      const auto x0 = LoadRowBlocks(d, rows + row, 2, 8 * pair);
      const auto x1 = LoadRowBlocks(d, rows + row + 1, 2, 8 * pair);
      hn::Store(hn::InterleaveLower(d, x0, x1), d, pairs + pair * 16 + row);
      hn::Store(hn::InterleaveUpper(d, x0, x1), d, pairs + pair * 16 + 16 + row);
    }
  }
  later = fetch;
}

// q8_0 rows: the integers are transposed as 16-bit values, and meet their row's scale when they
// become FP32.
HWY_INLINE void TransposeQ8(const std::byte* const* rows, size_t dim, Fetch& fetch,
                            AttendScratch& scratch) {
  const std::byte* wide_rows[16];
  const hn::Rebind<int16_t, DF> d16;
  const hn::Rebind<int8_t, DF> d8;
  for (size_t row = 0; row < 16; ++row) {
    int16_t* HWY_RESTRICT to = scratch.q8_rows + row * kMaxHeadDim;
    wide_rows[row] = reinterpret_cast<const std::byte*>(to);
    for (size_t block = 0; block < dim / kQ8BlockValues; ++block) {
      const std::byte* from = rows[row] + block * kQ8BlockBytes;
      uint16_t scale;
      std::memcpy(&scale, from, 2);
      scratch.q8_scales[block * 16 + row] = scale * 0x10001u;
      for (size_t c = 0; c < kQ8BlockValues; c += kLanes) {
        const auto values = hn::LoadU(d8, reinterpret_cast<const int8_t*>(from + 2) + c);
        hn::StoreU(hn::PromoteTo(d16, values), d16, to + block * kQ8BlockValues + c);
      }
    }
  }
  TransposePairs16(wide_rows, dim, scratch.tile16, fetch);
  for (size_t block = 0; block < dim / kQ8BlockValues; ++block) {
    for (size_t lane = 0; lane < 32; lane += kLanes) {
      const std::byte* scales = reinterpret_cast<const std::byte*>(scratch.q8_scales + block * 16);
      const VF scale = Stored<KvType::kF16>::Load(scales, lane);
      for (size_t pair = block * 16; pair < block * 16 + 16; ++pair) {
        const int16_t* from = reinterpret_cast<const int16_t*>(scratch.tile16) + pair * 32 + lane;
        const VF values = hn::ConvertTo(DF(), hn::PromoteTo(DI32(), hn::Load(d16, from)));
        hn::Store(hn::Mul(values, scale), DF(), scratch.tile32 + pair * 32 + lane);
      }
    }
  }
}

// Sets out[i][0 … 15] = q[i] . rows for kN queries at once; tile as made above, of type kTile.
template <KvType kTile, size_t kN>
HWY_INLINE void DotTile(const std::byte* HWY_RESTRICT tile, size_t dim, const float* const* q,
                        float* const* out) {
  const DF d;
  const hn::Repartition<uint64_t, DF> d64;
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF low[kN], high[kN];
    for (size_t i = 0; i < kN; ++i) low[i] = high[i] = hn::Zero(d);
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      const size_t at = pair * 32 + g * 2 * kLanes;
      const VF k_low = Stored<kTile>::Load(tile, at);
      const VF k_high = Stored<kTile>::Load(tile, at + kLanes);
      for (size_t i = 0; i < kN; ++i) {
        uint64_t two;
        std::memcpy(&two, q[i] + 2 * pair, 8);
        const VF q_pair = hn::BitCast(d, hn::Set(d64, two));
        low[i] = hn::MulAdd(k_low, q_pair, low[i]);
        high[i] = hn::MulAdd(k_high, q_pair, high[i]);
      }
    }
    for (size_t i = 0; i < kN; ++i) {
      const VF even = hn::ConcatEven(d, high[i], low[i]);
      const VF odd = hn::ConcatOdd(d, high[i], low[i]);
      hn::StoreU(hn::Add(even, odd), d, out[i] + g * kLanes);
    }
  }
}

// Sets out[i][0 … 15] = q[i] . rows for n queries. Every rows[r] must be readable; whoever has no
// row r passes another row there and ignores the lane.
HWY_INLINE void DotBlock(KvType type, const std::byte* const* rows, size_t dim,
                         const float* const* q, size_t n, float* const* out, Fetch& fetch,
                         AttendScratch& scratch) {
  const auto dot_all = [&]<KvType kTile>(const void* tile) HWY_ATTR {
    ForBatches(n, [&]<size_t kN>(size_t first) HWY_ATTR {
      DotTile<kTile, kN>(static_cast<const std::byte*>(tile), dim, q + first, out + first);
    });
  };
  const auto dot_16 = [&]<KvType kTile>() HWY_ATTR {
    TransposePairs16(rows, dim, scratch.tile16, fetch);
    if (n <= kMaxBatch) return dot_all.template operator()<kTile>(scratch.tile16);
    for (size_t i = 0; i < 16 * dim; i += kLanes) {
      const std::byte* tile = reinterpret_cast<const std::byte*>(scratch.tile16);
      hn::Store(Stored<kTile>::Load(tile, i), DF(), scratch.tile32 + i);
    }
    dot_all.template operator()<KvType::kF32>(scratch.tile32);
  };
  switch (type) {
    case KvType::kF16:
      return dot_16.template operator()<KvType::kF16>();
    case KvType::kBF16:
      return dot_16.template operator()<KvType::kBF16>();
    case KvType::kF32:
      TransposePairs32(rows, dim, scratch.tile32, fetch);
      return dot_all.template operator()<KvType::kF32>(scratch.tile32);
    case KvType::kQ8_0:
      TransposeQ8(rows, dim, fetch, scratch);
      return dot_all.template operator()<KvType::kF32>(scratch.tile32);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
