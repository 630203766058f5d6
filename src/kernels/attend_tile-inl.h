// A tile of queries on its way through a chunk: which blocks it reads, its logits, and the softmax
// over them.
#if defined(CONDENSE_KERNELS_ATTEND_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CONDENSE_KERNELS_ATTEND_TILE_INL_H_
#undef CONDENSE_KERNELS_ATTEND_TILE_INL_H_
#else
#define CONDENSE_KERNELS_ATTEND_TILE_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/attend.h"
#include "kernels/attend_scratch.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Queries [first, first + n) of a call.
struct Tile {
  const AttendArgs& args;
  size_t first, n;
  float* weights;  // [n_blocks][n][16]: logits, then exp(logit - max)

  const uint16_t* Mask(size_t i) const { return args.masks[first + i]; }
  const uint16_t* VMask(size_t i) const {
    return (args.v_masks != nullptr ? args.v_masks : args.masks)[first + i];
  }
  float* At(size_t block, size_t i) const { return weights + (block * n + i) * kBlockRows; }
};

// The blocks that some query reads, and which rows of them.
struct BlockList {
  uint8_t block[kChunkBlocks];
  uint16_t bits[kChunkBlocks];
  bool same[kChunkBlocks];  // every query reads these rows
  size_t n = 0;
  bool all_same = true;
  bool whole = true;  // every query reads all 16 rows of every listed block
};

// Of queries [begin, end).
template <class MaskOf>
HWY_INLINE void ListBlocks(const AttendArgs& args, size_t begin, size_t end, const MaskOf& mask_of,
                           BlockList& list) {
  list.n = 0;
  list.all_same = list.whole = true;
  for (size_t b = 0; b < static_cast<size_t>(args.n_blocks); ++b) {
    uint32_t any = 0, all = 0xFFFF;
    const uint16_t* last = nullptr;
    for (size_t i = begin; i < end; ++i) {
      const uint16_t* mask = mask_of(i);
      if (mask == last) continue;
      any |= mask[b];
      all &= mask[b];
      last = mask;
    }
    if (any == 0) continue;
    list.block[list.n] = static_cast<uint8_t>(b);
    list.bits[list.n] = static_cast<uint16_t>(any);
    list.same[list.n++] = all == any;
    list.all_same &= all == any;
    list.whole &= all == 0xFFFF;
  }
}

// First row of the chunk's b-th block.
HWY_INLINE size_t RowOf(const AttendArgs& args, size_t b) {
  return (args.blocks != nullptr ? static_cast<size_t>(args.blocks[b]) : b) * kBlockRows;
}
HWY_INLINE const std::byte* KeyBlock(const AttendArgs& args, size_t b) {
  return args.k + RowOf(args, b) * args.k_stride;
}
HWY_INLINE const std::byte* ValueRows(const AttendArgs& args, size_t b) {
  return args.v + RowOf(args, b) * args.v_stride;
}

// Scaled products become logits: softcap, bias, and -inf where the query's mask bit is 0.
HWY_INLINE void FinishLogits(const Tile& tile, size_t i, const BlockList& list) {
  const AttendArgs& args = tile.args;
  const DF d;
  const VF minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  const uint16_t* mask = tile.Mask(i);
  const uint16_t* bias = args.bias != nullptr ? args.bias[tile.first + i] : nullptr;
  const bool plain = bias == nullptr && !(args.softcap > 0);
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t b = list.block[idx];
    if (plain && mask[b] == 0xFFFF) continue;
    const uint16_t* added = bias != nullptr ? bias + b * kBlockRows : nullptr;
    HWY_ALIGN uint16_t padded[16];
    if (bias != nullptr && mask[b] != 0xFFFF) {  // the mask's row may end within the block
      std::fill_n(padded, 16, 0);
      for (uint32_t rest = mask[b]; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        padded[lane] = added[lane];
      }
      added = padded;
    }
    float* row = tile.At(b, i);
    for (size_t g = 0; g < kRowVectors; ++g) {
      VF logit = hn::Load(d, row + g * kLanes);
      if (args.softcap > 0) {
        const VF cap = hn::Set(d, args.softcap);
        logit = hn::Mul(TanhOrNan(hn::Div(logit, cap)), cap);
      }
      if (bias != nullptr) logit = hn::Add(logit, LoadF16(d, added + g * kLanes));
      if (mask[b] != 0xFFFF) logit = hn::IfThenElse(RowMaskLanes(mask[b], g), logit, minus_inf);
      hn::Store(logit, d, row + g * kLanes);
    }
  }
}

