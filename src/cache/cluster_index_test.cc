// Clusters of a stream's keys: which pieces there are, what they depend on, when they go.
#include "cache/cluster_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "cache/block_index.h"
#include "kernels/half.h"
#include "kernels/key_clusters.h"
#include "kernels/test_case.h"

namespace condense {
namespace {

constexpr int kHeads = 2, kDim = 32;

struct MadeKeys {
  explicit MadeKeys(int n_rows) {
    view.n_rows = n_rows, view.n_kv_heads = kHeads;
    view.k_dim = view.v_dim = kDim;
    for (int r = 0; r < n_rows; ++r) AppendStored(Row(), KvType::kF16, k);
    view.k = view.v = k.data();
    view.k_head = view.v_head = KvBytes(KvType::kF16, kDim);
    view.k_row = view.v_row = kHeads * view.k_head;
  }
  std::vector<float> Row() {
    std::normal_distribution<float> normal;
    std::vector<float> row(kHeads * kDim);
    for (float& x : row) x = normal(random);
    return row;
  }
  void Rewrite(int row) {
    std::vector<std::byte> bytes;
    AppendStored(Row(), KvType::kF16, bytes);
    std::copy(bytes.begin(), bytes.end(), k.begin() + row * static_cast<ptrdiff_t>(view.k_row));
  }

