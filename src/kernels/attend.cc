// Attention over one chunk: logits block by block, softmax per query, values block by block. Keys
// are transposed and values converted once for up to kQueryTile queries; with few queries both are
// read straight from the cache while the next blocks are being fetched. Each instruction set is
// compiled from this one source.
#include "kernels/attend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/result.h"
#include "kernels/attend_dot-inl.h"
#include "kernels/attend_rows-inl.h"
#include "kernels/attend_scratch.h"
#include "kernels/attend_tile-inl.h"
#include "kernels/attend_value-inl.h"
#include "kernels/half.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// The idx-th block of K, past the end of K's list the next ones of V, past that nothing.
HWY_INLINE void FetchBlock(const AttendArgs& args, const BlockList& k_list, const BlockList& v_list,
                           size_t idx, Fetch& fetch) {
  if (idx < k_list.n) {
    fetch.SetRows(KeyBlock(args, k_list.block[idx]), args.k_stride,
                  KvBytes(args.k_type, static_cast<size_t>(args.k_dim)));
    return;
  }
  idx -= k_list.n;
  if (idx >= v_list.n) return;
  const size_t at = args.reverse ? v_list.n - 1 - idx : idx;
  fetch.SetRows(ValueRows(args, v_list.block[at]), args.v_stride,
                KvBytes(args.v_type, static_cast<size_t>(args.v_dim)));
}

// Blocks between the one in work and the one being fetched into the second-level cache: 16 KiB.
// (4 to 16 KiB measure alike at head size 64; at 128, with rows 2 KiB apart, more is worse.)
HWY_INLINE size_t StreamAhead(KvType type, int dim) {
  const size_t row = KvBytes(type, static_cast<size_t>(dim));
  return std::max<size_t>(2, 16384 / (row * kBlockRows));
}

// The block that is fetched during the idx-th of K's list: further on in the list, then V's.
HWY_INLINE Ahead AheadOfKeys(const AttendArgs& args, const BlockList& k_list,
                             const BlockList& v_list, size_t idx) {
  idx += StreamAhead(args.k_type, args.k_dim);
  if (idx < k_list.n) return {KeyBlock(args, k_list.block[idx]), args.k_stride};
  idx -= k_list.n;
  if (idx < v_list.n) return {ValueRows(args, v_list.block[idx]), args.v_stride};
  return {reinterpret_cast<const std::byte*>(args.q), 0};
}
// The idx-th block of V's list, past its end the keys that come next.
HWY_INLINE Ahead AheadOfValues(const AttendArgs& args, const BlockList& v_list, size_t idx) {
  if (idx < v_list.n) return {ValueRows(args, v_list.block[idx]), args.v_stride};
  if (args.next_k == nullptr) return {reinterpret_cast<const std::byte*>(args.q), 0};
  return {args.next_k + (idx - v_list.n) * kBlockRows * args.k_stride, args.k_stride};
}

// Transposes a block as the pack-th tile of the scratch. Rows that nobody reads are not touched:
// their lanes repeat a row that somebody reads.
template <KvType kType>
HWY_INLINE void TransposeRows(const AttendArgs& args, size_t block, uint32_t bits, size_t pack,
                              Fetch& fetch, AttendScratch& scratch) {
  const std::byte* base = KeyBlock(args, block);
  const size_t dim = static_cast<size_t>(args.k_dim);
  if (bits == 0xFFFF) {
    TransposeBlock<kType>(NeighbourRows(base, args.k_stride), dim, pack, fetch, scratch);
    return;
  }
  ScatteredRows scattered;
  const size_t stand_in = static_cast<size_t>(std::countr_zero(bits));
  for (size_t row = 0; row < kBlockRows; ++row)
    scattered.rows[row] = base + ((bits >> row) & 1 ? row : stand_in) * args.k_stride;
  TransposeBlock<kType>(scattered, dim, pack, fetch, scratch);
}

