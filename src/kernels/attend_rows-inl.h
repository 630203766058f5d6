// Attention over a list of single rows, which lie anywhere in the cache. The arithmetic is that of
// blocks: only where a lane's row comes from differs. What rules here is memory: neither lines nor
// pages follow each other, so the hardware fetches nothing ahead, and a core has 16 lines under way
// at most. So rows are fetched one by one in the order of their use, a fixed number ahead, from
// keys through values into the next call's keys.
#if defined(CONDENSE_KERNELS_ATTEND_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_ATTEND_ROWS_INL_H_
#undef CONDENSE_KERNELS_ATTEND_ROWS_INL_H_
#else
#define CONDENSE_KERNELS_ATTEND_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "kernels/attend.h"
#include "kernels/attend_dot-inl.h"
#include "kernels/attend_scratch.h"
#include "kernels/attend_tile-inl.h"
#include "kernels/attend_value-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Bytes of rows that are kept under way, and the most rows that these may be. 4 to 16 KiB measure
// alike.
inline constexpr size_t kStreamBytes = 8192, kMostRowsAhead = 64;
HWY_INLINE size_t RowsAhead(const AttendArgs& args) {
  const size_t bytes = KvBytes(args.k_type, static_cast<size_t>(args.k_dim));
  return std::clamp<size_t>(kStreamBytes / bytes, kBlockRows, kMostRowsAhead);
}

// Where a tile's rows lie, in the order of their use.
struct RowPlan {
  // [n_keys] 16 lanes of each listed block, then [n_values], then [n_next].
  const std::byte* rows[2 * kChunkRows + kMostRowsAhead];
  const float* weights[kChunkRows];  // [n_values]: the first query's; query i's is 16 i further on
  size_t n_keys = 0, n_values = 0, n_next = 0;

  // Lanes that nobody reads repeat one that somebody reads.
  HWY_INLINE void AddKeys(const AttendArgs& args, const BlockList& list) {
    for (size_t idx = 0; idx < list.n; ++idx) {
      const int32_t* row = args.rows + list.block[idx] * size_t{kBlockRows};
      const uint32_t bits = list.bits[idx];
      const std::byte** to = rows + n_keys;
      n_keys += kBlockRows;
      if (bits == 0xFFFF) {
        for (size_t lane = 0; lane < kBlockRows; ++lane) to[lane] = At(args, row[lane]);
        continue;
      }
      const int32_t stand_in = row[std::countr_zero(bits)];
      for (size_t lane = 0; lane < kBlockRows; ++lane)
        to[lane] = At(args, (bits >> lane) & 1 ? row[lane] : stand_in);
    }
  }
  // The rows of V that query `first` and those after it read, in the order of summation.
  template <class BitsOf>
  HWY_INLINE void SetValues(const Tile& tile, const BlockList& list, size_t first,
                            const BitsOf& bits_of) {
    const AttendArgs& args = tile.args;
    const std::byte** to = rows + n_keys;
    n_values = 0;
    for (size_t idx = 0; idx < list.n; ++idx) {
      const size_t at = args.reverse ? list.n - 1 - idx : idx;
      const size_t b = list.block[at];
      const int32_t* row = args.rows + b * kBlockRows;
      const float* weight = tile.At(b, first);
      ForRows(bits_of(at), args.reverse, [&](size_t lane) HWY_ATTR {
        to[n_values] = args.v + static_cast<size_t>(row[lane]) * args.v_stride;
        weights[n_values++] = weight + lane;
      });
    }
  }
  HWY_INLINE void AddNext(const AttendArgs& args) {
    if (args.next_rows == nullptr) return;
    n_next = std::min(RowsAhead(args), static_cast<size_t>(args.n_next_rows));
    for (size_t i = 0; i < n_next; ++i) {
      rows[n_keys + n_values + i] =
          args.next_k + static_cast<size_t>(args.next_rows[i]) * args.k_stride;
    }
  }
  HWY_INLINE RowStream Stream(const AttendArgs& args) const {
    return RowStream(rows, n_keys, n_values, n_next,
                     KvBytes(args.k_type, static_cast<size_t>(args.k_dim)),
                     KvBytes(args.v_type, static_cast<size_t>(args.v_dim)));
  }

