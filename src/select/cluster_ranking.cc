#include "select/cluster_ranking.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/summary.h"
#include "kernels/token_codes.h"
#include "select/row_shares.h"

namespace condense {

void FindClusterRows(const LayerQuery& query, int anchor, int window, ClusterStep& step) {
  FindRowParts(query, anchor, window, step.parts);
  step.always.resize(query.visible.size());
  for (size_t b = 0; b < step.always.size(); ++b)
    step.always[b] = static_cast<uint16_t>(step.parts.always[b] | step.parts.loose[b]);
  ListRows(step.always, step.always_rows);
}

void RefreshClusters(const LayerQuery& query, ClusterStep& step) {
  NoticeSegments(query, step.parts);
  query.index->clusters().Refresh(
      *query.kv,
      {.segments = step.parts.segments, .visible = query.visible, .n_threads = query.n_threads});
}

size_t ClusterRankBytes(const LayerQuery& query, int kv_head) {
  size_t bytes = 0;
  for (const ClusterPiece* piece : query.index->clusters().pieces())
    bytes += piece->heads[kv_head].RankBytes(query.kv->k_dim);
  return bytes;
}

bool ClusterRanking::Rank(const LayerQuery& query, int kv_head) {
  const std::span<const ClusterPiece* const> pieces = query.index->clusters().pieces();
  clusters_.clear();
  for (const ClusterPiece* piece : pieces) {
    for (int c = 0; c < piece->heads[kv_head].n_clusters; ++c)
      clusters_.push_back({.piece = piece, .head = kv_head, .number = c});
  }
  const size_t n = clusters_.size();
  worth_.assign(n, 0.0);
  scores_.resize(n + kTileBlocks);
  const int group = query.group(), k_dim = query.kv->k_dim;
  for (int h = 0; h < group; ++h) {
    const float* q = query.q + (static_cast<size_t>(kv_head) * group + h) * k_dim;
    size_t first = 0;
    for (const ClusterPiece* piece : pieces) {  // the next one overwrites what lanes are left
      const ClusterPiece::Head& head = piece->heads[kv_head];
      // Whole tiles may reach past what is left of the list.
      scores_.resize(std::max(scores_.size(), first + size_t{kTileBlocks} * head.n_tiles()));
      ScoreMean(head.tiles.data(), head.n_tiles(), k_dim, q, query.scale, scores_.data() + first);
      first += head.n_clusters;
    }
    for (size_t i = 0; i < n; ++i) scores_[i] = SoftCapped(query, scores_[i]);
    const float max = LargestOf(scores_.data(), static_cast<int>(n));
    if (!std::isfinite(max)) return false;
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      scores_[i] = std::exp(scores_[i] - max);
      sum += static_cast<double>(scores_[i]) * clusters_[i].n_rows();
    }
    for (size_t i = 0; i < n; ++i) worth_[i] += scores_[i] / sum;
  }
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  SortByWorth(worth_, order_);
  before_.resize(n + 1);
  before_[0] = 0;
  for (size_t i = 0; i < n; ++i) before_[i + 1] = before_[i] + clusters_[order_[i]].n_rows();
  return true;
}

void ClusterRanking::AppendRows(int place, std::span<const uint16_t> always,
                                std::vector<int32_t>& rows) const {
  const Cluster& cluster = clusters_[order_[place]];
  const ClusterPiece::Head& head = cluster.piece->heads[cluster.head];
  for (int i = head.begin[cluster.number]; i < head.begin[cluster.number + 1]; ++i) {
    const int row = cluster.piece->first_row() + head.members[i];
    if (!HasRow(always, row)) rows.push_back(row);
  }
}

}  // namespace condense