// scale * q.k of every listed block, for all queries of the tile that read it, at least.
template <KvType kType>
HWY_INLINE void Dots(const Tile& tile, const BlockList& k_list, const BlockList& v_list,
                     AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  const size_t dim = static_cast<size_t>(args.k_dim);
  const Queries queries =
      QueriesOf<kType>(args.q + tile.first * dim, tile.n, dim, args.scale, scratch);
  Fetch fetch;
  for (size_t idx = 0; idx < kFetchAhead; ++idx) {
    FetchBlock(args, k_list, v_list, idx, fetch);
    for (size_t row = 0; row < kBlockRows; ++row) fetch.Row();
  }
  size_t idx = 0;
  const auto transpose = [&](size_t pack) HWY_ATTR {
    FetchBlock(args, k_list, v_list, idx + pack + kFetchAhead, fetch);
    TransposeRows<kType>(args, k_list.block[idx + pack], k_list.bits[idx + pack], pack, fetch,
                         scratch);
  };
  // All of few queries, kB blocks at once: chains enough to hide the latency of multiply-add.
  const auto few = [&]<size_t kN, size_t kB>() HWY_ATTR {
    for (; idx + kB <= k_list.n; idx += kB) {
      float* out[kB];
      Ahead ahead[kB];
      for (size_t pack = 0; pack < kB; ++pack) {
        transpose(pack);
        ahead[pack] = AheadOfKeys(args, k_list, v_list, idx + pack);
        out[pack] = tile.At(k_list.block[idx + pack], 0);
      }
      DotTiles<kType, kN, kB, true>(queries, 0, out, scratch, ahead);
    }
  };
  const bool few_queries = tile.n <= kFewQueries && k_list.all_same;
  switch (few_queries ? tile.n : 0) {
    case 1:
      few.template operator()<1, 4>();
      return few.template operator()<1, 1>();
    case 2:
      few.template operator()<2, 2>();
      return few.template operator()<2, 1>();
    case 3:
      few.template operator()<3, 2>();
      return few.template operator()<3, 1>();
    default:
      break;
  }
  constexpr KvType kWide = kType == KvType::kQ8_0 ? KvType::kQ8_0 : KvType::kF32;
  for (; idx < k_list.n; ++idx) {
    transpose(0);
    const size_t b = k_list.block[idx];
    // In a causal tile the queries that read a block are its last ones.
    size_t begin = 0, end = tile.n;
    while (tile.Mask(begin)[b] == 0) ++begin;
    while (tile.Mask(end - 1)[b] == 0) --end;
    if (end - begin <= kFewQueries) {
      const Ahead ahead[1] = {AheadOfKeys(args, k_list, v_list, idx)};
      ForBatches<kFewBatch>(end - begin, [&]<size_t kN>(size_t first) HWY_ATTR {
        float* const to[1] = {tile.At(b, begin + first)};
        DotTiles<kType, kN, 1, true>(queries, begin + first, to, scratch, ahead);
      });
    } else {
      const Ahead ahead = AheadOfKeys(args, k_list, v_list, idx), no_ahead[1] = {};
      const size_t n_batches = (end - begin + kManyBatch - 1) / kManyBatch;
      WidenTile<kType>(dim, scratch);
      ForBatches<kManyBatch>(end - begin, [&]<size_t kN>(size_t first) HWY_ATTR {
        FetchPart(ahead, KvBytes(kType, dim), first / kManyBatch, n_batches);
        float* const to[1] = {tile.At(b, begin + first)};
        DotTiles<kWide, kN, 1, false>(queries, begin + first, to, scratch, no_ahead);
      });
    }
  }
}

// Lets the softmax fetch values beyond those that the dot products' end fetched, so that memory
// does not idle: one row with each of its steps. Returns how many blocks of V will be under way.
HWY_INLINE size_t FetchInSoftmax(const Tile& tile, const BlockList& v_list, Fetch& fetch) {
  const AttendArgs& args = tile.args;
  const size_t first = StreamAhead(args.k_type, args.k_dim);
  const bool stream =
      args.blocks == nullptr && !args.reverse && v_list.n == static_cast<size_t>(args.n_blocks);
  if (tile.n > kFewQueries || !stream || first >= v_list.n) return first;
  const size_t n_steps = v_list.n * ((tile.n + 3) / 4);
  const size_t n_blocks = std::min(n_steps / kBlockRows, v_list.n - first);
  fetch.SetRows(ValueRows(args, first), args.v_stride,
                KvBytes(args.v_type, static_cast<size_t>(args.v_dim)), n_blocks * kBlockRows);
  return first + n_blocks;
}

