#include "cache/code_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/test_case.h"

namespace condense {
namespace {

constexpr int kHeads = 3;

// A stream of rows [row][head][dim] of one type, K alone.
struct MadeKeys {
  int n_rows, dim;
  KvType type;
  std::vector<std::byte> k;
  size_t row_bytes = 0;

  MadeKeys(int rows, int d = 64, KvType t = KvType::kF16, unsigned seed = 3)
      : n_rows(rows), dim(d), type(t) {
    std::mt19937 random(seed);
    for (int r = 0; r < rows; ++r) AppendStored(Row(random), type, k);
    row_bytes = k.size() / rows;
  }
  std::vector<float> Row(std::mt19937& random) const {
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(kHeads) * dim);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = normal(random) * (i % 7 == 0 ? 3.0f : 0.5f) + static_cast<float>(i % 5);
    }
    return row;
  }
  void Rewrite(int row, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes;
    AppendStored(Row(random), type, bytes);
    std::copy(bytes.begin(), bytes.end(), k.begin() + row * row_bytes);
  }
  KvView View(int rows = -1) const {
    KvView view;
    view.k_type = view.v_type = type;
    view.k = view.v = k.data();
    view.k_row = view.v_row = row_bytes;
    view.k_head = view.v_head = KvBytes(type, dim);
    view.n_rows = rows < 0 ? n_rows : rows;
    view.n_kv_heads = kHeads;
    view.k_dim = view.v_dim = dim;
    return view;
  }
};

std::vector<int32_t> Segments(int begin, int end) {
  std::vector<int32_t> segments(end - begin);
  std::iota(segments.begin(), segments.end(), begin);
  return segments;
}

void Refresh(CodeIndex& index, const KvView& view, const std::vector<int32_t>& segments,
             int n_threads = 1, const QueryMoment* queries = nullptr, bool rotate = false) {
  CodeIndex::Request request;
  request.segments = segments;
  request.queries = queries;
  request.n_threads = n_threads;
  request.rotate = rotate;
  index.Refresh(view, request);
}

// Estimates of the rows of `segments` that are in `visible`, every KV head, one query of whole
// numbers.
std::vector<float> Estimates(const CodeIndex& index, const std::vector<int32_t>& segments,
                             const RowMask& visible = {}) {
  std::vector<float> all;
  for (int h = 0; h < kHeads; ++h) {
    const CodesView view = index.View(h);
    std::vector<float> q(view.dim), bases(view.n_segments), references(bases), sums(bases);
    std::vector<uint16_t> p(view.n_segments * kSegmentRows);
    for (int c = 0; c < view.dim; ++c) q[c] = static_cast<float>(c % 7 - 3);
    for (int32_t s : segments) {
      QueryTable table;
      MakeQueryTable(index.Book(index.book_of(s), h), q.data(), 0.125f, &table);
      CentroidLogits(view, q.data(), 1, 0.125f, s, s + 1, bases.data(), bases.size());
      ScanArgs args;
      args.view = view;
      args.n_heads = 1;
      args.tables = &table;
      args.bases = bases.data();
      args.segment_stride = bases.size();
      args.visible = visible.empty() ? nullptr : visible.data();
      args.p = p.data();
      args.p_stride = p.size();
      args.references = references.data();
      args.sums = sums.data();
      ScanCodes(args, s, s + 1);
      for (int r = s * kSegmentRows; r < (s + 1) * kSegmentRows; ++r) {
        if (!visible.empty() && !HasRow(visible, r)) continue;
        const uint32_t bits = uint32_t{p[s * kSegmentRows + PlaceOfRow(r % kSegmentRows)]} << 16;
        all.push_back(references[s] + std::log(std::bit_cast<float>(bits)));
      }
    }
  }
  return all;
}

TEST(CodeIndexTest, CodesEstimateLogitsOfEveryTypeAndHeadSize) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (int dim : {64, 80, 96, 128, 256}) {
      if (type == KvType::kQ8_0 && dim % 32 != 0) continue;
      const MadeKeys keys(1024, dim, type);
      CodeIndex index;
      const std::vector<int32_t> segments = Segments(0, 16);
      Refresh(index, keys.View(), segments);
      const std::vector<float> estimates = Estimates(index, segments);
      const MadeKeys exact(1024, dim, KvType::kF32);
      double error = 0, spread = 0, mean = 0;
      std::vector<double> logits;
      for (int h = 0; h < kHeads; ++h) {
        for (int r = 0; r < 1024; ++r) {
          const auto* k = reinterpret_cast<const float*>(exact.View().KeyRow(h, r));
          double dot = 0;
          for (int c = 0; c < dim; ++c) dot += 0.125 * (c % 7 - 3) * k[c];
          logits.push_back(dot);
        }
      }
      for (double z : logits) mean += z / static_cast<double>(logits.size());
      for (size_t i = 0; i < logits.size(); ++i) {
        error += (logits[i] - estimates[i]) * (logits[i] - estimates[i]);
        spread += (logits[i] - mean) * (logits[i] - mean);
      }
      // Channels of great variance take the bits; more channels share them at larger heads.
      EXPECT_LT(error, (dim <= 96 ? 0.35 : 0.7) * spread) << KvTypeName(type) << ' ' << dim;
    }
  }
}

