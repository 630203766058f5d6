// Block statistics and block scores. A score is a sum over the channels in ascending order, even
// and odd channels in two chains that are added last, 16 blocks in lanes: the same bits on every
// target with fused multiply-add.
#include "kernels/summary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/summary.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>

#include "base/result.h"
#include "kernels/half.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

template <KvType kType>
HWY_INLINE void Summarize(const std::byte* rows, size_t stride, size_t n, size_t dim,
                          const BlockStats& out) {
  const DF d;
  const VF share = hn::Set(d, static_cast<float>(n));
  for (size_t c = 0; c < dim; c += kLanes) {
    VF sum = Stored<kType>::Load(rows, c);
    VF min = sum, max = sum;
    for (size_t row = 1; row < n; ++row) {
      const VF value = Stored<kType>::Load(rows + row * stride, c);
      sum = hn::Add(sum, value);
      min = hn::Min(min, value);
      max = hn::Max(max, value);
    }
    const VF mean = hn::Div(sum, share);
    if (out.mean != nullptr) hn::StoreU(mean, d, out.mean + c);
    if (out.min != nullptr) hn::StoreU(min, d, out.min + c);
    if (out.max != nullptr) hn::StoreU(max, d, out.max + c);
    if (out.var == nullptr) continue;
    VF squares = hn::Zero(d);
    for (size_t row = 0; row < n; ++row) {
      const VF off = hn::Sub(Stored<kType>::Load(rows + row * stride, c), mean);
      squares = hn::MulAdd(off, off, squares);
    }
    hn::StoreU(hn::Div(squares, share), d, out.var + c);
  }
}

void SummarizeRows(const std::byte* rows, size_t stride, KvType type, int n, int dim,
                   const BlockStats& out) {
  WithType(type, [&]<KvType kType>() HWY_ATTR {
    Summarize<kType>(rows, stride, static_cast<size_t>(n), static_cast<size_t>(dim), out);
  });
}

// Scores of kTiles tiles; the next kTiles are fetched meanwhile: summaries come from the last-level
// cache or from memory, and this reads nothing twice. Channel c is read from high where q[c] >= 0
// and from low elsewhere.
template <size_t kTiles>
HWY_INLINE void ScoreTiles(const uint16_t* low, const uint16_t* high, size_t dim, const float* q,
                           float scale, float* scores) {
  const DF d;
  for (size_t g = 0; g < kRowVectors; ++g) {
    VF even[kTiles], odd[kTiles];
    for (size_t t = 0; t < kTiles; ++t) even[t] = odd[t] = hn::Zero(d);
    for (size_t c = 0; c + 1 < dim; c += 2) {
      const uint16_t* from0 = (q[c] < 0 ? low : high) + c * kTileBlocks + g * kLanes;
      const uint16_t* from1 = (q[c + 1] < 0 ? low : high) + (c + 1) * kTileBlocks + g * kLanes;
      const VF q0 = hn::Set(d, q[c]);
      const VF q1 = hn::Set(d, q[c + 1]);
      for (size_t t = 0; t < kTiles; ++t) {
        hwy::Prefetch(from0 + (kTiles + t) * dim * kTileBlocks);
        even[t] = hn::MulAdd(LoadF16(d, from0 + t * dim * kTileBlocks), q0, even[t]);
        odd[t] = hn::MulAdd(LoadF16(d, from1 + t * dim * kTileBlocks), q1, odd[t]);
      }
    }
    if (dim % 2 != 0) {
      const uint16_t* from = (q[dim - 1] < 0 ? low : high) + (dim - 1) * kTileBlocks + g * kLanes;
      const VF last = hn::Set(d, q[dim - 1]);
      for (size_t t = 0; t < kTiles; ++t)
        even[t] = hn::MulAdd(LoadF16(d, from + t * dim * kTileBlocks), last, even[t]);
    }
    for (size_t t = 0; t < kTiles; ++t) {
      hn::StoreU(hn::Mul(hn::Add(even[t], odd[t]), hn::Set(d, scale)), d,
                 scores + t * kTileBlocks + g * kLanes);
    }
  }
}

