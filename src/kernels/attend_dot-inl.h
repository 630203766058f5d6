// q.k for blocks of 16 rows, rows in lanes. A block's keys are transposed once, by channel pairs:
// the tile is [pair][16 rows][2 channels], so that even and odd channels are neighbouring lanes of
// one accumulator and every vector width does the same additions in the same order. q8_0 keys meet
// 16-bit queries in integer arithmetic, which is exact in any order.
#if defined(CONDENSE_KERNELS_ATTEND_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#undef CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#else
#define CONDENSE_KERNELS_ATTEND_DOT_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/attend_scratch.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// A block's 16 rows where they are neighbours in the cache: every fourth row's address and two
// strides make every other address one instruction's operand.
struct NeighbourRows {
  const std::byte* fourth[4];
  size_t stride, stride3;
  HWY_INLINE NeighbourRows(const std::byte* base, size_t row_stride)
      : fourth{base, base + 4 * row_stride, base + 8 * row_stride, base + 12 * row_stride},
        stride(row_stride),
        stride3(3 * row_stride) {}
  HWY_INLINE const std::byte* operator[](size_t row) const {
    return fourth[row / 4] + (row % 4 == 3 ? stride3 : row % 4 * stride);
  }
};
// Elsewhere: one pointer a row.
struct ScatteredRows {
  const std::byte* rows[kBlockRows];
  HWY_INLINE const std::byte* operator[](size_t row) const { return rows[row]; }
};
// The same, the pointers elsewhere.
struct ListedRows {
  const std::byte* const* rows;
  HWY_INLINE const std::byte* operator[](size_t row) const { return rows[row]; }
};

// A vector whose 128-bit blocks are the 16 bytes at rows kFirst, kFirst + kStep, kFirst + 2 kStep,
// kFirst + 3 kStep, each plus `offset` bytes.
template <size_t kFirst, size_t kStep, class D, class Rows, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadRowBlocks(D d, const Rows& rows, size_t offset) {
  constexpr size_t kBlocks = hn::MaxLanes(D()) * sizeof(T) / 16;
  const auto load = [&]<size_t kBlock>() HWY_ATTR {
    return hn::LoadDup128(d, reinterpret_cast<const T*>(rows[kFirst + kBlock * kStep] + offset));
  };
  if constexpr (kBlocks == 1) {
    return hn::LoadU(d, reinterpret_cast<const T*>(rows[kFirst] + offset));
  } else if constexpr (kBlocks == 2) {
    return hn::ConcatUpperLower(d, load.template operator()<1>(), load.template operator()<0>());
  } else {
    return hn::ConcatUpperLower(
        d, hn::OddEvenBlocks(load.template operator()<3>(), load.template operator()<2>()),
        hn::OddEvenBlocks(load.template operator()<1>(), load.template operator()<0>()));
  }
}

// Calls function.template operator()<0>(), <1>(), … <kN - 1>().
template <size_t kN, class Function>
HWY_INLINE void Unrolled(const Function& function) {
  if constexpr (kN > 0) {
    Unrolled<kN - 1>(function);
    function.template operator()<kN - 1>();
  }
}

