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
#include "kernels/attend_scratch.h"
#include "kernels/attend_value-inl.h"
#include "kernels/half.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

// Blocks between the one in work and the one being fetched. 1 to 3 measure alike.
inline constexpr size_t kFetchAhead = 2;

// Queries [first, first + n) of a call.
struct Tile {
  const AttendArgs& args;
  size_t first, n;
  float* weights;  // [n][16 n_blocks]: logits, then exp(logit - max)
  size_t stride;   // 16 n_blocks

  const uint16_t* Mask(size_t i) const { return args.masks[first + i]; }
  const uint16_t* VMask(size_t i) const {
    return (args.v_masks != nullptr ? args.v_masks : args.masks)[first + i];
  }
  float* Row(size_t i) const { return weights + i * stride; }
};

// First row of the chunk's b-th block.
HWY_INLINE size_t RowOf(const AttendArgs& args, size_t b) {
  return (args.blocks != nullptr ? static_cast<size_t>(args.blocks[b]) : b) * kBlockRows;
}

// The blocks that some query of a tile reads, and which rows of them.
struct BlockList {
  uint8_t block[kChunkBlocks];
  uint16_t bits[kChunkBlocks];
  size_t n = 0;
};

template <class MaskOf>
HWY_INLINE void ListBlocks(const Tile& tile, const MaskOf& mask_of, BlockList& list) {
  for (int b = 0; b < tile.args.n_blocks; ++b) {
    uint32_t any = 0;
    for (size_t i = 0; i < tile.n; ++i) any |= mask_of(i)[b];
    list.block[list.n] = static_cast<uint8_t>(b);
    list.bits[list.n] = static_cast<uint16_t>(any);
    list.n += any != 0;
  }
}

// The idx-th block of K, past the end of K's list the next ones of V, past that nothing.
HWY_INLINE Fetch FetchOf(const AttendArgs& args, const BlockList& k_list, const BlockList& v_list,
                         size_t idx) {
  if (idx < k_list.n) {
    return {args.k + RowOf(args, k_list.block[idx]) * args.k_stride, args.k_stride,
            KvBytes(args.k_type, static_cast<size_t>(args.k_dim)), k_list.bits[idx]};
  }
  idx -= k_list.n;
  if (idx >= v_list.n) return {};
  const size_t at = args.reverse ? v_list.n - 1 - idx : idx;
  return {args.v + RowOf(args, v_list.block[at]) * args.v_stride, args.v_stride,
          KvBytes(args.v_type, static_cast<size_t>(args.v_dim)), v_list.bits[at]};
}

// q.k of every block for the queries that read it.
HWY_INLINE void Dots(const Tile& tile, const BlockList& k_list, const BlockList& v_list,
                     AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  for (size_t idx = 0; idx < kFetchAhead; ++idx) FetchOf(args, k_list, v_list, idx).Rest();
  for (size_t idx = 0; idx < k_list.n; ++idx) {
    Fetch fetch = FetchOf(args, k_list, v_list, idx + kFetchAhead);
    const size_t b = k_list.block[idx];
    const uint32_t any = k_list.bits[idx];
    // Rows that nobody reads are not touched: their lanes repeat a row that somebody reads.
    const std::byte* rows[16];
    const size_t stand_in = static_cast<size_t>(std::countr_zero(any));
    for (size_t row = 0; row < 16; ++row) {
      const size_t source = (any >> row) & 1 ? row : stand_in;
      rows[row] = args.k + (RowOf(args, b) + source) * args.k_stride;
    }
    const float* q[kQueryTile];
    float* out[kQueryTile];
    size_t n = 0;
    for (size_t i = 0; i < tile.n; ++i) {
      q[n] = args.q + (tile.first + i) * static_cast<size_t>(args.k_dim);
      out[n] = tile.Row(i) + b * kBlockRows;
      n += tile.Mask(i)[b] != 0;
    }
    DotBlock(args.k_type, rows, static_cast<size_t>(args.k_dim), q, n, out, fetch, scratch);
  }
}

// Turns dots into logits: scale, softcap, bias; -inf where the mask bit is 0 within a block that is
// read. Returns the largest, -inf when there is none. NaN is never the largest.
HWY_INLINE float FinishLogits(const Tile& tile, size_t i, const BlockList& list) {
  const AttendArgs& args = tile.args;
  const DF d;
  const VF minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  const VF scale = hn::Set(d, args.scale);
  const uint16_t* mask = tile.Mask(i);
  float* row = tile.Row(i);
  const uint16_t* bias = args.bias != nullptr ? args.bias[tile.first + i] : nullptr;
  VF max[kRowVectors];
  for (size_t g = 0; g < kRowVectors; ++g) max[g] = minus_inf;
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t b = list.block[idx];
    if (mask[b] == 0) continue;
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
    for (size_t g = 0; g < kRowVectors; ++g) {
      const size_t at = b * kBlockRows + g * kLanes;
      VF logit = hn::Mul(hn::Load(d, row + at), scale);
      if (args.softcap > 0) {
        const VF cap = hn::Set(d, args.softcap);
        logit = hn::Mul(TanhOrNan(hn::Div(logit, cap)), cap);
      }
      if (bias != nullptr) logit = hn::Add(logit, LoadF16(d, added + g * kLanes));
      if (mask[b] != 0xFFFF) logit = hn::IfThenElse(RowMaskLanes(mask[b], g), logit, minus_inf);
      hn::Store(logit, d, row + at);
      max[g] = hn::IfThenElse(hn::Gt(logit, max[g]), logit, max[g]);
    }
  }
  HWY_ALIGN float lanes[16];
  for (size_t g = 0; g < kRowVectors; ++g) hn::Store(max[g], d, lanes + g * kLanes);
  float largest = lanes[0];
  for (size_t lane = 1; lane < 16; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  return largest + 0.0f;  // -0 becomes 0: the bits do not depend on which of the two came first
}

