// Block summaries: from stored rows to per-block statistics, and from statistics to block scores.
// Summaries are kept in f16 in tiles of 16 blocks, channel by channel: [tile][channel][16 blocks],
// so that scoring needs no transposition and no horizontal sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_type.h"

namespace condense {

inline constexpr int kTileBlocks = 16;

// Statistics per channel over `n` consecutive rows (n >= 1) of one KV head; each output may be
// null. mean, min, max, var: [dim] FP32; var is the population variance.
struct BlockStats {
  float* mean = nullptr;
  float* min = nullptr;
  float* max = nullptr;
  float* var = nullptr;
};
void SummarizeRows(const std::byte* rows, size_t stride, KvType type, int n, int dim,
                   const BlockStats& out);

// Writes one block's column of values [dim] into its tile: tile[c * 16 + lane] = f16(values[c]),
// saturated to the largest finite f16.
void StoreInTile(const float* values, int dim, uint16_t* tile, int lane);

// scores[b] = scale * sum_c q[c] mean_b[c] for b in [0, 16 n_tiles). tiles: [n_tiles][dim][16] f16.
void ScoreMean(const uint16_t* tiles, int n_tiles, int dim, const float* q, float scale,
               float* scores);

// Quest's bound: scores[b] = scale * sum_c max(q[c] min_b[c], q[c] max_b[c]).
void ScoreMinMax(const uint16_t* min_tiles, const uint16_t* max_tiles, int n_tiles, int dim,
                 const float* q, float scale, float* scores);

// out[c] = sum_b weights[b] summary_b[c] over b in [0, 16 n_tiles); blocks of weight 0 are not
// looked at. tiles: as above, dim a multiple of 4; weights: [16 n_tiles]; out: [dim].
void SumTiles(const uint16_t* tiles, int n_tiles, int dim, const float* weights, float* out);

}  // namespace condense
