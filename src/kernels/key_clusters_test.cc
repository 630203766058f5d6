// K-means of keys against Lloyd's rounds in plain loops.
#include "kernels/key_clusters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/summary.h"
#include "kernels/test_case.h"

namespace condense {
namespace {

std::vector<float> RandomKeys(int n, int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<size_t>(n) * dim);
  for (float& x : keys) x = normal(random);
  return keys;
}

std::vector<uint16_t> AllRows(int n) {
  std::vector<uint16_t> rows(n);
  for (int i = 0; i < n; ++i) rows[i] = static_cast<uint16_t>(i);
  return rows;
}

ClusterArgs Args(const std::vector<float>& keys, int dim, const std::vector<uint16_t>& rows) {
  ClusterArgs args;
  args.k = reinterpret_cast<const std::byte*>(keys.data());
  args.k_stride = sizeof(float) * dim;
  args.k_type = KvType::kF32;
  args.dim = dim;
  args.rows = rows;
  return args;
}

// The cluster of each row by the rule, in double; distances as they are, not as products.
std::vector<int> SlowClusters(const std::vector<float>& keys, int dim,
                              const std::vector<uint16_t>& rows, int n_rounds) {
  const int n = static_cast<int>(rows.size()), n_clusters = (n + 15) / 16;
  const auto key = [&](int i, int c) { return static_cast<double>(keys[rows[i] * dim + c]); };
  std::vector<std::vector<double>> means(n_clusters, std::vector<double>(dim));
  for (int c = 0; c < n_clusters; ++c) {
    for (int d = 0; d < dim; ++d) means[c][d] = key((2 * c + 1) * n / (2 * n_clusters), d);
  }
  std::vector<int> of(n, -1);
  for (int round = 0; round < n_rounds; ++round) {
    for (int i = 0; i < n; ++i) {
      double least = std::numeric_limits<double>::infinity();
      for (int c = 0; c < n_clusters; ++c) {
        double distance = 0;
        for (int d = 0; d < dim; ++d) distance += std::pow(key(i, d) - means[c][d], 2);
        if (distance < least) {
          least = distance;
          of[i] = c;
        }
      }
    }
    for (int c = 0; c < n_clusters; ++c) {
      std::vector<double> sum(dim, 0.0);
      int count = 0;
      for (int i = 0; i < n; ++i) {
        if (of[i] != c) continue;
        ++count;
        for (int d = 0; d < dim; ++d) sum[d] += key(i, d);
      }
      for (int d = 0; d < dim && count > 0; ++d) means[c][d] = sum[d] / count;
    }
  }
  return of;
}

TEST(KeyClustersTest, AreThoseOfLloydsRounds) {
  for (const auto& [n, dim] : {std::pair(64, 64), std::pair(1024, 64), std::pair(700, 96),
                               std::pair(17, 16), std::pair(1, 128), std::pair(600, 256)}) {
    const std::vector<float> keys = RandomKeys(n, dim, n + dim);
    const std::vector<uint16_t> rows = AllRows(n);
    const KeyClusters clusters = ClusterKeys(Args(keys, dim, rows));
    const std::vector<int> of = SlowClusters(keys, dim, rows, 8);
    int next = 0;
    for (int c = 0; c < (n + 15) / 16; ++c) {
      std::vector<uint16_t> members;
      for (int i = 0; i < n; ++i) {
        if (of[i] == c) members.push_back(rows[i]);
      }
      if (members.empty()) continue;
      ASSERT_LT(next, clusters.n_clusters());
      EXPECT_EQ(std::vector<uint16_t>(clusters.members.begin() + clusters.begin[next],
                                      clusters.members.begin() + clusters.begin[next + 1]),
                members)
          << n << ' ' << dim << ' ' << c;
      for (int d = 0; d < dim; ++d) {
        double sum = 0;
        for (int row : members) sum += keys[row * dim + d];
        EXPECT_NEAR(clusters.means[next * dim + d], sum / static_cast<double>(members.size()),
                    1e-6);
      }
      ++next;
    }
    EXPECT_EQ(next, clusters.n_clusters());
    EXPECT_EQ(clusters.members.size(), rows.size());
  }
}

TEST(KeyClustersTest, OnlyTheRowsAskedForCount) {
  const int dim = 64;
  std::vector<float> keys = RandomKeys(300, dim, 5);
  std::vector<uint16_t> rows;
  std::vector<float> dense;
  for (int row = 3; row < 300; row += 1 + row % 3) {
    rows.push_back(static_cast<uint16_t>(row));
    dense.insert(dense.end(), &keys[row * dim], &keys[row * dim] + dim);
  }
  const KeyClusters some = ClusterKeys(Args(keys, dim, rows));
  const std::vector<uint16_t> all = AllRows(static_cast<int>(rows.size()));
  const KeyClusters alone = ClusterKeys(Args(dense, dim, all));
  EXPECT_EQ(some.means, alone.means);
  EXPECT_EQ(some.begin, alone.begin);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(some.members[i], rows[alone.members[i]]);
}

TEST(KeyClustersTest, EveryTypeOfKey) {
  const int dim = 64, n = 256;
  for (KvType type : {KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    std::vector<std::byte> stored;
    std::vector<float> decoded(static_cast<size_t>(n) * dim);
    const std::vector<float> keys = RandomKeys(n, dim, 9);
    for (int i = 0; i < n; ++i) {
      const size_t at = stored.size();
      AppendStored({keys.begin() + i * dim, keys.begin() + (i + 1) * dim}, type, stored);
      BlockStats stats;
      stats.mean = &decoded[static_cast<size_t>(i) * dim];
      SummarizeRows(stored.data() + at, 0, type, 1, dim, stats);
    }
    const std::vector<uint16_t> rows = AllRows(n);
    ClusterArgs args = Args(decoded, dim, rows);
    const KeyClusters expected = ClusterKeys(args);
    args.k = stored.data();
    args.k_stride = KvBytes(type, dim);
    args.k_type = type;
    const KeyClusters clusters = ClusterKeys(args);
    EXPECT_EQ(clusters.means, expected.means);
    EXPECT_EQ(clusters.members, expected.members);
  }
}

TEST(KeyClustersTest, ARowThatIsNoNumberShowsInItsMeanAlone) {
  const int dim = 16, n = 128;
  std::vector<float> keys = RandomKeys(n, dim, 2);
  keys[70 * dim + 3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint16_t> rows = AllRows(n);
  const KeyClusters clusters = ClusterKeys(Args(keys, dim, rows));
  int n_bad = 0;
  for (int c = 0; c < clusters.n_clusters(); ++c) n_bad += std::isnan(clusters.means[c * dim + 3]);
  EXPECT_EQ(n_bad, 1);
  EXPECT_EQ(clusters.members.size(), rows.size());
}

TEST(KeyClustersTest, EqualKeysAreOneCluster) {
  const std::vector<float> keys(64 * 16, 1.0f);
  const std::vector<uint16_t> rows = AllRows(64);
  const KeyClusters clusters = ClusterKeys(Args(keys, 16, rows));
  EXPECT_EQ(clusters.n_clusters(), 1);
  EXPECT_EQ(clusters.members, rows);
}

}  // namespace
}  // namespace condense