// Turns logits into weights exp(logit - max) and sums them, all and those whose value is read.
HWY_INLINE void Softmax(const Tile& tile, size_t i, const BlockList& list, float max) {
  const AttendArgs& args = tile.args;
  const DF d;
  const VF shift = hn::Set(d, max);
  const uint16_t* mask = tile.Mask(i);
  const uint16_t* v_mask = tile.VMask(i);
  float* row = tile.Row(i);
  const bool apart = args.sum_v != nullptr && v_mask != mask;
  VF sum[kRowVectors], sum_v[kRowVectors];
  for (size_t g = 0; g < kRowVectors; ++g) sum[g] = sum_v[g] = hn::Zero(d);
  for (size_t idx = 0; idx < list.n; ++idx) {
    const size_t b = list.block[idx];
    if (mask[b] == 0) continue;
    for (size_t g = 0; g < kRowVectors; ++g) {
      const size_t at = b * kBlockRows + g * kLanes;
      const VF weight = ExpNonPositive(hn::Sub(hn::Load(d, row + at), shift));
      hn::Store(weight, d, row + at);
      sum[g] = hn::Add(sum[g], weight);
      if (apart)
        sum_v[g] = hn::Add(sum_v[g], hn::IfThenElseZero(RowMaskLanes(v_mask[b], g), weight));
    }
  }
  const size_t query = tile.first + i;
  args.max[query] = max;
  args.sum[query] = SumOfLanes(sum);
  if (args.sum_v != nullptr) args.sum_v[query] = apart ? SumOfLanes(sum_v) : args.sum[query];
}

HWY_INLINE void Values(const Tile& tile, const BlockList& v_list, AttendScratch& scratch) {
  const AttendArgs& args = tile.args;
  const size_t v_dim = static_cast<size_t>(args.v_dim);
  std::fill_n(args.o + tile.first * v_dim, tile.n * v_dim, 0.0f);
  const BlockList no_keys{};
  for (size_t idx = 0; idx < v_list.n; ++idx) {
    Fetch fetch = FetchOf(args, no_keys, v_list, idx + kFetchAhead);
    const size_t b = v_list.block[args.reverse ? v_list.n - 1 - idx : idx];
    const float* weights[kQueryTile];
    float* o[kQueryTile];
    uint16_t bits[kQueryTile];
    size_t n = 0;
    for (size_t i = 0; i < tile.n; ++i) {
      weights[n] = tile.Row(i) + b * kBlockRows;
      o[n] = args.o + (tile.first + i) * v_dim;
      bits[n] = tile.VMask(i)[b];
      n += bits[n] != 0;
    }
    AddBlock(args.v_type, args.v + RowOf(args, b) * args.v_stride, args.v_stride, v_dim,
             args.reverse, n, bits, weights, o, fetch, scratch);
  }
}

void AttendChunk(const AttendArgs& args) {
  AttendScratch& scratch = ThreadScratch();
  const size_t n_queries = static_cast<size_t>(args.n_queries);
  const size_t stride = static_cast<size_t>(args.n_blocks) * kBlockRows;
  float* weights = scratch.Weights(std::min(n_queries, kQueryTile) * stride);
  for (size_t first = 0; first < n_queries; first += kQueryTile) {
    const Tile tile{args, first, std::min(kQueryTile, n_queries - first), weights, stride};
    BlockList k_list, v_list;
    ListBlocks(
        tile, [&](size_t i) { return tile.Mask(i); }, k_list);
    if (args.v_masks != nullptr) {
      ListBlocks(
          tile, [&](size_t i) { return tile.VMask(i); }, v_list);
    } else {
      v_list = k_list;
    }
    Dots(tile, k_list, v_list, scratch);
    for (size_t i = 0; i < tile.n; ++i) Softmax(tile, i, k_list, FinishLogits(tile, i, k_list));
    Values(tile, v_list, scratch);
  }
}

void RowLogits(const AttendArgs& args, float* out) {
  AttendScratch& scratch = ThreadScratch();
  const size_t n_queries = static_cast<size_t>(args.n_queries);
  const size_t stride = static_cast<size_t>(args.n_blocks) * kBlockRows;
  float* weights = scratch.Weights(std::min(n_queries, kQueryTile) * stride);
  for (size_t first = 0; first < n_queries; first += kQueryTile) {
    const Tile tile{args, first, std::min(kQueryTile, n_queries - first), weights, stride};
    BlockList k_list;
    const BlockList no_values{};
    ListBlocks(
        tile, [&](size_t i) { return tile.Mask(i); }, k_list);
    Dots(tile, k_list, no_values, scratch);
    for (size_t i = 0; i < tile.n; ++i) {
      FinishLogits(tile, i, k_list);
      float* to = out + (first + i) * stride;
      std::fill_n(to, stride, -std::numeric_limits<float>::infinity());
      for (size_t idx = 0; idx < k_list.n; ++idx) {
        const size_t at = k_list.block[idx] * kBlockRows;
        if (tile.Mask(i)[k_list.block[idx]] != 0)
          std::copy_n(tile.Row(i) + at, kBlockRows, to + at);
      }
    }
  }
}

void MergeState(const AttendState& into, const AttendState& from, int v_dim) {
  const DF d;
  const float max = *from.max > *into.max ? *from.max : *into.max;
  const float scale_into = ExpNonPositive(*into.max - max);
  const float scale_from = ExpNonPositive(*from.max - max);
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