TEST(CodeIndexTest, RewrittenRowsDropTheirSegment) {
  MadeKeys keys(1600);
  CodeIndex index;
  const std::vector<int32_t> known = Segments(0, 20), all = Segments(0, 25);
  Refresh(index, keys.View(), known);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(index.n_trained(), 1u);
  EXPECT_EQ(index.n_coded(), 25u);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(index.n_coded(), 25u);

  const uint64_t stamp = index.stamp(23), other = index.stamp(22);
  const std::vector<float> before = Estimates(index, all);
  keys.Rewrite(23 * 64 + 5, 99);
  index.MarkWritten(23 * 64 + 5);
  EXPECT_LT(index.book_of(23), 0);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(index.n_trained(), 1u);  // the codebook knew nothing of the segment
  EXPECT_EQ(index.n_coded(), 26u);
  EXPECT_NE(index.stamp(23), stamp);
  EXPECT_EQ(index.stamp(22), other);
  EXPECT_NE(Estimates(index, all), before);
  // Written back: as if it had never been written.
  const MadeKeys original(1600);
  keys.k = original.k;
  index.MarkWritten(23 * 64 + 5);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(Estimates(index, all), before);

  // A row that the codebook was trained on: trained anew, as an index would that never saw the old.
  keys.Rewrite(7, 98);
  index.MarkWritten(7);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(index.n_trained(), 2u);
  CodeIndex fresh;
  Refresh(fresh, keys.View(), all);
  EXPECT_EQ(Estimates(index, all), Estimates(fresh, all));
}

TEST(CodeIndexTest, RolledBackBelowTheTrainingEqualsAFreshIndex) {
  const MadeKeys keys(2048);
  CodeIndex index, fresh;
  Refresh(index, keys.View(), Segments(0, 30));
  Refresh(index, keys.View(), Segments(0, 20));
  Refresh(fresh, keys.View(), Segments(0, 20));
  EXPECT_EQ(Estimates(index, Segments(0, 20)), Estimates(fresh, Segments(0, 20)));
}

TEST(CodeIndexTest, TrainsAnewAsTheContextGrows) {
  const MadeKeys keys(64 * 200);
  CodeIndex index;
  for (int n = 15; n <= 79; ++n) Refresh(index, keys.View(64 * n + 64), Segments(0, n));
  EXPECT_EQ(index.n_trained(), 2u);  // at 15 and at 79 segments
  CodeIndex fresh;
  Refresh(fresh, keys.View(), Segments(0, 79));
  EXPECT_EQ(Estimates(index, Segments(0, 79)), Estimates(fresh, Segments(0, 79)));
  Refresh(index, keys.View(), Segments(0, 80));
  EXPECT_EQ(index.n_trained(), 2u);
}

TEST(CodeIndexTest, SequencesShareAStreamButNoCodebook) {
  const MadeKeys keys(64 * 60);
  CodeIndex together, alone;
  std::vector<int32_t> a = Segments(0, 20), b = Segments(30, 50);
  Refresh(together, keys.View(), a);
  Refresh(together, keys.View(), b);
  Refresh(alone, keys.View(), b);
  EXPECT_NE(together.book_of(3), together.book_of(33));
  EXPECT_EQ(Estimates(together, b), Estimates(alone, b));
  // Both go on: nobody takes the other's codes.
  for (int i = 0; i < 5; ++i) {
    a.push_back(20 + i);
    b.push_back(50 + i);
    Refresh(together, keys.View(), a);
    Refresh(together, keys.View(), b);
  }
  EXPECT_EQ(together.n_trained(), 2u);
  EXPECT_EQ(together.n_coded(), 50u);
}