// Turns kN queries' logits into weights exp(logit - max) and sums them. NaN is never the maximum.
// Values are fetched meanwhile.
template <size_t kN, class F>
HWY_INLINE void Softmax(const Tile& tile, size_t i0, const BlockList& list, F& later) {
  const AttendArgs& args = tile.args;
  const DF d;
  VF max[kN][kRowVectors];
  for (size_t i = 0; i < kN; ++i) {
    for (size_t g = 0; g < kRowVectors; ++g)
      max[i][g] = hn::Set(d, -std::numeric_limits<float>::infinity());
  }
  for (size_t idx = 0; idx < list.n; ++idx) {
    const float* rows = tile.At(list.block[idx], i0);
    for (size_t i = 0; i < kN; ++i) {
      for (size_t g = 0; g < kRowVectors; ++g)
        max[i][g] = MaxNumber(hn::Load(d, rows + i * kBlockRows + g * kLanes), max[i][g]);
    }
  }
  VF shift[kN], sum[kN][kRowVectors];
  for (size_t i = 0; i < kN; ++i) {
    VF most = max[i][0];
    for (size_t g = 1; g < kRowVectors; ++g) most = MaxNumber(max[i][g], most);
    // -0 becomes 0: the bits do not depend on which of the two came first.
    const float largest = LargestLane(most) + 0.0f;
    args.max[tile.first + i0 + i] = largest;
    // Without a row every logit is -inf and every weight 0, whatever is subtracted.
    const bool none = largest == -std::numeric_limits<float>::infinity();
    shift[i] = hn::Set(d, none ? 0.0f : largest);
    for (size_t g = 0; g < kRowVectors; ++g) sum[i][g] = hn::Zero(d);
  }
  F fetch = later;  // in registers
  for (size_t idx = 0; idx < list.n; ++idx) {
    fetch.Row();
    float* rows = tile.At(list.block[idx], i0);
    for (size_t i = 0; i < kN; ++i) {
      for (size_t g = 0; g < kRowVectors; ++g) {
        float* at = rows + i * kBlockRows + g * kLanes;
        const VF weight = ExpNonPositive(hn::Sub(hn::Load(d, at), shift[i]));
        hn::Store(weight, d, at);
        sum[i][g] = hn::Add(sum[i][g], weight);
      }
    }
  }
  later = fetch;
  for (size_t i = 0; i < kN; ++i) args.sum[tile.first + i0 + i] = SumOfLanes(sum[i]);
}

// Weights of the rows whose value is read, where these are fewer than the rows with mass.
HWY_INLINE float SumOfValueRows(const Tile& tile, size_t i, const BlockList& list) {
  const DF d;
  const uint16_t* v_mask = tile.VMask(i);
  VF sum[kRowVectors];
  for (size_t g = 0; g < kRowVectors; ++g) sum[g] = hn::Zero(d);
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t b = list.block[idx];
    for (size_t g = 0; g < kRowVectors; ++g) {
      const VF weight = hn::Load(d, tile.At(b, i) + g * kLanes);
      sum[g] = hn::Add(sum[g], hn::IfThenElseZero(RowMaskLanes(v_mask[b], g), weight));
    }
  }
  return SumOfLanes(sum);
}

// Logits of queries [begin, end), where scaled products are not logits yet.
HWY_INLINE void FinishLogitsOf(const Tile& tile, size_t begin, size_t end, const BlockList& list) {
  if (tile.args.logits != nullptr) return;
  if (list.whole && tile.args.bias == nullptr && !(tile.args.softcap > 0)) return;
  for (size_t i = begin; i < end; ++i) FinishLogits(tile, i, list);
}

HWY_INLINE void SetValueSum(const Tile& tile, size_t i, const BlockList& list) {
  const AttendArgs& args = tile.args;
  if (args.sum_v == nullptr) return;
  const size_t query = tile.first + i;
  args.sum_v[query] =
      tile.VMask(i) == tile.Mask(i) ? args.sum[query] : SumOfValueRows(tile, i, list);
}

// With few queries that read different blocks, each query passes over its own.
template <class F>
HWY_INLINE void FinishOneByOne(const Tile& tile, F& fetch) {
  for (size_t i = 0; i < tile.n; ++i) {
    BlockList own;
    ListBlocks(
        tile.args, i, i + 1, [&](size_t query) { return tile.Mask(query); }, own);
    FinishLogitsOf(tile, i, i + 1, own);
    Softmax<1>(tile, i, own, fetch);
    SetValueSum(tile, i, own);
  }
}

template <class F>
HWY_INLINE void FinishTile(const Tile& tile, const BlockList& list, F& fetch) {
  if (!list.all_same && tile.n <= kFewQueries) return FinishOneByOne(tile, fetch);
  FinishLogitsOf(tile, 0, tile.n, list);
  size_t i = 0;
  for (; i + 4 <= tile.n; i += 4) Softmax<4>(tile, i, list, fetch);
  switch (tile.n - i) {
    case 3:
      Softmax<3>(tile, i, list, fetch);
      break;
    case 2:
      Softmax<2>(tile, i, list, fetch);
      break;
    case 1:
      Softmax<1>(tile, i, list, fetch);
      break;
    default:
      break;
  }
  for (i = 0; i < tile.n; ++i) SetValueSum(tile, i, list);
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#endif