  std::mt19937 random{6};
  KvView view;
  std::vector<std::byte> k;
};

RowMask Rows(int n_rows, const std::vector<RowRange>& ranges) {
  RowMask mask(BlocksFor(n_rows), 0);
  for (RowRange range : ranges) AddRange(mask, range);
  return mask;
}

std::vector<int32_t> Segments(int first, int last) {
  std::vector<int32_t> segments;
  for (int s = first; s < last; ++s) segments.push_back(s);
  return segments;
}

void Refresh(ClusterIndex& index, const MadeKeys& keys, const std::vector<int32_t>& segments,
             const RowMask& visible, int n_threads = 1) {
  index.Refresh(keys.view, {.segments = segments, .visible = visible, .n_threads = n_threads});
}

std::vector<std::pair<int, int>> Places(const ClusterIndex& index) {
  std::vector<std::pair<int, int>> places;
  for (const auto& piece : index.pieces())
    places.emplace_back(piece->first_segment, piece->n_segments);
  return places;
}

bool SamePieces(const ClusterIndex& a, const ClusterIndex& b) {
  if (Places(a) != Places(b)) return false;
  for (size_t i = 0; i < a.pieces().size(); ++i) {
    for (int h = 0; h < kHeads; ++h) {
      const ClusterPiece::Head &x = a.pieces()[i]->heads[h], &y = b.pieces()[i]->heads[h];
      if (x.tiles != y.tiles || x.begin != y.begin || x.members != y.members) return false;
    }
  }
  return true;
}

TEST(ClusterIndexTest, PiecesGrowByTwos) {
  const MadeKeys keys(64 * 40);
  const RowMask visible = Rows(64 * 40, {{0, 64 * 40}});
  ClusterIndex index;
  using Expected = std::vector<std::pair<int, int>>;
  Refresh(index, keys, Segments(0, 7), visible);
  EXPECT_EQ(Places(index), (Expected{{0, 4}, {4, 2}, {6, 1}}));
  Refresh(index, keys, Segments(0, 8), visible);
  EXPECT_EQ(Places(index), (Expected{{0, 8}}));
  Refresh(index, keys, Segments(0, 37), visible);
  EXPECT_EQ(Places(index), (Expected{{0, 16}, {16, 16}, {32, 4}, {36, 1}}));
  // Segments that are not asked for are left out, with nothing else to see.
  std::vector<int32_t> some = Segments(18, 21);
  some.insert(some.begin(), 3);
  Refresh(index, keys, some, visible);
  EXPECT_EQ(Places(index), (Expected{{0, 16}, {16, 4}, {20, 1}}));
  EXPECT_EQ(index.pieces()[0]->n_rows, 64);
  EXPECT_EQ(index.pieces()[1]->n_rows, 128);
}

TEST(ClusterIndexTest, EveryVisibleRowIsInOneClusterAndMeansAreTheirs) {
  const MadeKeys keys(64 * 20);
  const RowMask visible = Rows(64 * 20, {{5, 300}, {310, 900}, {1000, 1280}});
  ClusterIndex index;
  Refresh(index, keys, Segments(0, 19), visible);
  for (int h = 0; h < kHeads; ++h) {
    std::set<int> seen;
    for (const auto& piece : index.pieces()) {
      const ClusterPiece::Head& head = piece->heads[h];
      ASSERT_EQ(head.begin.size(), static_cast<size_t>(head.n_clusters) + 1);
      EXPECT_LE(head.n_clusters, (piece->n_rows + kClusterRows - 1) / kClusterRows);
      for (int c = 0; c < head.n_clusters; ++c) {
        std::vector<double> sum(kDim, 0.0);
        for (int i = head.begin[c]; i < head.begin[c + 1]; ++i) {
          const int row = piece->first_row() + head.members[i];
          EXPECT_TRUE(HasRow(visible, row));
          EXPECT_TRUE(seen.insert(row).second);
          for (int d = 0; d < kDim; ++d) {
            uint16_t half;
            std::memcpy(&half, keys.view.KeyRow(h, row) + 2 * d, 2);
            sum[d] += F32FromF16(half);
          }
        }
        const int n = head.begin[c + 1] - head.begin[c];
        ASSERT_GT(n, 0);
        for (int d = 0; d < kDim; ++d) {
          const float mean = F32FromF16(head.tiles[(c / 16 * kDim + d) * 16 + c % 16]);
          EXPECT_NEAR(mean, sum[d] / n, 1e-3 * (1 + std::abs(sum[d] / n)));
        }
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()),
              CountRows(std::span(visible).first(19 * 64 / kBlockRows)));
  }
}

TEST(ClusterIndexTest, RowsTakenBackLeaveNoTrace) {
  const MadeKeys keys(64 * 24);
  const RowMask visible = Rows(64 * 24, {{0, 64 * 24}});
  ClusterIndex straight, rolled;
  for (int n = 4; n < 24; ++n) Refresh(rolled, keys, Segments(0, n), visible);
  Refresh(rolled, keys, Segments(0, 11), visible);
  Refresh(straight, keys, Segments(0, 11), visible);
  EXPECT_TRUE(SamePieces(rolled, straight));
  // Nothing of it was clustered again.
  const uint64_t n_clustered = rolled.n_clustered();
  Refresh(rolled, keys, Segments(0, 23), visible);
  EXPECT_EQ(rolled.n_clustered(), n_clustered);
}

TEST(ClusterIndexTest, AWrittenRowDropsWhatKnewIt) {
  MadeKeys keys(64 * 24);
  const RowMask visible = Rows(64 * 24, {{0, 900}, {910, 64 * 24}});
  ClusterIndex index;
  Refresh(index, keys, Segments(0, 23), visible);
  const uint64_t before = index.n_clustered();
  keys.Rewrite(1030);
  index.MarkWritten(1030);
  index.MarkWritten(905);      // not seen: nobody's
  index.MarkWritten(23 * 64);  // of no piece
  Refresh(index, keys, Segments(0, 23), visible);
  EXPECT_EQ(index.n_clustered(), before + 4 * 64);  // segments 16 … 19
  ClusterIndex fresh;
  Refresh(fresh, keys, Segments(0, 23), visible);
  EXPECT_TRUE(SamePieces(index, fresh));
}

TEST(ClusterIndexTest, SequencesSideBySideDoNotMeet) {
  const MadeKeys keys(64 * 16);
  RowMask a(64, 0), b(64, 0);
  for (int row = 0; row < 64 * 16; ++row) AddRow(row % 2 == 0 ? a : b, row);
  ClusterIndex both, alone;
  for (int i = 0; i < 3; ++i) {
    Refresh(both, keys, Segments(0, 15), a);
    Refresh(both, keys, Segments(0, 15), b);
  }
  EXPECT_EQ(both.n_clustered(), 2u * 15 * 32);
  Refresh(alone, keys, Segments(0, 15), b);
  EXPECT_TRUE(SamePieces(both, alone));
}

TEST(ClusterIndexTest, ThreadsChangeNothing) {
  const MadeKeys keys(64 * 24);
  const RowMask visible = Rows(64 * 24, {{0, 64 * 24}});
  ClusterIndex one, three;
  Refresh(one, keys, Segments(0, 23), visible);
  Refresh(three, keys, Segments(0, 23), visible, 3);
  EXPECT_TRUE(SamePieces(one, three));
}

TEST(ClusterIndexTest, GoesWithTheSummariesOfItsBlocks) {
  MadeKeys keys(64 * 8);
  const RowMask visible = Rows(64 * 8, {{0, 64 * 8}});
  BlockIndex blocks;
  blocks.Refresh(keys.view, kFingerprint, visible);
  Refresh(blocks.clusters(), keys, Segments(0, 7), visible);
  EXPECT_EQ(blocks.clusters().n_clustered(), 7u * 64);
  EXPECT_GT(blocks.bytes(), blocks.clusters().bytes());
  blocks.MarkWritten(70);
  Refresh(blocks.clusters(), keys, Segments(0, 7), visible);
  EXPECT_EQ(blocks.clusters().n_clustered(), (7u + 4) * 64);
  for (int row = 0; row < 64 * 8; ++row) keys.Rewrite(row);  // and no word of it
  EXPECT_FALSE(blocks.SpotCheck(keys.view, -1));
  EXPECT_TRUE(blocks.clusters().pieces().empty());
  Refresh(blocks.clusters(), keys, Segments(0, 7), visible);
  ClusterIndex fresh;
  Refresh(fresh, keys, Segments(0, 7), visible);
  EXPECT_TRUE(SamePieces(blocks.clusters(), fresh));
}

TEST(ClusterIndexTest, MemoryIsBounded) {
  const MadeKeys keys(64 * 8);
  ClusterIndex index;
  for (int i = 0; i < 100; ++i) {
    RowMask visible = Rows(64 * 8, {{0, 400 + i}});
    visible[i % 25] = 0x7FFF;
    Refresh(index, keys, Segments(0, 6), visible);
  }
  // 4 times the rows: at most 8 bytes a row of members and padding, 2 of 16 lanes of means.
  const size_t held = 4 * 64 * 8 + 400;
  EXPECT_LT(index.bytes(), held * kHeads * (8 + 2 * kDim) + 100 * sizeof(ClusterPiece));
}

}  // namespace
}  // namespace condense
