// Clusters of one stream's keys in one layer, for policies that rank groups of similar rows
// (`tactic`, `retrieval`; arithmetic: kernels/key_clusters.h). Rows are clustered within pieces:
// 1, 2, 4, 8 or 16 aligned segments of 64 rows. A piece is a function of the rows that a query sees
// of it and of nothing else, so rolled-back rows leave no trace and sequences side by side do not
// meet; a segment that closes becomes a piece of its own, and twice as large ones take the place of
// two, up to 1,024 rows.
//
// Made lazily, kept until one of its rows is written again. Rows that change unseen are noticed by
// the BlockIndex, which owns this.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_view.h"

namespace condense {

struct ClusterPiece {
  static constexpr int kMostSegments = 16;
  // One KV head's clusters.
  struct Head {
    int n_clusters = 0;
    std::vector<uint16_t> tiles;    // f16 means, [whole tiles of 16 clusters][k_dim][16]
    std::vector<uint16_t> begin;    // [n_clusters + 1] of a cluster's rows in `members`
    std::vector<uint16_t> members;  // rows after the piece's first, ascending in each cluster

    int n_tiles() const { return (n_clusters + 15) / 16; }
    // Read to rank the clusters: means and numbers of rows.
    size_t RankBytes(int k_dim) const {
      return sizeof(uint16_t) * (static_cast<size_t>(n_tiles()) * 16 * k_dim + begin.size());
    }
  };
  static constexpr size_t kMemberBytes = sizeof(uint16_t);  // a row's number

  int first_segment = 0, n_segments = 0;
  std::array<uint64_t, kMostSegments> rows = {};  // by segment; 0: none of it
  int n_rows = 0;
  std::vector<Head> heads;  // [n_kv_heads]
  uint64_t last_used = 0;

  int first_row() const;
  size_t bytes() const;
};

class ClusterIndex {
 public:
  void MarkWritten(int row);
  void Forget();

  struct Request {
    std::span<const int32_t> segments;  // closed ones, ascending, not empty
    std::span<const uint16_t> visible;  // by block
    int n_threads = 1;                  // of the host's OpenMP team; changes no bit
  };
  // Makes the pieces of the segments asked for current. Cheap when nothing changed.
  void Refresh(const KvView& view, const Request& request);

  // Of the last Refresh, ascending, valid until the next call that changes anything.
  std::span<const ClusterPiece* const> pieces() const { return current_; }

  size_t bytes() const;
  uint64_t n_clustered() const { return n_clustered_; }  // rows, times the pieces they came into

 private:
  ClusterPiece& FindOrMake(const ClusterPiece& wanted);
  void DropUnused(int n_rows);

  std::vector<std::unique_ptr<ClusterPiece>> all_;
  std::vector<const ClusterPiece*> current_;  // of the last Refresh
  std::vector<ClusterPiece*> missing_;        // of the Refresh under way: without clusters yet
  size_t next_ = 0;                           // in all_, where the next wanted piece likely is
  uint64_t clock_ = 0, n_clustered_ = 0;
};

}  // namespace condense