 private:
  static HWY_INLINE const std::byte* At(const AttendArgs& args, int32_t row) {
    return args.k + static_cast<size_t>(row) * args.k_stride;
  }
};

// Functions a type below are not inlined: called once a list, and compilers, sanitizers' above all,
// take very long over what would become one function.

// scale * q.k of every listed block, for all queries of the tile.
template <KvType kType>
HWY_NOINLINE void DotRows(const Tile& tile, const BlockList& list, const RowPlan& plan,
                          RowStream& stream, AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  const size_t dim = static_cast<size_t>(args.k_dim);
  const Queries queries =
      QueriesOf<kType>(args.q + tile.first * dim, tile.n, dim, args.scale, scratch);
  stream.Allow(RowsAhead(args));
  stream.AllowedRows();
  size_t idx = 0;
  // kB blocks at once, as among neighbours. As many rows as are used are fetched, some of them
  // during the transposition and some during the products.
  const auto dots = [&]<size_t kN, size_t kB>() HWY_ATTR {
    constexpr size_t kInDots = std::min<size_t>(8 * kB, kBlockRows);
    for (; idx + kB <= list.n; idx += kB) {
      float* out[kB];
      const Ahead no_ahead[kB] = {};
      for (size_t pack = 0; pack < kB; ++pack) {
        stream.Allow(kBlockRows - kInDots / kB);
        TransposeBlock<kType>(ListedRows{plan.rows + (idx + pack) * kBlockRows}, dim, pack, stream,
                              scratch);
        out[pack] = tile.At(list.block[idx + pack], 0);
      }
      stream.Allow(kInDots);
      if constexpr (kN != 0) {
        DotTiles<kType, kN, kB, false>(queries, 0, out, scratch, no_ahead, stream);
      } else {
        ForBatches<kFewBatch>(tile.n, [&]<size_t kM>(size_t first) HWY_ATTR {
          float* const to[1] = {out[0] + first * kBlockRows};
          DotTiles<kType, kM, 1, false>(queries, first, to, scratch, no_ahead, stream);
        });
      }
      stream.AllowedRows();
    }
  };
  switch (tile.n) {
    case 1:
      dots.template operator()<1, 4>();
      return dots.template operator()<1, 1>();
    case 2:
      dots.template operator()<2, 2>();
      return dots.template operator()<2, 1>();
    case 3:
      dots.template operator()<3, 2>();
      return dots.template operator()<3, 1>();
    default:
      return dots.template operator()<0, 1>();
  }
}

// o[i][c …] += weights times rows for kN queries and kC vectors of channels.
template <KvType kType, size_t kN, size_t kC>
HWY_INLINE void AddRows(const std::byte* const* rows, const float* const* weights, size_t n_rows,
                        size_t first, size_t c, size_t v_dim, float* HWY_RESTRICT o,
                        RowStream& stream) {
  const DF d;
  VF sums[kN][kC];
  float* HWY_RESTRICT to = o + first * v_dim + c;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) sums[i][j] = hn::LoadU(d, to + i * v_dim + j * kLanes);
  }
  RowStream fetch = stream;  // in registers
  for (size_t row = 0; row < n_rows; ++row) {
    fetch.Row();
    AddRow<kType, kN, kC>(rows[row], c, weights[row] + first * kBlockRows, sums);
  }
  stream = fetch;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kC; ++j) hn::StoreU(sums[i][j], d, to + i * v_dim + j * kLanes);
  }
}