// o of all queries, who read the same rows of V, straight from the cache.
template <KvType kType>
HWY_INLINE void FewValues(const Tile& tile, const BlockList& list, size_t n_fetched, Fetch& fetch) {
  const AttendArgs& args = tile.args;
  ValueBlock blocks[kChunkBlocks];
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t at = args.reverse ? list.n - 1 - idx : idx;
    const size_t b = list.block[at];
    blocks[idx] = {ValueRows(args, b), tile.At(b, 0), list.bits[at],
                   AheadOfValues(args, list, idx + n_fetched)};
  }
  const size_t v_dim = static_cast<size_t>(args.v_dim);
  AddBlocksOfQueries<kType, kFewBatch, FetchMode::kStream>(
      blocks, list.n, args.v_stride, args.reverse, tile.n, v_dim, args.o + tile.first * v_dim,
      KvBytes(kType, v_dim), fetch);
}

// o of all queries, over packs of blocks: of some that all queries read alike, of some that they
// read in ways of their own, both converted to FP32 once, or of such that one or two of them read
// straight from the cache.
template <KvType kType>
HWY_INLINE void ManyValues(const Tile& tile, const BlockList& list, Fetch& fetch,
                           AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  const size_t v_dim = static_cast<size_t>(args.v_dim);
  const auto at = [&](size_t idx) { return args.reverse ? list.n - 1 - idx : idx; };
  enum class Kind : uint8_t { kSame, kOwn, kRare };
  const auto kind = [&](size_t idx) {
    if (list.same[at(idx)]) return Kind::kSame;
    size_t n_readers = 0;
    for (size_t i = 0; i < tile.n && n_readers <= 2; ++i)
      n_readers += tile.VMask(i)[list.block[at(idx)]] != 0;
    return n_readers > 2 || kType == KvType::kQ8_0 ? Kind::kOwn : Kind::kRare;
  };
  Kind next_kind = kind(0);
  for (size_t first_idx = 0, end_idx; first_idx < list.n; first_idx = end_idx) {
    const Kind pack_kind = next_kind;
    const bool rare = pack_kind == Kind::kRare;
    const size_t most = rare ? list.n : std::min(first_idx + kPack, list.n);
    for (end_idx = first_idx + 1; end_idx < list.n; ++end_idx) {
      next_kind = kind(end_idx);
      if (end_idx == most || next_kind != pack_kind) break;
    }
    if (!rare) {
      for (size_t idx = first_idx; idx < end_idx; ++idx) {
        WidenRows<kType>(ValueRows(args, list.block[at(idx)]), args.v_stride, list.bits[at(idx)],
                         v_dim, scratch.v32 + (idx - first_idx) * kBlockRows * v_dim, fetch);
      }
    }
    // Runs of queries with equal masks.
    const auto bits = [&](size_t i, size_t idx) { return tile.VMask(i)[list.block[at(idx)]]; };
    for (size_t begin = 0, end; begin < tile.n; begin = end) {
      end = pack_kind == Kind::kSame ? tile.n : begin + 1;
      const auto as_begin = [&](size_t i) {
        size_t idx = first_idx;
        while (idx < end_idx && bits(i, idx) == bits(begin, idx)) ++idx;
        return idx == end_idx;
      };
      while (end < tile.n && as_begin(end)) ++end;
      ValueBlock blocks[kChunkBlocks];
      size_t n = 0;
      for (size_t idx = first_idx; idx < end_idx; ++idx) {
        const uint32_t rows = bits(begin, idx);
        if (rows == 0) continue;
        const size_t b = list.block[at(idx)];
        const float* v32 = scratch.v32 + (idx - first_idx) * kBlockRows * v_dim;
        blocks[n++] = {
            pack_kind == Kind::kRare ? ValueRows(args, b) : reinterpret_cast<const std::byte*>(v32),
            tile.At(b, begin), rows, AheadOfValues(args, list, idx + (rare ? 2 * kPack : kPack))};
      }
      float* o = args.o + (tile.first + begin) * v_dim;
      if (n == 0) continue;
      if (!rare) {
        // Only what all read is worth fetching a pack ahead: other packs are short.
        AddBlocksOfQueries<KvType::kF32, kManyBatch, FetchMode::kParts>(
            blocks, n, v_dim * sizeof(float), args.reverse, end - begin, v_dim, o,
            pack_kind == Kind::kSame ? KvBytes(kType, v_dim) : 0, fetch);
      } else if constexpr (kType != KvType::kQ8_0) {
        AddBlocksOfQueries<kType, kFewBatch, FetchMode::kStream>(
            blocks, n, args.v_stride, args.reverse, end - begin, v_dim, o, 0, fetch);
      }
    }
  }
}