// Two sequences with the same beginning: the shorter one's codebook takes the beginning over once,
// and the two do not train by turns from then on.
TEST(CodeIndexTest, ForkedSequencesDoNotTrainByTurns) {
  const MadeKeys keys(64 * 100);
  CodeIndex index;
  std::vector<int32_t> a = Segments(0, 40), b = Segments(0, 30);
  Refresh(index, keys.View(), a);
  for (int i = 0; i < 20; ++i) {
    b.push_back(50 + i);
    Refresh(index, keys.View(), a);
    Refresh(index, keys.View(), b);
  }
  EXPECT_LE(index.n_trained(), 2u);
  EXPECT_LE(index.n_coded(), 40u + 50u);
}

// Two sequences that own every other row of the segments from `begin` on, and each its segments
// before.
struct SideBySide {
  RowMask visible[2];
  std::vector<int32_t> segments[2];
  int begin, end;

  SideBySide(int own, int shared, int n_segments) : begin(2 * own), end(begin + shared) {
    for (int i = 0; i < 2; ++i) {
      visible[i].assign(static_cast<size_t>(n_segments) * kSegmentRows / kBlockRows, 0);
      AddRange(visible[i], {own * i * kSegmentRows, own * (i + 1) * kSegmentRows});
      segments[i] = Segments(own * i, own * (i + 1));
      for (int s = begin; s < end; ++s) Close(i, s);
    }
  }
  void Close(int i, int s) {
    segments[i].push_back(s);
    for (int r = i; r < kSegmentRows; r += 2) AddRow(visible[i], s * kSegmentRows + r);
  }
  void Refresh(CodeIndex& index, const KvView& view, int i) const {
    CodeIndex::Request request;
    request.segments = segments[i];
    request.visible = visible[i];
    index.Refresh(view, request);
  }
  std::vector<float> Estimated(const CodeIndex& index, int i) const {
    return Estimates(index, segments[i], visible[i]);
  }
};

TEST(CodeIndexTest, RowsByTurnsAreCodedAsEachSequenceAloneWouldCodeThem) {
  MadeKeys keys(64 * 60);
  SideBySide both(/*own=*/16, /*shared=*/0, 60);
  // What neither sees may be anything: no estimate hears of it.
  for (int r = 59 * 64; r < 60 * 64; ++r)
    std::memset(keys.k.data() + r * keys.row_bytes, 0xFF, keys.row_bytes);
  CodeIndex together, alone[2];
  for (int s = 32; s < 60; ++s) {  // 28 segments close one after the other
    for (int i = 0; i < 2; ++i) both.Close(i, s);
    if (s == 59) {
      for (int r = 59 * 64 + 1; r < 60 * 64; r += 2) keys.Rewrite(r, r);
      both.segments[0].pop_back();
    }
    for (int i = 0; i < 2; ++i) {
      both.Refresh(together, keys.View(), i);
      both.Refresh(alone[i], keys.View(), i);
      ASSERT_EQ(both.Estimated(together, i), both.Estimated(alone[i], i)) << s;
    }
  }
  for (float estimate : both.Estimated(together, 1)) EXPECT_TRUE(std::isfinite(estimate));
  EXPECT_EQ(together.n_strands(), 2u);
  EXPECT_EQ(together.n_trained(), 2u);
  EXPECT_EQ(together.n_coded(), alone[0].n_coded() + alone[1].n_coded());
}

TEST(CodeIndexTest, SequencesSideBySideDoNotCodeByTurns) {
  const MadeKeys keys(64 * 300);
  // Of unlike length: the one's codebook would be of too many segments for the other.
  SideBySide both(/*own=*/70, /*shared=*/2, 300);
  both.segments[1].erase(both.segments[1].begin(), both.segments[1].begin() + 60);
  CodeIndex index;
  uint64_t n_segments = 0;
  for (int s = 142; s < 150; ++s) {
    for (int i = 0; i < 2; ++i) both.Close(i, s);
    for (int step = 0; step < 32; ++step) {
      for (int i = 0; i < 2; ++i) both.Refresh(index, keys.View(), i);
    }
    n_segments = both.segments[0].size() + both.segments[1].size();
    EXPECT_EQ(index.n_coded(), n_segments) << s;
  }
  EXPECT_EQ(index.n_trained(), 2u);
}