// Four 32-bit words at `offset` bytes of each of kLanes rows from kRow on, transposed: word w of
// row r goes to out[w][r].
template <size_t kRow, class Rows>
HWY_INLINE void TransposeWords(const Rows& rows, size_t offset, hn::Vec<DU32> (&out)[4]) {
  const DU32 d;
  const hn::Repartition<uint64_t, DU32> d64;
  const auto x0 = LoadRowBlocks<kRow, 4>(d, rows, offset);
  const auto x1 = LoadRowBlocks<kRow + 1, 4>(d, rows, offset);
  const auto x2 = LoadRowBlocks<kRow + 2, 4>(d, rows, offset);
  const auto x3 = LoadRowBlocks<kRow + 3, 4>(d, rows, offset);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, x0, x1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, x2, x3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, x0, x1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, x2, x3));
  out[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  out[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

// 16 rows of 16-bit values (dim a multiple of 8) into tile [dim / 2][16][2].
template <class Rows, class F>
HWY_INLINE void TransposePairs16(const Rows& rows, size_t dim, uint16_t* HWY_RESTRICT tile,
                                 F& later) {
  uint32_t* HWY_RESTRICT pairs = reinterpret_cast<uint32_t*>(tile);
  F fetch = later;  // in registers
  for (size_t pair = 0; pair < dim / 2; pair += 4) {
    fetch.Row();
    fetch.Row();
    Unrolled<kRowVectors>([&]<size_t kG>() HWY_ATTR {
      hn::Vec<DU32> words[4];
      TransposeWords<kG * kLanes>(rows, 4 * pair, words);
      for (size_t w = 0; w < 4; ++w)
        hn::Store(words[w], DU32(), pairs + (pair + w) * 16 + kG * kLanes);
    });
  }
  later = fetch;
}

// The same for FP32 rows; dim a multiple of 4.
template <class Rows, class F>
HWY_INLINE void TransposePairs32(const Rows& rows, size_t dim, float* HWY_RESTRICT tile, F& later) {
  const hn::Repartition<uint64_t, DU32> d;
  constexpr size_t kRows = kLanes / 2;
  uint64_t* HWY_RESTRICT pairs = reinterpret_cast<uint64_t*>(tile);
  F fetch = later;  // in registers
  for (size_t pair = 0; pair < dim / 2; pair += 2) {
    fetch.Row();
    Unrolled<16 / kRows>([&]<size_t kG>() HWY_ATTR {
      constexpr size_t kRow = kG * kRows;
      const auto x0 = LoadRowBlocks<kRow, 2>(d, rows, 8 * pair);
      const auto x1 = LoadRowBlocks<kRow + 1, 2>(d, rows, 8 * pair);
      hn::Store(hn::InterleaveLower(d, x0, x1), d, pairs + pair * 16 + kRow);
      hn::Store(hn::InterleaveUpper(d, x0, x1), d, pairs + pair * 16 + 16 + kRow);
    });
  }
  later = fetch;
}

// q8_0 rows into tile [dim / 4][2][16 rows][2]: channels 0 and 2 of each four as 16-bit integers,
// then 1 and 3. scales: [dim / 32][16 rows].
template <class Rows, class F>
HWY_INLINE void TransposeQ8(const Rows& rows, size_t dim, uint16_t* HWY_RESTRICT tile,
                            float (*scales)[kBlockRows], F& later) {
  const hn::Repartition<int16_t, DU32> d16;
  HWY_ALIGN uint16_t halves[kBlockRows];
  F fetch = later;  // in registers
  for (size_t block = 0; block < dim / kQ8BlockValues; ++block) {
    const size_t offset = block * kQ8BlockBytes;
    for (size_t row = 0; row < kBlockRows; ++row) std::memcpy(halves + row, rows[row] + offset, 2);
    for (size_t g = 0; g < kRowVectors; ++g) {
      hn::Store(LoadF16(DF(), halves + g * kLanes), DF(), scales[block] + g * kLanes);
    }
    for (size_t four = 0; four < kQ8BlockValues / 4; four += 4) {
      for (int i = 0; i < 4; ++i) fetch.Row();
      Unrolled<kRowVectors>([&]<size_t kG>() HWY_ATTR {
        hn::Vec<DU32> words[4];
        TransposeWords<kG * kLanes>(rows, offset + 2 + 4 * four, words);
        for (size_t w = 0; w < 4; ++w) {
          const auto values = hn::BitCast(d16, words[w]);
          uint16_t* to = tile + (block * 8 + four + w) * 64 + kG * 2 * kLanes;
          hn::Store(hn::ShiftRight<8>(hn::ShiftLeft<8>(values)), d16,
                    reinterpret_cast<int16_t*>(to));
          hn::Store(hn::ShiftRight<8>(values), d16, reinterpret_cast<int16_t*>(to + 32));
        }
      });
    }
  }
  later = fetch;
}

// A query for q8_0 keys: per 32 channels 16-bit integers and a scale; within each four channels in
// the order 0, 2, 1, 3. Error of a channel: at most half a step, that is max |q| / 65534 over its
// 32 channels. A query with an infinity or a NaN gets the scale NaN.
HWY_INLINE void QuantizeQuery(const float* q, size_t dim, int16_t* out, float* scales) {
  const DF d;
  const VF largest_finite = hn::Set(d, std::numeric_limits<float>::max());
  for (size_t block = 0; block < dim / kQ8BlockValues; ++block) {
    const float* from = q + block * kQ8BlockValues;
    VF most = hn::Zero(d);
    MF finite = hn::Eq(most, most);
    for (size_t c = 0; c < kQ8BlockValues; c += kLanes) {
      const VF magnitude = hn::Abs(hn::LoadU(d, from + c));
      finite = hn::And(finite, hn::Le(magnitude, largest_finite));
      most = MaxNumber(magnitude, most);
    }
    const bool all_finite = hn::AllTrue(d, finite);
    const float max = all_finite ? LargestLane(most) : 0.0f;
    const float step = max / 32767.0f;
    const float inverse = max > 0 ? 32767.0f / max : 0.0f;
    // 1 / step of the smallest numbers is infinite: they count as zero.
    const bool zero = !(inverse <= std::numeric_limits<float>::max()) || max == 0;
    HWY_ALIGN int32_t whole[kQ8BlockValues];
    for (size_t c = 0; c < kQ8BlockValues; c += kLanes) {
      const VF scaled =
          zero || !all_finite ? hn::Zero(d) : hn::Mul(hn::LoadU(d, from + c), hn::Set(d, inverse));
      hn::Store(hn::NearestInt(scaled), DI32(), whole + c);
    }
    int16_t* to = out + block * kQ8BlockValues;
    for (size_t c = 0; c < kQ8BlockValues; c += 4) {
      to[c] = static_cast<int16_t>(whole[c]);
      to[c + 1] = static_cast<int16_t>(whole[c + 2]);
      to[c + 2] = static_cast<int16_t>(whole[c + 1]);
      to[c + 3] = static_cast<int16_t>(whole[c + 3]);
    }
    scales[block] = !all_finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : step;
  }
}

// The queries of a call, contiguous, and where their logits go: query i's 16 of a block to
// out + 16 i.
struct Queries {
  const float* q;  // [n][dim]
  size_t dim;
  const int16_t* q16;  // q8_0 keys: [n][dim], and [n][kMaxHeadDim / 32]
  const float (*q16_scales)[kMaxHeadDim / 32];
  float scale;
};

// out[block][i][0 … 15] = scale * (q[first + i] . rows) for kN queries and kB blocks at once; tiles
// as made above, one after the other, of type kTile. Meanwhile fetches the blocks ahead: of a row,
// as many lines as its share of the pairs has bytes; and 16 rows of `later`.
template <KvType kTile, size_t kN, size_t kB, bool kFetch, class F>
HWY_INLINE void DotTile(const std::byte* HWY_RESTRICT tile, const Queries& queries, size_t first,
                        float* const (&out)[kB], const Ahead (&ahead)[kB], F& later) {
  const DF d;
  const hn::Repartition<uint64_t, DF> d64;
  const size_t dim = queries.dim;
  const float* HWY_RESTRICT q = queries.q + first * dim;
  const size_t block_bytes = dim * kBlockRows * (kTile == KvType::kF32 ? 4 : 2);
  const VF scale = hn::Set(d, queries.scale);
  constexpr size_t kLineBytes = kTile == KvType::kF32 ? 128 : 64;
  const size_t n_pairs = dim / 2, of_row = n_pairs / kBlockRows;
  F fetch = later;  // in registers
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF low[kN][kB], high[kN][kB];
    for (size_t i = 0; i < kN; ++i) {
      for (size_t b = 0; b < kB; ++b) low[i][b] = high[i][b] = hn::Zero(d);
    }
    const std::byte* rows[kB];
    for (size_t b = 0; b < kB; ++b) rows[b] = ahead[b].rows;
    // No lambda here: with one, GCC 12 keeps the sums in memory.
    for (size_t pair = 0, row_end = of_row; pair < n_pairs; row_end += of_row) {
      const size_t end = std::min(row_end, n_pairs);
      const std::byte* lines[kB];
      for (size_t b = 0; b < kB; ++b) lines[b] = rows[b];
      fetch.Row();
      do {
        const size_t at = pair * 32 + g * 2 * kLanes;
        VF k_low[kB], k_high[kB];
        for (size_t b = 0; b < kB; ++b) {
          if (kFetch) FetchLine(lines[b]);
          if (kFetch && kLineBytes == 128) FetchLine(lines[b] + 64);
          lines[b] += kLineBytes;
          k_low[b] = Stored<kTile>::Load(tile + b * block_bytes, at);
          k_high[b] = Stored<kTile>::Load(tile + b * block_bytes, at + kLanes);
        }
        for (size_t i = 0; i < kN; ++i) {
          uint64_t two;
          std::memcpy(&two, q + i * dim + 2 * pair, 8);
          const VF q_pair = hn::BitCast(d, hn::Set(d64, two));
          for (size_t b = 0; b < kB; ++b) {
            low[i][b] = hn::MulAdd(k_low[b], q_pair, low[i][b]);
            high[i][b] = hn::MulAdd(k_high[b], q_pair, high[i][b]);
          }
        }
      } while (++pair < end);
      for (size_t b = 0; b < kB; ++b) rows[b] += ahead[b].stride;
    }
    for (size_t i = 0; i < kN; ++i) {
      for (size_t b = 0; b < kB; ++b) {
        const VF even = hn::ConcatEven(d, high[i][b], low[i][b]);
        const VF odd = hn::ConcatOdd(d, high[i][b], low[i][b]);
        hn::Store(hn::Mul(hn::Add(even, odd), scale), d, out[b] + i * kBlockRows + g * kLanes);
      }
    }
  }
  later = fetch;
}

// The same for q8_0: per 32 channels an integer sum, exact, then times both scales; the sums of 32
// channels are added in ascending order. |sum| <= 32 * 128 * 32767 fits 32 bits.
template <size_t kN, size_t kB, bool kFetch, class F>
HWY_INLINE void DotTileQ8(const uint16_t* HWY_RESTRICT tile,
                          const float (*tile_scales)[kMaxHeadDim / 32][kBlockRows],
                          const Queries& queries, size_t first, float* const (&out)[kB],
                          const Ahead (&ahead)[kB], F& later) {
  const DF d;
  const DI32 d32;
  const hn::Repartition<int16_t, DI32> d16;
  const size_t dim = queries.dim;
  const VF scale = hn::Set(d, queries.scale);
  F fetch = later;  // in registers
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF sums[kN][kB];
    for (size_t block = 0; block < dim / kQ8BlockValues; ++block) {
      hn::Vec<DI32> a[kN][kB], b[kN][kB];
      for (size_t i = 0; i < kN; ++i) {
        for (size_t j = 0; j < kB; ++j) a[i][j] = b[i][j] = hn::Zero(d32);
      }
      for (size_t row = 0; row < kBlockRows; ++row) {  // of the block ahead; and a pair of this one
        const size_t pair = block * 16 + row;
        fetch.Row();
        hn::Vec<decltype(d16)> k[kB];
        for (size_t j = 0; j < kB; ++j) {
          if (kFetch) FetchLine(ahead[j].rows + row * ahead[j].stride + block * 64);
          k[j] = hn::Load(d16, reinterpret_cast<const int16_t*>(tile) + j * dim * kBlockRows +
                                   pair * 32 + g * 2 * kLanes);
        }
        for (size_t i = 0; i < kN; ++i) {
          int32_t two;
          std::memcpy(&two, queries.q16 + (first + i) * dim + 2 * pair, 4);
          const auto q_pair = hn::BitCast(d16, hn::Set(d32, two));
          for (size_t j = 0; j < kB; ++j)
            a[i][j] = hn::ReorderWidenMulAccumulate(d32, k[j], q_pair, a[i][j], b[i][j]);
        }
      }
      for (size_t i = 0; i < kN; ++i) {
        const VF q_scale = hn::Set(d, queries.q16_scales[first + i][block]);
        for (size_t j = 0; j < kB; ++j) {
          const VF whole = hn::ConvertTo(d, hn::RearrangeToOddPlusEven(a[i][j], b[i][j]));
          const VF step = hn::Mul(q_scale, hn::Load(d, tile_scales[j][block] + g * kLanes));
          sums[i][j] = block == 0 ? hn::Mul(whole, step) : hn::MulAdd(whole, step, sums[i][j]);
        }
      }
    }
    for (size_t i = 0; i < kN; ++i) {
      for (size_t j = 0; j < kB; ++j)
        hn::Store(hn::Mul(sums[i][j], scale), d, out[j] + i * kBlockRows + g * kLanes);
    }
  }
  later = fetch;
}