template <KvType kType>
HWY_INLINE void Values(const Tile& tile, const BlockList& v_list, size_t n_fetched,
                       AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  const size_t v_dim = static_cast<size_t>(args.v_dim);
  std::fill_n(args.o + tile.first * v_dim, tile.n * v_dim, 0.0f);
  Fetch fetch;
  if constexpr (kType != KvType::kQ8_0) {
    if (tile.n <= kFewQueries && v_list.all_same)
      return FewValues<kType>(tile, v_list, n_fetched, fetch);
  }
  if (v_list.n != 0) ManyValues<kType>(tile, v_list, fetch, scratch);
}

// Calls function(tile, k_list, v_list) for tiles of up to kQueryTile queries.
template <class Function>
HWY_INLINE void ForTiles(const AttendArgs& args, AttendScratch& scratch, const Function& function) {
  const size_t n_queries = static_cast<size_t>(args.n_queries);
  const size_t most = std::min(n_queries, kQueryTile);
  float* weights = scratch.Weights(most * static_cast<size_t>(args.n_blocks) * kBlockRows);
  for (size_t first = 0; first < n_queries; first += kQueryTile) {
    const Tile tile{args, first, std::min(kQueryTile, n_queries - first), weights};
    BlockList k_list, v_list;
    ListBlocks(
        args, 0, tile.n, [&](size_t i) { return tile.Mask(i); }, k_list);
    if (args.v_masks != nullptr) {
      ListBlocks(
          args, 0, tile.n, [&](size_t i) { return tile.VMask(i); }, v_list);
    } else {
      v_list = k_list;
    }
    function(tile, k_list, v_list);
  }
}

void AttendChunk(const AttendArgs& args) {
  AttendScratch& scratch = ThreadScratch();
  ForTiles(args, scratch,
           [&](const Tile& tile, const BlockList& k_list, const BlockList& v_list) HWY_ATTR {
             if (args.rows != nullptr) return AttendRows(tile, k_list, v_list, scratch);
             WithType(args.k_type,
                      [&]<KvType kType>() HWY_ATTR { Dots<kType>(tile, k_list, v_list, scratch); });
             Fetch fetch;
             const size_t n_fetched = FetchInSoftmax(tile, v_list, fetch);
             FinishTile(tile, k_list, fetch);
             WithType(args.v_type, [&]<KvType kType>() HWY_ATTR {
               Values<kType>(tile, v_list, n_fetched, scratch);
             });
           });
}

void RowLogits(const AttendArgs& args, float* out) {
  AttendScratch& scratch = ThreadScratch();
  const size_t n_rows = static_cast<size_t>(args.n_blocks) * kBlockRows;
  ForTiles(
      args, scratch, [&](const Tile& tile, const BlockList& k_list, const BlockList&) HWY_ATTR {
        if (args.rows != nullptr) {
          DotRows(tile, k_list, scratch);
        } else {
          WithType(args.k_type, [&]<KvType kType>()
                                    HWY_ATTR { Dots<kType>(tile, k_list, BlockList(), scratch); });
        }
        std::fill_n(out + tile.first * n_rows, tile.n * n_rows,
                    -std::numeric_limits<float>::infinity());
        for (size_t i = 0; i < tile.n; ++i) {
          FinishLogits(tile, i, k_list);
          float* to = out + (tile.first + i) * n_rows;
          for (size_t idx = 0; idx < k_list.n; ++idx) {
            const size_t b = k_list.block[idx];
            std::copy_n(tile.At(b, i), kBlockRows, to + b * kBlockRows);
          }
        }
      });
}

void MergeState(const AttendState& into, const AttendState& from, int v_dim) {
  const DF d;
  const float max = *from.max > *into.max ? *from.max : *into.max;
  // One of the two is exp(0) = 1, unless a maximum is NaN.
  const float scale_into = *into.max == max ? 1.0f : ExpNonPositive(*into.max - max);
  const float scale_from = *from.max == max ? 1.0f : ExpNonPositive(*from.max - max);
  const VF a = hn::Set(d, scale_into), b = hn::Set(d, scale_from);
  for (size_t c = 0; c < static_cast<size_t>(v_dim); c += kLanes) {
    const VF scaled = hn::Mul(hn::LoadU(d, into.o + c), a);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from.o + c), b, scaled), d, into.o + c);
  }
  *into.sum = *into.sum * scale_into + *from.sum * scale_from;
  if (into.sum_v != nullptr && from.sum_v != nullptr) {
    *into.sum_v = *into.sum_v * scale_into + *from.sum_v * scale_from;
  }
  *into.max = max;
}

