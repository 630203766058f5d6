// One KV head's clusters ranked in plain loops and in double, for tests. The clusters themselves
// are the index's: cache/cluster_index_test.cc and kernels/key_clusters_test.cc look at them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/code_index.h"
#include "kernels/half.h"
#include "select/test_cache.h"
#include "select/test_rows.h"

namespace condense {

// Anchor, window and newest row, and the rows that no closed segment has.
inline RowMask AlwaysWithLoose(const LayerQuery& query, int anchor, int window) {
  RowMask always = Always(query, anchor, window);
  const RowMask last = LastRows(query.visible, window);
  int first_of_window = query.kv->n_rows;
  for (int row = query.kv->n_rows - 1; row >= 0; --row) {
    if (HasRow(last, row)) first_of_window = row;
  }
  for (int s = 0; s * kSegmentRows < query.kv->n_rows; ++s) {
    const int begin = s * kSegmentRows;
    const int end = std::min(begin + kSegmentRows, query.kv->n_rows);
    int n = 0;
    for (int row = begin; row < end; ++row) n += HasRow(query.visible, row);
    const bool newest = query.newest_row >= begin && query.newest_row < end;
    if (begin + kSegmentRows <= first_of_window && n >= 8 && !newest) continue;
    for (int row = begin; row < end; ++row) {
      if (HasRow(query.visible, row)) AddRow(always, row);
    }
  }
  return always;
}

struct SlowCluster {
  int size = 0;           // always-read rows among them
  std::vector<int> rows;  // others
  double worth = 0;
};

// Best first. After a step of the policy, which made the clusters.
inline std::vector<SlowCluster> RankedClusters(TestCache& cache, const LayerQuery& query,
                                               int kv_head, const RowMask& always) {
  std::vector<SlowCluster> clusters;
  std::vector<std::vector<double>> means;
  const int dim = query.kv->k_dim;
  for (const auto& piece : query.index->clusters().pieces()) {
    const ClusterPiece::Head& head = piece->heads[kv_head];
    for (int c = 0; c < head.n_clusters; ++c) {
      SlowCluster cluster;
      for (int i = head.begin[c]; i < head.begin[c + 1]; ++i) {
        const int row = piece->first_row() + head.members[i];
        ++cluster.size;
        if (!HasRow(always, row)) cluster.rows.push_back(row);
      }
      means.emplace_back();
      for (int d = 0; d < dim; ++d)
        means.back().push_back(F32FromF16(head.tiles[(c / 16 * dim + d) * 16 + c % 16]));
      clusters.push_back(cluster);
    }
  }
  for (int h = kv_head * query.group(); h < (kv_head + 1) * query.group(); ++h) {
    std::vector<double> p;
    double sum = 0;
    for (size_t c = 0; c < clusters.size(); ++c) {
      double z = 0;
      for (int d = 0; d < dim; ++d) z += cache.QueryHead(h)[d] * means[c][d];
      p.push_back(std::exp(Capped(z * query.scale, query.softcap)));
      sum += p.back() * clusters[c].size;
    }
    for (size_t c = 0; c < clusters.size(); ++c) clusters[c].worth += p[c] / sum;
  }
  std::stable_sort(clusters.begin(), clusters.end(),
                   [](const SlowCluster& a, const SlowCluster& b) { return a.worth > b.worth; });
  return clusters;
}

// Read to rank them: f16 means in tiles of 16, and where each cluster's rows begin.
inline size_t RankBytes(const LayerQuery& query, int kv_head) {
  size_t bytes = 0;
  for (const auto& piece : query.index->clusters().pieces()) {
    const int n = piece->heads[kv_head].n_clusters;
    bytes += 2 * (static_cast<size_t>(n + 15) / 16 * 16 * query.kv->k_dim + n + 1);
  }
  return bytes;
}

}  // namespace condense