// Four channels at a time; 16 sums a channel, block mod 16, added by the fixed tree.
void SumTiles(const uint16_t* tiles, size_t n_tiles, size_t dim, const float* weights, float* out) {
  constexpr size_t kChannels = 4;
  const DF d;
  for (size_t c = 0; c < dim; c += kChannels) {
    VF sums[kChannels][kRowVectors];
    for (auto& channel : sums) {
      for (VF& sum : channel) sum = hn::Zero(d);
    }
    for (size_t t = 0; t < n_tiles; ++t) {
      for (size_t g = 0; g < kRowVectors; ++g) {
        const VF weight = hn::LoadU(d, weights + t * kTileBlocks + g * kLanes);
        const MF counts = hn::Ne(weight, hn::Zero(d));
        const uint16_t* from = tiles + (t * dim + c) * kTileBlocks + g * kLanes;
        for (size_t i = 0; i < kChannels; ++i) {
          const VF value = LoadF16(d, from + i * kTileBlocks);
          sums[i][g] = hn::IfThenElse(counts, hn::MulAdd(value, weight, sums[i][g]), sums[i][g]);
        }
      }
    }
    for (size_t i = 0; i < kChannels; ++i) out[c + i] = SumOfLanes(sums[i]);
  }
}

// With low = high = the means, ScoreMean; with minima and maxima, Quest's bound: q[c] times the
// larger product's statistic is the maximum where q[c] >= 0 and the minimum elsewhere, so only one
// of the two is read.
void Score(const uint16_t* low, const uint16_t* high, int n_tiles, int dim, const float* q,
           float scale, float* scores) {
  const size_t step = static_cast<size_t>(dim) * kTileBlocks;
  int tile = 0;
  for (; tile + 4 <= n_tiles; tile += 4) {
    ScoreTiles<4>(low + tile * step, high + tile * step, static_cast<size_t>(dim), q, scale,
                  scores + tile * kTileBlocks);
  }
  for (; tile < n_tiles; ++tile) {
    ScoreTiles<1>(low + tile * step, high + tile * step, static_cast<size_t>(dim), q, scale,
                  scores + tile * kTileBlocks);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(SummarizeRows);
HWY_EXPORT(Score);
HWY_EXPORT(SumTiles);

}  // namespace

void SummarizeRows(const std::byte* rows, size_t stride, KvType type, int n, int dim,
                   const BlockStats& out) {
  CONDENSE_CHECK(n >= 1 && dim > 0 && dim % (type == KvType::kQ8_0 ? 32 : 16) == 0);
  HWY_DYNAMIC_DISPATCH(SummarizeRows)(rows, stride, type, n, dim, out);
}

void StoreInTile(const float* values, int dim, uint16_t* tile, int lane) {
  for (int c = 0; c < dim; ++c) tile[c * kTileBlocks + lane] = F16FromF32Saturated(values[c]);
}

void ScoreMean(const uint16_t* tiles, int n_tiles, int dim, const float* q, float scale,
               float* scores) {
  CONDENSE_CHECK(dim > 0);
  HWY_DYNAMIC_DISPATCH(Score)(tiles, tiles, n_tiles, dim, q, scale, scores);
}

void ScoreMinMax(const uint16_t* min_tiles, const uint16_t* max_tiles, int n_tiles, int dim,
                 const float* q, float scale, float* scores) {
  CONDENSE_CHECK(dim > 0);
  HWY_DYNAMIC_DISPATCH(Score)(min_tiles, max_tiles, n_tiles, dim, q, scale, scores);
}

void SumTiles(const uint16_t* tiles, int n_tiles, int dim, const float* weights, float* out) {
  CONDENSE_CHECK(dim > 0 && dim % 4 == 0);
  HWY_DYNAMIC_DISPATCH(SumTiles)
  (tiles, static_cast<size_t>(n_tiles), static_cast<size_t>(dim), weights, out);
}

}  // namespace condense
#endif  // HWY_ONCE