// Transposes one block as the pack-th tile of the scratch.
template <KvType kType, class Rows, class F>
HWY_INLINE void TransposeBlock(const Rows& rows, size_t dim, size_t pack, F& fetch,
                               AttendScratch& scratch) {
  const size_t at = pack * dim * kBlockRows;
  if constexpr (kType == KvType::kF32) {
    TransposePairs32(rows, dim, scratch.tile32 + at, fetch);
  } else if constexpr (kType == KvType::kQ8_0) {
    TransposeQ8(rows, dim, scratch.tile16 + at, scratch.q8_scales[pack], fetch);
  } else {
    TransposePairs16(rows, dim, scratch.tile16 + at, fetch);
  }
}

// Products of the scratch's first kB tiles.
template <KvType kTile, size_t kN, size_t kB, bool kFetch, class F>
HWY_INLINE void DotTiles(const Queries& queries, size_t first, float* const (&out)[kB],
                         const AttendScratch& scratch, const Ahead (&ahead)[kB], F& later) {
  if constexpr (kTile == KvType::kQ8_0) {
    DotTileQ8<kN, kB, kFetch>(scratch.tile16, scratch.q8_scales, queries, first, out, ahead, later);
  } else {
    const void* tiles = kTile == KvType::kF32 ? static_cast<const void*>(scratch.tile32)
                                              : static_cast<const void*>(scratch.tile16);
    DotTile<kTile, kN, kB, kFetch>(static_cast<const std::byte*>(tiles), queries, first, out, ahead,
                                   later);
  }
}
template <KvType kTile, size_t kN, size_t kB, bool kFetch>
HWY_INLINE void DotTiles(const Queries& queries, size_t first, float* const (&out)[kB],
                         const AttendScratch& scratch, const Ahead (&ahead)[kB]) {
  NoFetch none;
  DotTiles<kTile, kN, kB, kFetch>(queries, first, out, scratch, ahead, none);
}

// All of a tile's queries, in the form that keys of type kType meet.
template <KvType kType>
HWY_INLINE Queries QueriesOf(const float* q, size_t n, size_t dim, float scale,
                             AttendScratch& scratch) {
  if constexpr (kType == KvType::kQ8_0) {
    for (size_t i = 0; i < n; ++i)
      QuantizeQuery(q + i * dim, dim, scratch.q16 + i * dim, scratch.q16_scales[i]);
  }
  return {q, dim, scratch.q16, scratch.q16_scales, scale};
}

// The scratch's first tile as FP32, for many queries. q8_0 stays as it is.
template <KvType kType>
HWY_INLINE void WidenTile(size_t dim, AttendScratch& scratch) {
  if constexpr (kType == KvType::kF16 || kType == KvType::kBF16) {
    const std::byte* tile = reinterpret_cast<const std::byte*>(scratch.tile16);
    for (size_t i = 0; i < kBlockRows * dim; i += kLanes)
      hn::Store(Stored<kType>::Load(tile, i), DF(), scratch.tile32 + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