bool MaskBits(const uint16_t* mask, int n, uint16_t* bits) {
  const hn::CappedTag<uint16_t, 16> d;
  constexpr size_t kWordLanes = hn::MaxLanes(hn::CappedTag<uint16_t, 16>());
  const auto magnitude_bits = hn::Set(d, uint16_t{0x7FFF});
  const auto infinity = hn::Set(d, uint16_t{0x7C00});
  auto biased = hn::Zero(d);
  const int n_whole = n / kBlockRows;
  for (int b = 0; b < BlocksFor(n); ++b) {
    HWY_ALIGN uint16_t padded[16];
    const uint16_t* from = mask + b * kBlockRows;
    if (b == n_whole) {
      std::fill_n(padded, 16, kF16MinusInf);
      std::copy_n(from, n % kBlockRows, padded);
      from = padded;
    }
    uint8_t bytes[8] = {};
    for (size_t at = 0; at < kBlockRows; at += kWordLanes) {
      const auto value = hn::LoadU(d, from + at);
      const auto magnitude = hn::And(value, magnitude_bits);
      // Above -inf: neither -inf itself nor NaN.
      const auto visible =
          hn::AndNot(hn::VecFromMask(d, hn::Eq(value, hn::Set(d, kF16MinusInf))),
                     hn::VecFromMask(d, hn::Eq(hn::Min(magnitude, infinity), magnitude)));
      biased = hn::Or(biased, hn::And(visible, magnitude));
      hn::StoreMaskBits(d, hn::MaskFromVec(visible), bytes + at / 8);
    }
    bits[b] = static_cast<uint16_t>(bytes[0] | (bytes[1] << 8));
  }
  return !hn::AllTrue(d, hn::Eq(biased, hn::Zero(d)));
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(AttendChunk);
HWY_EXPORT(RowLogits);
HWY_EXPORT(MergeState);
HWY_EXPORT(MaskBits);

bool IsEmpty(const AttendState& state) {
  return *state.sum == 0 && *state.max == -std::numeric_limits<float>::infinity();
}

void CheckArgs(const AttendArgs& args) {
  const auto fits = [](int dim, KvType type) {
    return dim > 0 && dim <= static_cast<int>(kMaxHeadDim) &&
           dim % (type == KvType::kQ8_0 ? 32 : 16) == 0;
  };
  CONDENSE_CHECK(fits(args.k_dim, args.k_type));
  CONDENSE_CHECK(args.n_blocks >= 1 && args.n_blocks <= kChunkBlocks);
  CONDENSE_CHECK(args.blocks == nullptr || args.rows == nullptr);
}

}  // namespace

void AttendChunk(const AttendArgs& args) {
  CheckArgs(args);
  CONDENSE_CHECK(args.v_dim > 0 && args.v_dim <= static_cast<int>(kMaxHeadDim) &&
                 args.v_dim % (args.v_type == KvType::kQ8_0 ? 32 : 16) == 0);
  HWY_DYNAMIC_DISPATCH(AttendChunk)(args);
}

void RowLogits(const AttendArgs& args, float* out) {
  CheckArgs(args);
  HWY_DYNAMIC_DISPATCH(RowLogits)(args, out);
}

void MergeState(const AttendState& into, const AttendState& from, int v_dim) {
  if (IsEmpty(from)) return;
  if (IsEmpty(into)) {
    std::copy_n(from.o, v_dim, into.o);
    *into.max = *from.max;
    *into.sum = *from.sum;
    if (into.sum_v != nullptr && from.sum_v != nullptr) *into.sum_v = *from.sum_v;
    return;
  }
  HWY_DYNAMIC_DISPATCH(MergeState)(into, from, v_dim);
}

bool MaskBits(const uint16_t* mask, int n, uint16_t* bits) {
  return HWY_DYNAMIC_DISPATCH(MaskBits)(mask, n, bits);
}

}  // namespace condense
#endif  // HWY_ONCE