TEST(CodeIndexTest, AnothersRowsAreRewrittenWithoutATrace) {
  MadeKeys keys(64 * 60);
  SideBySide both(/*own=*/10, /*shared=*/20, 60);
  CodeIndex index;
  for (int i : {0, 1}) both.Refresh(index, keys.View(), i);
  both.Refresh(index, keys.View(), 0);
  const std::vector<float> before = both.Estimated(index, 0);
  const uint64_t n_coded = index.n_coded();
  // The second sequence goes, and a third takes its cells.
  for (int r = 10 * 64; r < 40 * 64; ++r) {
    if (HasRow(both.visible[0], r)) continue;
    keys.Rewrite(r, 7000 + r);
    index.MarkWritten(r);
    both.Refresh(index, keys.View(), 0);
  }
  EXPECT_EQ(both.Estimated(index, 0), before);
  EXPECT_EQ(index.n_coded(), n_coded);
  EXPECT_EQ(index.n_trained(), 2u);
  // Nothing of the second is left.
  CodeIndex fresh;
  for (CodeIndex* each : {&index, &fresh}) both.Refresh(*each, keys.View(), 1);
  EXPECT_EQ(both.Estimated(index, 1), both.Estimated(fresh, 1));
  EXPECT_EQ(index.n_strands(), 2u);
  // A row of its own.
  both.Refresh(index, keys.View(), 0);
  keys.Rewrite(21 * 64 + 2, 5);
  index.MarkWritten(21 * 64 + 2);
  fresh.Forget();
  for (CodeIndex* each : {&index, &fresh}) both.Refresh(*each, keys.View(), 0);
  EXPECT_EQ(both.Estimated(index, 0), both.Estimated(fresh, 0));
}

// Two sequences with the same beginning that ends within a segment: the rows after it are the
// first's and the second's.
TEST(CodeIndexTest, AForkWithinASegmentIsCodedOnce) {
  const MadeKeys keys(64 * 60);
  SideBySide both(/*own=*/0, /*shared=*/40, 60);
  for (int i : {0, 1}) AddRange(both.visible[i], {0, 20 * 64 + 21});
  CodeIndex index;
  for (int step = 0; step < 5; ++step) {
    for (int i : {0, 1}) both.Refresh(index, keys.View(), i);
  }
  EXPECT_EQ(index.n_trained(), 1u);
  EXPECT_EQ(index.n_coded(), 40u + 1 + 19);
  // Both read the same codes of what they share.
  RowMask common(240, 0);
  AddRange(common, {0, 20 * 64 + 21});
  both.Refresh(index, keys.View(), 0);
  const std::vector<float> first = Estimates(index, Segments(0, 21), common);
  both.Refresh(index, keys.View(), 1);
  EXPECT_EQ(Estimates(index, Segments(0, 21), common), first);
}

TEST(CodeIndexTest, MoreSequencesThanStrandsStillCode) {
  const MadeKeys keys(64 * 20);
  CodeIndex index;
  CodeIndex::Request request;
  const std::vector<int32_t> segments = Segments(0, 20);
  request.segments = segments;
  for (int i = 0; i < 64; ++i) {  // a row of each segment each
    RowMask visible(80, 0);
    for (int s = 0; s < 20; ++s) AddRow(visible, s * 64 + i);
    request.visible = visible;
    index.Refresh(keys.View(), request);
    CodeIndex alone;
    alone.Refresh(keys.View(), request);
    EXPECT_EQ(Estimates(index, segments, visible), Estimates(alone, segments, visible)) << i;
  }
  EXPECT_EQ(index.n_strands(), 32u);
  EXPECT_EQ(index.n_coded(), 64u * 20);
}

TEST(CodeIndexTest, TrainedWithoutQueriesIsTrainedAgainWithThem) {
  const MadeKeys keys(1600);
  CodeIndex index;
  QueryMoment queries;
  queries.mean.assign(kHeads * 64, 1.0f);
  queries.n_rows = 1;
  queries.mean[5] = 400.0f;
  Refresh(index, keys.View(), Segments(0, 20), 1, &queries);
  EXPECT_EQ(index.n_trained(), 1u);
  const std::vector<float> before = Estimates(index, Segments(0, 20));
  queries.n_rows = CodeIndex::kFewQueries;
  Refresh(index, keys.View(), Segments(0, 20), 1, &queries);
  EXPECT_EQ(index.n_trained(), 2u);
  EXPECT_NE(Estimates(index, Segments(0, 20)), before);
  Refresh(index, keys.View(), Segments(0, 20), 1, &queries);
  EXPECT_EQ(index.n_trained(), 2u);
}

