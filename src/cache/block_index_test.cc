#include "cache/block_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/half.h"
#include "kernels/summary.h"

namespace condense {
namespace {

// A stream of F32 rows, [row][head][dim], K and V.
struct MadeCache {
  static constexpr int kHeads = 3, kDim = 32;
  int n_rows;
  std::vector<float> k, v;

  explicit MadeCache(int rows) : n_rows(rows), k(rows * kHeads * kDim), v(k.size()) {
    std::mt19937 random(7);
    for (float& x : k) x = static_cast<float>(random() % 2000) / 500.0f - 2.0f;
    for (float& x : v) x = static_cast<float>(random() % 2000) / 500.0f - 2.0f;
  }
  KvView View() const {
    KvView view;
    view.k_type = view.v_type = KvType::kF32;
    view.k = reinterpret_cast<const std::byte*>(k.data());
    view.v = reinterpret_cast<const std::byte*>(v.data());
    view.k_row = view.v_row = sizeof(float) * kHeads * kDim;
    view.k_head = view.v_head = sizeof(float) * kDim;
    view.n_rows = n_rows;
    view.n_kv_heads = kHeads;
    view.k_dim = view.v_dim = kDim;
    return view;
  }
  double Mean(int head, int block, int channel) const {
    double sum = 0;
    for (int r = 0; r < kBlockRows; ++r) {
      sum += k[((block * kBlockRows + r) * kHeads + head) * kDim + channel];
    }
    return sum / kBlockRows;
  }
  void Rewrite(int row) {
    for (int i = 0; i < kHeads * kDim; ++i) k[row * kHeads * kDim + i] += 3.0f;
  }
};

// Scores a block by its mean along one channel.
float MeanOf(const BlockIndex& index, int head, int block, int channel) {
  std::vector<float> q(MadeCache::kDim, 0.0f), scores(index.n_tiles() * kTileBlocks);
  q[channel] = 1.0f;
  ScoreMean(index.Tiles(Column::kMeanKey, head), index.n_tiles(), MadeCache::kDim, q.data(), 1.0f,
            scores.data());
  return scores[block];
}

RowMask AllBlocks(const MadeCache& cache) { return RowMask(BlocksFor(cache.n_rows), 0xFFFF); }

TEST(BlockIndexTest, MeansFollowTheStoredRows) {
  MadeCache cache(320);
  BlockIndex index;
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  for (int block : {0, 7, 19}) {
    for (int head = 0; head < MadeCache::kHeads; ++head) {
      EXPECT_NEAR(MeanOf(index, head, block, 5), cache.Mean(head, block, 5), 2e-3);
    }
  }
}

TEST(BlockIndexTest, OnlyWrittenBlocksAreSummarisedAgain) {
  MadeCache cache(320);
  BlockIndex index;
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  const float before = MeanOf(index, 1, 4, 3);
  cache.Rewrite(4 * kBlockRows + 2);
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  EXPECT_EQ(MeanOf(index, 1, 4, 3), before) << "nobody said that the row was written";
  index.MarkWritten(4 * kBlockRows + 2);
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  EXPECT_NEAR(MeanOf(index, 1, 4, 3), before + 3.0f / kBlockRows, 2e-3);
}

TEST(BlockIndexTest, GrowthKeepsWhatIsThere) {
  MadeCache cache(2000);
  BlockIndex index;
  for (int rows : {16, 48, 300, 304, 1024, 2000}) {
    KvView view = cache.View();
    view.n_rows = rows;
    const RowMask blocks(rows / kBlockRows, 0xFFFF);
    index.Refresh(view, kMeanKey | kKeyMinMax, blocks);
    for (int block : {0, rows / kBlockRows - 1}) {
      EXPECT_NEAR(MeanOf(index, 2, block, 9), cache.Mean(2, block, 9), 2e-3) << rows;
    }
  }
}

TEST(BlockIndexTest, PartlyVisibleBlocksAreLeftAlone) {
  MadeCache cache(64);
  BlockIndex index;
  RowMask blocks = {0xFFFF, 0x7FFF, 0xFFFF, 0};
  index.Refresh(cache.View(), kMeanKey, blocks);
  EXPECT_EQ(MeanOf(index, 0, 1, 2), 0.0f);
  EXPECT_NEAR(MeanOf(index, 0, 2, 2), cache.Mean(0, 2, 2), 2e-3);
}

TEST(BlockIndexTest, SpotCheckFindsRowsThatChangedUnseen) {
  MadeCache cache(512);
  BlockIndex index;
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  EXPECT_TRUE(index.SpotCheck(cache.View(), -1));
  cache.Rewrite(300);
  EXPECT_FALSE(index.SpotCheck(cache.View(), -1));
  EXPECT_EQ(index.rebuilds(), 1u);
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  EXPECT_TRUE(index.SpotCheck(cache.View(), -1));
  // The last two rows of every block, which change when another sequence is written over the cache.
  EXPECT_TRUE(index.CheckLastRows(cache.View()));
  cache.Rewrite(17 * kBlockRows - 2);
  EXPECT_FALSE(index.CheckLastRows(cache.View()));
  EXPECT_EQ(index.rebuilds(), 2u);
  EXPECT_FALSE(index.has_summaries());
  index.Refresh(cache.View(), kMeanKey, AllBlocks(cache));
  // Two whole blocks a step meet any block within as many steps as there are blocks.
  cache.Rewrite(17);
  bool found = false;
  for (int step = 0; step < 32 && !found; ++step) found = !index.SpotCheck(cache.View(), 2);
  EXPECT_TRUE(found);
}

// The variances of the keys: of every channel, as standard deviations, and as means over channels.
TEST(BlockIndexTest, VariancesFollowTheStoredRows) {
  MadeCache cache(2000);
  BlockIndex index;
  for (int rows : {48, 800, 2000}) {
    KvView view = cache.View();
    view.n_rows = rows;
    index.Refresh(view, kKeyVariance | kKeyStd | kVarianceMean | kGroupVariances,
                  RowMask(rows / kBlockRows, 0xFFFF));
    const auto value = [&](Column column, int head, int block, int channel) {
      return F32FromF16(index.Tiles(
          column, head,
          block / kTileBlocks *
              kTileBlocks)[static_cast<size_t>(channel) * kTileBlocks + block % kTileBlocks]);
    };
    for (int block : {0, rows / kBlockRows - 1}) {
      for (int head = 0; head < MadeCache::kHeads; ++head) {
        double groups[kVarianceGroups] = {};
        for (int c = 0; c < MadeCache::kDim; ++c) {
          const double mean = cache.Mean(head, block, c);
          double variance = 0;
          for (int r = block * kBlockRows; r < (block + 1) * kBlockRows; ++r) {
            const double off = cache.k[(r * MadeCache::kHeads + head) * MadeCache::kDim + c] - mean;
            variance += off * off / kBlockRows;
          }
          EXPECT_NEAR(value(Column::kVarKey, head, block, c), variance, 2e-3);
          EXPECT_NEAR(value(Column::kStdKey, head, block, c), std::sqrt(variance), 2e-3);
          groups[c / (MadeCache::kDim / kVarianceGroups)] +=
              variance / (MadeCache::kDim / kVarianceGroups);
        }
        double mean = 0;
        for (int g = 0; g < kVarianceGroups; ++g) {
          EXPECT_NEAR(value(Column::kGroupVariances, head, block, g), groups[g], 2e-3);
          mean += groups[g] / kVarianceGroups;
        }
        EXPECT_NEAR(value(Column::kVarianceMean, head, block, 0), mean, 2e-3);
      }
    }
  }
}

TEST(BlockIndexTest, BytesPerBlockCountEveryColumn) {
  EXPECT_EQ(BlockIndex::BytesPerBlock(kMeanKey, 64, 64), 128u);
  EXPECT_EQ(BlockIndex::BytesPerBlock(kKeyMinMax, 64, 64), 256u);
  EXPECT_EQ(BlockIndex::BytesPerBlock(kMeanKey | kKeyVariance | kMeanValue, 64, 128), 512u);
  EXPECT_EQ(BlockIndex::BytesPerBlock(kKeyStd, 64, 128), 128u);
  EXPECT_EQ(BlockIndex::BytesPerBlock(kVarianceMean | kGroupVariances, 64, 128), 10u);
}

}  // namespace
}  // namespace condense
