#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/half.h"

namespace condense {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool BitSet(const uint16_t* mask, int row) {
  return (mask[row / kBlockRows] >> (row % kBlockRows)) & 1;
}

template <typename T>
T LoadAs(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

size_t CacheRow(const AttendArgs& args, int row) {
  if (args.rows != nullptr) return static_cast<size_t>(args.rows[row]);
  const int block = row / kBlockRows;
  return static_cast<size_t>(args.blocks != nullptr ? args.blocks[block] : block) * kBlockRows +
         row % kBlockRows;
}

std::vector<double> ReferenceRow(const std::byte* row, KvType type, int n) {
  std::vector<double> out(n);
  for (int i = 0; i < n; ++i) {
    switch (type) {
      case KvType::kF32:
        out[i] = LoadAs<float>(row + 4 * i);
        break;
      case KvType::kF16:
        out[i] = F32FromF16(LoadAs<uint16_t>(row + 2 * i));
        break;
      case KvType::kBF16:
        out[i] = F32FromBF16(LoadAs<uint16_t>(row + 2 * i));
        break;
      case KvType::kQ8_0: {
        const std::byte* block = row + static_cast<size_t>(i / kQ8BlockValues) * kQ8BlockBytes;
        const double scale = F32FromF16(LoadAs<uint16_t>(block));
        out[i] = scale * LoadAs<int8_t>(block + 2 + i % kQ8BlockValues);
        break;
      }
    }
  }
  return out;
}

std::vector<std::vector<double>> ReferenceLogits(const AttendArgs& args) {
  const int n_rows = args.n_blocks * kBlockRows;
  std::vector<std::vector<double>> logits(args.n_queries, std::vector<double>(n_rows, -kInf));
  for (int row = 0; row < n_rows; ++row) {
    std::vector<double> k;
    for (int query = 0; query < args.n_queries; ++query) {
      if (!BitSet(args.masks[query], row)) continue;
      if (k.empty())
        k = ReferenceRow(args.k + CacheRow(args, row) * args.k_stride, args.k_type, args.k_dim);
      const float* q = args.q + static_cast<size_t>(query) * args.k_dim;
      double dot = 0;
      for (int c = 0; c < args.k_dim; ++c) dot += q[c] * k[c];
      double logit = args.scale * dot;
      if (args.softcap > 0) logit = args.softcap * std::tanh(logit / args.softcap);
      if (args.bias != nullptr) logit += F32FromF16(args.bias[query][row]);
      logits[query][row] = logit;
    }
  }
  return logits;
}

std::vector<ReferenceState> ReferenceAttend(const AttendArgs& args) {
  const int n_rows = args.n_blocks * kBlockRows;
  const std::vector<std::vector<double>> logits = ReferenceLogits(args);
  std::vector<ReferenceState> states(args.n_queries);
  for (int query = 0; query < args.n_queries; ++query) {
    ReferenceState& state = states[query];
    state.o.assign(args.v_dim, 0);
    state.o_abs.assign(args.v_dim, 0);
    const uint16_t* v_mask = args.v_masks != nullptr ? args.v_masks[query] : args.masks[query];
    state.max = -kInf;
    for (double logit : logits[query]) state.max = std::max(state.max, logit);
    for (int row = 0; row < n_rows; ++row) {
      if (!BitSet(args.masks[query], row)) continue;
      const double weight = std::exp(logits[query][row] - state.max);
      state.sum += weight;
      if (!BitSet(v_mask, row)) continue;
      state.sum_v += weight;
      const std::vector<double> v =
          ReferenceRow(args.v + CacheRow(args, row) * args.v_stride, args.v_type, args.v_dim);
      for (int c = 0; c < args.v_dim; ++c) {
        state.o[c] += weight * v[c];
        state.o_abs[c] += weight * std::fabs(v[c]);
      }
    }
  }
  return states;
}

ReferenceState ReferenceMerge(const ReferenceState& a, const ReferenceState& b) {
  if (a.sum == 0) return b;
  if (b.sum == 0) return a;
  ReferenceState out = a;
  out.max = std::max(a.max, b.max);
  const double scale_a = std::exp(a.max - out.max);
  const double scale_b = std::exp(b.max - out.max);
  out.sum = a.sum * scale_a + b.sum * scale_b;
  out.sum_v = a.sum_v * scale_a + b.sum_v * scale_b;
  for (size_t c = 0; c < out.o.size(); ++c) {
    out.o[c] = a.o[c] * scale_a + b.o[c] * scale_b;
    out.o_abs[c] = a.o_abs[c] * scale_a + b.o_abs[c] * scale_b;
  }
  return out;
}

ReferenceStats ReferenceSummarizeRows(const std::byte* rows, size_t stride, KvType type, int n,
                                      int dim) {
  ReferenceStats stats;
  stats.mean.assign(dim, 0);
  stats.min.assign(dim, kInf);
  stats.max.assign(dim, -kInf);
  stats.var.assign(dim, 0);
  for (int row = 0; row < n; ++row) {
    const std::vector<double> values = ReferenceRow(rows + row * stride, type, dim);
    for (int c = 0; c < dim; ++c) {
      stats.mean[c] += values[c] / n;
      stats.min[c] = std::min(stats.min[c], values[c]);
      stats.max[c] = std::max(stats.max[c], values[c]);
    }
  }
  for (int row = 0; row < n; ++row) {
    const std::vector<double> values = ReferenceRow(rows + row * stride, type, dim);
    for (int c = 0; c < dim; ++c) {
      stats.var[c] += (values[c] - stats.mean[c]) * (values[c] - stats.mean[c]) / n;
    }
  }
  return stats;
}

std::vector<double> ReferenceScoreMean(const uint16_t* tiles, int n_tiles, int dim, const float* q,
                                       double scale) {
  return ReferenceScoreMinMax(tiles, tiles, n_tiles, dim, q, scale);
}

std::vector<double> ReferenceScoreMinMax(const uint16_t* min_tiles, const uint16_t* max_tiles,
                                         int n_tiles, int dim, const float* q, double scale) {
  std::vector<double> scores(static_cast<size_t>(n_tiles) * kTileBlocks, 0);
  for (size_t block = 0; block < scores.size(); ++block) {
    for (int c = 0; c < dim; ++c) {
      const size_t at = (block / kTileBlocks * dim + c) * kTileBlocks + block % kTileBlocks;
      const double low = static_cast<double>(q[c]) * F32FromF16(min_tiles[at]);
      const double high = static_cast<double>(q[c]) * F32FromF16(max_tiles[at]);
      scores[block] += scale * std::max(low, high);
    }
  }
  return scores;
}

}  // namespace condense