TEST(CodeIndexTest, RotatedCodesLiveAsOthersDo) {
  MadeKeys keys(1600);
  QueryMoment queries{.mean = std::vector<float>(kHeads * 64, 1.0f),
                      .n_rows = CodeIndex::kFewQueries,
                      .products = std::vector<float>(kHeads * 64 * 64, 0.5f),
                      .n_product_rows = CodeIndex::kFewQueries};
  for (int i = 0; i < kHeads * 64; ++i) queries.products[i * 64 + i % 64] = 1.0f;
  const std::vector<int32_t> known = Segments(0, 20), all = Segments(0, 25);
  CodeIndex index, two;
  Refresh(index, keys.View(), known, 1, &queries, true);
  EXPECT_TRUE(index.Book(index.book_of(3), 1).rotated());
  Refresh(index, keys.View(), all, 1, &queries, true);
  EXPECT_EQ(index.n_trained(), 1u);
  Refresh(two, keys.View(), known, 2, &queries, true);
  Refresh(two, keys.View(), all, 2, &queries, true);
  const std::vector<float> before = Estimates(index, all);
  EXPECT_EQ(Estimates(two, all), before);
  // Rewritten and written back; a row that the codebook knew; rolled back below its training.
  keys.Rewrite(23 * 64 + 5, 99);
  index.MarkWritten(23 * 64 + 5);
  Refresh(index, keys.View(), all, 1, &queries, true);
  EXPECT_EQ(index.n_trained(), 1u);
  EXPECT_NE(Estimates(index, all), before);
  keys.k = MadeKeys(1600).k;
  index.MarkWritten(23 * 64 + 5);
  Refresh(index, keys.View(), all, 1, &queries, true);
  EXPECT_EQ(Estimates(index, all), before);
  index.MarkWritten(7);
  Refresh(index, keys.View(), all, 1, &queries, true);
  EXPECT_EQ(index.n_trained(), 2u);
  CodeIndex fresh;
  Refresh(index, keys.View(), known, 1, &queries, true);
  Refresh(fresh, keys.View(), known, 1, &queries, true);
  EXPECT_EQ(Estimates(index, known), Estimates(fresh, known));
  // The products matter; without them the diagonal does.
  queries.products[5] = 0.9f;
  CodeIndex other, diagonal;
  Refresh(other, keys.View(), known, 1, &queries, true);
  EXPECT_NE(Estimates(other, known), Estimates(fresh, known));
  queries.n_product_rows = CodeIndex::kFewQueries - 1;
  Refresh(diagonal, keys.View(), known, 1, &queries, true);
  EXPECT_TRUE(diagonal.Book(diagonal.book_of(3), 1).rotated());
  EXPECT_NE(Estimates(diagonal, known), Estimates(other, known));
  // The other form starts anew.
  CodeIndex plain;
  Refresh(plain, keys.View(), known, 1, &queries);
  Refresh(index, keys.View(), known, 1, &queries);
  EXPECT_FALSE(index.Book(index.book_of(3), 1).rotated());
  EXPECT_EQ(Estimates(index, known), Estimates(plain, known));
}

TEST(CodeIndexTest, ForgetsAllAndThreadsChangeNothing) {
  const MadeKeys keys(1600);
  CodeIndex index, two;
  const std::vector<int32_t> all = Segments(0, 25);
  Refresh(index, keys.View(), all, 1);
  Refresh(two, keys.View(), all, 2);
  EXPECT_EQ(Estimates(index, all), Estimates(two, all));
  index.Forget();
  for (int32_t s : all) EXPECT_LT(index.book_of(s), 0);
  Refresh(index, keys.View(), all);
  EXPECT_EQ(index.n_trained(), 2u);
  EXPECT_EQ(Estimates(index, all), Estimates(two, all));
}

TEST(CodeIndexTest, TakesTwoHundredthsOfTheCache) {
  const MadeKeys keys(8192);
  CodeIndex index;
  Refresh(index, keys.View(), Segments(0, 126));
  EXPECT_LT(static_cast<double>(index.bytes()), 0.021 * 2 * static_cast<double>(keys.k.size()));
  EXPECT_GT(index.bytes(), keys.k.size() / 32);
}

TEST(CodeIndexTest, TakesNoMoreAfterGrowth) {
  const MadeKeys keys(8192);
  CodeIndex index;
  KvView view = keys.View();
  for (const int n_rows : {5120, 7168, 8192}) {
    view.n_rows = n_rows;
    Refresh(index, view, Segments(0, n_rows / kSegmentRows - 2));
  }
  EXPECT_LT(static_cast<double>(index.bytes()), 0.021 * 2 * static_cast<double>(keys.k.size()));
}

}  // namespace
}  // namespace condense
