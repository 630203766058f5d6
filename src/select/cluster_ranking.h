// What policies share that rank clusters of keys (`tactic`, `retrieval`): which rows a step reads
// always, and one KV head's clusters by their means, best first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cluster_index.h"
#include "select/policy.h"
#include "select/row_parts.h"

namespace condense {

// With fewer visible rows everything is read: what is always read and the means leave nothing to
// choose with.
inline constexpr int kLeastClusteredRows = 1024;

struct ClusterStep {
  RowParts parts;
  // [n_blocks] Anchor, window and newest row, and the rows that no closed segment has: K and V are
  // read.
  std::vector<uint16_t> always;
  std::vector<int32_t> always_rows;  // the same

  int n_candidates() const { return parts.n_coded; }
};
void FindClusterRows(const LayerQuery& query, int anchor, int window, ClusterStep& step);
// The clusters of step.parts.segments (not empty) are current after it, until the next step.
void RefreshClusters(const LayerQuery& query, ClusterStep& step);

// Read to rank one KV head's clusters.
size_t ClusterRankBytes(const LayerQuery& query, int kv_head);

class ClusterRanking {
 public:
  // By the share of the attention that a row at the cluster's mean would have among all clustered
  // rows, summed over the heads of the group: with one head, by scale q·mean. Of equal ones, those
  // of earlier rows first. False where a product is not finite.
  bool Rank(const LayerQuery& query, int kv_head);

  int n_clusters() const { return static_cast<int>(order_.size()); }
  // Rows of the clusters before the place-th best; [0, n_clusters()].
  int RowsBefore(int place) const { return before_[place]; }
  int RowsOf(int place) const { return before_[place + 1] - before_[place]; }
  // Appends the rows of the place-th best cluster that are not in `always`.
  void AppendRows(int place, std::span<const uint16_t> always, std::vector<int32_t>& rows) const;

 private:
  struct Cluster {
    const ClusterPiece* piece = nullptr;
    int head = 0, number = 0;

    int n_rows() const {
      const std::vector<uint16_t>& begin = piece->heads[head].begin;
      return begin[number + 1] - begin[number];
    }
  };
  std::vector<Cluster> clusters_;  // ascending
  std::vector<float> scores_;      // [n_clusters + lanes left], of one head
  std::vector<double> worth_;      // [n_clusters]
  std::vector<int32_t> order_;
  std::vector<int> before_;  // [n_clusters + 1]
};

}  // namespace condense
