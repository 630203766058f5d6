#include "kernels/key_clusters.h"

#include <algorithm>
#include <limits>

#include "base/result.h"
#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/summary.h"

namespace condense {
namespace {

class Clusterer {
 public:
  explicit Clusterer(const ClusterArgs& args)
      : dim_(args.dim),
        n_(static_cast<int>(args.rows.size())),
        n_clusters_((n_ + kClusterRows - 1) / kClusterRows),
        keys_(static_cast<size_t>(BlocksFor(n_)) * kBlockRows * args.dim),
        of_row_(n_, -1),
        best_(n_) {
    BlockStats stats;
    for (int i = 0; i < n_; ++i) {
      stats.mean = &keys_[static_cast<size_t>(i) * dim_];
      SummarizeRows(args.k + args.rows[i] * args.k_stride, args.k_stride, args.k_type, 1, dim_,
                    stats);
    }
    means_.resize(static_cast<size_t>(n_clusters_) * dim_);
    for (int c = 0; c < n_clusters_; ++c) {
      const int64_t i = (2 * int64_t{c} + 1) * n_ / (2 * n_clusters_);
      std::copy_n(&keys_[i * dim_], dim_, &means_[static_cast<size_t>(c) * dim_]);
    }
  }

  KeyClusters Run(const ClusterArgs& args) {
    for (int round = 0; round < args.n_rounds && Assign(); ++round) Average();
    KeyClusters clusters;
    clusters.begin.push_back(0);
    for (int c = 0; c < n_clusters_; ++c) {
      for (int i = 0; i < n_; ++i) {
        if (of_row_[i] == c) clusters.members.push_back(args.rows[i]);
      }
      if (clusters.members.size() == clusters.begin.back()) continue;
      clusters.begin.push_back(static_cast<uint16_t>(clusters.members.size()));
      const auto mean = means_.begin() + static_cast<ptrdiff_t>(c) * dim_;
      clusters.means.insert(clusters.means.end(), mean, mean + dim_);
    }
    return clusters;
  }

 private:
  // Every row to its nearest mean: that with the greatest k·c - |c|²/2. False where none moved.
  bool Assign() {
    std::fill(best_.begin(), best_.end(), -std::numeric_limits<float>::infinity());
    std::vector<int> to(n_, 0);
    const std::vector<uint16_t> lanes(kChunkBlocks, 0xFFFF);
    const std::vector<const uint16_t*> masks(n_clusters_, lanes.data());
    products_.resize(static_cast<size_t>(n_clusters_) * kChunkRows);
    std::vector<double> halves(n_clusters_, 0.0);
    for (int c = 0; c < n_clusters_; ++c) {
      for (int d = 0; d < dim_; ++d) {
        const double x = means_[static_cast<size_t>(c) * dim_ + d];
        halves[c] += x * x / 2;
      }
    }
    AttendArgs args;
    args.k_stride = sizeof(float) * dim_;
    args.k_type = KvType::kF32;
    args.k_dim = dim_;
    args.n_queries = n_clusters_;
    args.q = means_.data();
    args.masks = masks.data();
    for (int first = 0; first < n_; first += kChunkRows) {
      const int n = std::min(kChunkRows, n_ - first);
      args.k = reinterpret_cast<const std::byte*>(&keys_[static_cast<size_t>(first) * dim_]);
      args.n_blocks = BlocksFor(n);
      RowLogits(args, products_.data());
      for (int c = 0; c < n_clusters_; ++c) {
        const float* product = &products_[static_cast<size_t>(c) * args.n_blocks * kBlockRows];
        const auto half = static_cast<float>(halves[c]);
        for (int i = 0; i < n; ++i) {
          const float score = product[i] - half;
          if (score > best_[first + i]) {
            best_[first + i] = score;
            to[first + i] = c;
          }
        }
      }
    }
    const bool moved = to != of_row_;
    of_row_ = std::move(to);
    return moved;
  }

  // A cluster without rows keeps its mean.
  void Average() {
    std::vector<double> sums(means_.size(), 0.0);
    std::vector<int> counts(n_clusters_, 0);
    for (int i = 0; i < n_; ++i) {
      double* sum = &sums[static_cast<size_t>(of_row_[i]) * dim_];
      for (int d = 0; d < dim_; ++d) sum[d] += keys_[static_cast<size_t>(i) * dim_ + d];
      ++counts[of_row_[i]];
    }
    for (int c = 0; c < n_clusters_; ++c) {
      if (counts[c] == 0) continue;
      for (int d = 0; d < dim_; ++d) {
        const size_t at = static_cast<size_t>(c) * dim_ + d;
        means_[at] = static_cast<float>(sums[at] / counts[c]);
      }
    }
  }

  const int dim_, n_, n_clusters_;
  std::vector<float> keys_;  // [whole blocks of rows, dim]
  std::vector<float> means_;
  std::vector<int> of_row_;
  std::vector<float> best_, products_;
};

}  // namespace

KeyClusters ClusterKeys(const ClusterArgs& args) {
  CONDENSE_CHECK(!args.rows.empty() && args.rows.size() <= 0xFFFF && args.n_rounds > 0);
  return Clusterer(args).Run(args);
}

}  // namespace condense