// o of the n queries from `begin` on, which read the plan's values.
template <KvType kType>
HWY_NOINLINE void AddRowsOfQueries(const Tile& tile, const RowPlan& plan, size_t begin, size_t n,
                                   RowStream& stream) {
  const size_t v_dim = static_cast<size_t>(tile.args.v_dim);
  float* o = tile.args.o + (tile.first + begin) * v_dim;
  const std::byte* const* rows = plan.rows + plan.n_keys;
  ForBatches<kFewBatch>(n, [&]<size_t kN>(size_t first) HWY_ATTR {
    constexpr size_t kC = kChannelVectors<kN>;
    size_t c = 0;
    for (; c + kC * kLanes <= v_dim; c += kC * kLanes)
      AddRows<kType, kN, kC>(rows, plan.weights, plan.n_values, first, c, v_dim, o, stream);
    for (; c < v_dim; c += kLanes)
      AddRows<kType, kN, 1>(rows, plan.weights, plan.n_values, first, c, v_dim, o, stream);
  });
}

// o of all queries, straight from the cache; runs of queries that read the same rows together.
template <KvType kType>
HWY_NOINLINE void AddValues(const Tile& tile, const BlockList& list, RowPlan& plan,
                            RowStream& stream) {
  const size_t v_dim = static_cast<size_t>(tile.args.v_dim);
  std::fill_n(tile.args.o + tile.first * v_dim, tile.n * v_dim, 0.0f);
  stream.Allow(plan.n_values);
  if (list.all_same) return AddRowsOfQueries<kType>(tile, plan, 0, tile.n, stream);
  stream.AllowedRows();
  const size_t n_blocks = static_cast<size_t>(tile.args.n_blocks);
  for (size_t begin = 0, end; begin < tile.n; begin = end) {
    const uint16_t* mask = tile.VMask(begin);
    for (end = begin + 1; end < tile.n; ++end) {
      const uint16_t* other = tile.VMask(end);
      if (other != mask && !std::equal(mask, mask + n_blocks, other)) break;
    }
    plan.SetValues(tile, list, begin, [&](size_t at) { return mask[list.block[at]]; });
    AddRowsOfQueries<kType>(tile, plan, begin, end - begin, stream);
  }
}

// Logits that the caller has. The first values are fetched meanwhile.
HWY_INLINE void TakeLogits(const Tile& tile, const BlockList& list, RowStream& stream) {
  const AttendArgs& args = tile.args;
  stream.Allow(RowsAhead(args));
  stream.AllowedRows();
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t b = list.block[idx];
    for (size_t i = 0; i < tile.n; ++i) {
      const float* from = args.logits + (tile.first + i) * args.logits_stride + b * kBlockRows;
      std::copy_n(from, kBlockRows, tile.At(b, i));
    }
  }
}

// Apart from the calls for blocks, whose code it would otherwise change.
HWY_NOINLINE void AttendRows(const Tile& tile, const BlockList& k_list, const BlockList& v_list,
                             AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  RowPlan plan;
  if (args.logits == nullptr) plan.AddKeys(args, k_list);
  plan.SetValues(tile, v_list, 0, [&](size_t at) { return v_list.bits[at]; });
  plan.AddNext(args);
  RowStream stream = plan.Stream(args);
  if (args.logits != nullptr) {
    TakeLogits(tile, k_list, stream);
  } else {
    WithType(args.k_type,
             [&]<KvType kType>() HWY_ATTR { DotRows<kType>(tile, k_list, plan, stream, scratch); });
  }
  stream.Allow(k_list.n);
  FinishTile(tile, k_list, stream);
  WithType(args.v_type,
           [&]<KvType kType>() HWY_ATTR { AddValues<kType>(tile, v_list, plan, stream); });
}

HWY_NOINLINE void DotRows(const Tile& tile, const BlockList& list, AttendScratch& scratch) {
  RowPlan plan;
  plan.AddKeys(tile.args, list);
  RowStream stream = plan.Stream(tile.args);
  WithType(tile.args.k_type,
           [&]<KvType kType>() HWY_ATTR { DotRows<kType>(tile, list, plan, stream, scratch); });
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
