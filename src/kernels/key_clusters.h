// K-means of stored keys of one KV head (Lloyd's rounds, Euclidean distance): groups of rows that a
// query's product with their mean ranks. Raw pointers; knows no cache, policy or ggml. Products are
// RowLogits', means are sums in double in the order of the rows, so the clusters are the same on
// every target. Nothing is random.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/kv_type.h"

namespace condense {

inline constexpr int kClusterRows = 16;  // on average

struct ClusterArgs {
  const std::byte* k = nullptr;  // row 0
  size_t k_stride = 0;
  KvType k_type = KvType::kF16;
  int dim = 0;
  std::span<const uint16_t> rows;  // to be clustered, ascending, at least one
  int n_rounds = 8;                // at most; fewer where nothing changes any more
};

struct KeyClusters {
  std::vector<float> means;       // [n_clusters, dim]
  std::vector<uint16_t> begin;    // [n_clusters + 1] of a cluster's rows in `members`
  std::vector<uint16_t> members;  // [rows] cluster by cluster, ascending in each

  int n_clusters() const { return begin.empty() ? 0 : static_cast<int>(begin.size()) - 1; }
};

// Into n / 16 clusters, rounded up, none of them empty but fewer where some came out so. They begin
// at as many rows, evenly spread over the list; a row joins the nearest mean, of equal ones the
// first. A row that is not finite makes the mean of its cluster so.
KeyClusters ClusterKeys(const ClusterArgs& args);

}  // namespace condense
