// Attention of whole nodes on made caches: against the double reference, and the invariants that
// exact decoding rests on (threads, rows at once, full budget), bit for bit.
#include "attention/layer_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/test_node.h"
#include "attention/workspace.h"
#include "kernels/summary.h"

namespace condense {
namespace {

TEST(LayerAttentionTest, DenseAgreesWithTheReference) {
  for (int rows : {1, 2, 5, 40}) {
    for (int cache : {40, 113, 512, 1100}) {
      Made made(2, rows, cache, 6, 2, 64);
      Attend(made.Node(), "dense", 2);
      ExpectReference(made);
    }
  }
}

TEST(LayerAttentionTest, SinksTakeMassAndGiveNoValue) {
  Made made(1, 3, 600, 6, 3, 64);
  made.sinks = {3.0f, -1.0f, 0.0f, 8.0f, 1.0f, 2.0f};
  Attend(made.Node(), "dense", 2);
  ExpectReference(made);
}

TEST(LayerAttentionTest, SoftcapBoundsLogits) {
  Made made(1, 1, 700, 4, 2, 64);
  AttentionNode node = made.Node();
  node.softcap = 2.0f;
  Attend(node, "dense", 1);
  ExpectReference(made, 2.0f);
}

TEST(LayerAttentionTest, NoMaskMeansEveryRow) {
  Made made(1, 2, 90, 4, 2, 64);
  std::fill(made.mask.begin(), made.mask.end(), 0);
  AttentionNode node = made.Node();
  node.mask = nullptr;
  Attend(node, "dense", 1);
  ExpectReference(made);
}

TEST(LayerAttentionTest, RowWithoutVisibleRowsIsZero) {
  Made made(1, 2, 64, 4, 2, 64);
  std::fill_n(made.Mask(0, 0), made.n_cache, kHalfNegInf);
  Attend(made.Node(), "dense", 2);
  for (int i = 0; i < made.n_heads * made.dim; ++i) EXPECT_EQ(made.out[i], 0.0f);
}

TEST(LayerAttentionTest, ThreadsAndRowsAtOnceChangeNoBit) {
  for (int rows : {1, 2, 7, 16, 33, 130}) {
    Made made(1, rows, 1500, 9, 3, 64, 5);
    Attend(made.Node(), "dense", 1);
    const std::vector<float> once = made.out;
    Attend(made.Node(), "dense", 2);
    EXPECT_TRUE(SameBits(once.data(), made.out.data(), once.size())) << rows;
    for (int r = 0; r < rows; ++r) {
      Attend(made.Node(r, 1), "dense", 2);
      ASSERT_TRUE(SameBits(once.data() + r * 9 * 64, made.out.data(), 9 * 64))
          << "row " << r << " of " << rows;
    }
  }
}

TEST(LayerAttentionTest, ControlDiffersInLastBitsOnly) {
  Made made(1, 1, 3000, 9, 3, 64, 11);
  Attend(made.Node(), "dense", 2);
  const std::vector<float> forward = made.out;
  Attend(made.Node(), "dense:order=reversed", 2);
  ExpectReference(made);
  EXPECT_FALSE(SameBits(forward.data(), made.out.data(), forward.size()));
}

TEST(LayerAttentionTest, SparseStepReadsWhatItCounts) {
  Made made(1, 1, 2000, 9, 3, 64, 13);
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, nullptr, &steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE(steps[0].sparse);
  EXPECT_EQ(steps[0].visible_rows, 2000u);
  EXPECT_EQ(steps[0].unique_rows, 3u * (1 + 64 + 4 * 16));
  EXPECT_EQ(steps[0].nominal_rows, 9u * (1 + 64 + 4 * 16));
  EXPECT_EQ(steps[0].k_bytes, steps[0].unique_rows * 64 * sizeof(float));
  EXPECT_EQ(steps[0].dense_bytes, 2000u * 3 * 2 * 64 * sizeof(float));
  EXPECT_GT(steps[0].summary_bytes, 0u);
}

TEST(LayerAttentionTest, WithoutSeenWritesNothingIsSparse) {
  Made made(1, 1, 2000, 9, 3, 64);
  LayerCache cache;
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, &cache, &steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_FALSE(steps[0].sparse);
  EXPECT_EQ(steps[0].reason, Fallback::kUntracked);
  ExpectReference(made);
}

TEST(LayerAttentionTest, AdditiveMaskIsComputedDense) {
  Made made(1, 1, 600, 4, 2, 64);
  made.Mask(0, 0)[17] = 0x3C00;  // 1.0
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, nullptr, &steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].reason, Fallback::kBias);
}

// Two sequences in one stream: rows 0 … 799 and 800 … 1597 of one cache, one new row each.
TEST(LayerAttentionTest, SequencesInOneBatchAreEachADecodeStep) {
  Made made(1, 2, 1600, 9, 3, 64, 17);
  for (int j = 0; j < 1600; ++j) {
    made.Mask(0, 0)[j] = j < 800 || j == 1598 ? 0 : kHalfNegInf;
    made.Mask(0, 1)[j] = (j >= 800 && j < 1598) || j == 1599 ? 0 : kHalfNegInf;
  }
  LayerCache cache;
  for (int row = 0; row < 1600; ++row) cache.MarkWritten(0, row);
  cache.Stream(0).written = {1598, 1599};
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, &cache, &steps);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_TRUE(steps[0].sparse);
  EXPECT_TRUE(steps[1].sparse);
  const std::vector<float> together = made.out;
  for (int r = 0; r < 2; ++r) {
    Attend(made.Node(r, 1), "mean:blocks=4", 1);
    EXPECT_TRUE(SameBits(together.data() + r * 9 * 64, made.out.data(), 9 * 64));
  }
}

// A server's batch: one sequence's decode step beside another's prompt.
TEST(LayerAttentionTest, DecodeStepBesideALongPromptIsSparse) {
  constexpr int kPrompt = 200, kOwn = 1200, kCache = kOwn + kPrompt;
  Made made(1, 1 + kPrompt, kCache, 6, 2, 64, 29);
  LayerCache cache;
  for (int row = 0; row < kCache; ++row) cache.MarkWritten(0, row);
  cache.Stream(0).written = {kOwn - 1};
  for (int r = 0; r < kPrompt; ++r) cache.Stream(0).written.push_back(kOwn + r);
  for (int j = 0; j < kCache; ++j) {
    made.Mask(0, 0)[j] = j < kOwn ? 0 : kHalfNegInf;
    for (int r = 0; r < kPrompt; ++r) {
      made.Mask(0, 1 + r)[j] = j >= kOwn && j <= kOwn + r ? 0 : kHalfNegInf;
    }
  }
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, &cache, &steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE(steps[0].sparse);
  EXPECT_EQ(steps[0].visible_rows, static_cast<uint64_t>(kOwn));
}

TEST(LayerAttentionTest, RowsOfOneSequenceAreDense) {
  Made made(1, 3, 1600, 9, 3, 64, 19);
  LayerCache cache;
  for (int row = 0; row < 1600; ++row) cache.MarkWritten(0, row);
  cache.Stream(0).written = {1597, 1598, 1599};
  std::vector<StepCount> steps;
  Attend(made.Node(), "mean:blocks=4", 2, &cache, &steps);
  EXPECT_TRUE(steps.empty());
  ExpectReference(made);
}

// Reads what it is told to.
struct Told : Policy {
  Selection selection;
  void Select(const LayerQuery&, Selection& out) const override { out = selection; }
};

// One row in `one_in` of 1 … n - 1 and the last `window`, all of them with K, every other with V.
Told Scattered(const Made& made, int one_in, int window, bool per_query_head, bool split) {
  Told told;
  Selection& selection = told.selection;
  selection.dense = false;
  selection.per_query_head = per_query_head;
  selection.n_blocks = BlocksFor(made.n_cache);
  const int n_sets = per_query_head ? made.n_heads : made.n_kv_heads;
  selection.k_masks.assign(static_cast<size_t>(n_sets) * selection.n_blocks, 0);
  if (split) selection.v_masks = selection.k_masks;
  std::mt19937 random(31);
  for (int set = 0; set < n_sets; ++set) {
    const size_t at = static_cast<size_t>(set) * selection.n_blocks;
    for (int row = 0; row < made.n_cache; ++row) {
      if (random() % one_in != 0 && row < made.n_cache - window) continue;
      AddRow(std::span(selection.k_masks).subspan(at), row);
      if (split && (random() & 1)) AddRow(std::span(selection.v_masks).subspan(at), row);
    }
  }
  return told;
}

// The first row's output over the rows told, in double, against what was computed.
void ExpectToldRows(const Made& made, const Selection& selection) {
  for (int h = 0; h < made.n_heads; ++h) {
    const int g = h / (made.n_heads / made.n_kv_heads);
    const int set = selection.per_query_head ? h : g;
    const std::span k_mask(selection.KMask(set), static_cast<size_t>(selection.n_blocks));
    const std::span v_mask(selection.VMask(set), static_cast<size_t>(selection.n_blocks));
    double sum = 0;
    std::vector<double> o(made.dim, 0.0);
    for (int j = 0; j < made.n_cache; ++j) {
      if (!HasRow(k_mask, j)) continue;
      const size_t at = (static_cast<size_t>(j) * made.n_kv_heads + g) * made.dim;
      double z = 0;
      for (int c = 0; c < made.dim; ++c) z += double(made.q[h * made.dim + c]) * made.k[at + c];
      const double p = std::exp(z / std::sqrt(double(made.dim)));
      sum += p;
      for (int c = 0; HasRow(v_mask, j) && c < made.dim; ++c) o[c] += p * made.v[at + c];
    }
    for (int c = 0; c < made.dim; ++c)
      ASSERT_NEAR(made.out[h * made.dim + c], o[c] / sum, 2e-5) << h << ' ' << c;
  }
}

TEST(LayerAttentionTest, ScatteredRowsAgreeWithTheReference) {
  for (bool per_query_head : {false, true}) {
    for (bool split : {false, true}) {
      // From nearly every row of a block to a row in every third block.
      for (int one_in : {1, 2, 8, 50}) {
        for (int cache : {700, 3001}) {
          SCOPED_TRACE(one_in);
          Made made(1, 1, cache, 6, 2, 64, 37);
          const Told told = Scattered(made, one_in, 70, per_query_head, split);
          std::vector<float> once;
          for (int n_threads : {1, 2}) {
            LayerCache layer_cache;
            layer_cache.MarkWritten(0, cache - 1);
            AttentionSink sink;
            ComputeAttention(made.Node(), layer_cache, told, n_threads, sink);
            ASSERT_NO_FATAL_FAILURE(ExpectToldRows(made, told.selection));
            if (once.empty()) once = made.out;
            EXPECT_TRUE(SameBits(once.data(), made.out.data(), once.size()));
          }
        }
      }
    }
  }
}

// Two of three rows, read as copies.
struct CopiesOfSome : Policy {
  void Select(const LayerQuery& query, Selection& selection) const override {
    query.copies->Refresh(*query.kv, query.visible, query.n_threads);
    selection.dense = false;
    selection.n_blocks = static_cast<int>(query.visible.size());
    for (int g = 0; g < query.kv->n_kv_heads; ++g)
      selection.k_masks.insert(selection.k_masks.end(), query.visible.begin(), query.visible.end());
    for (size_t b = 0; b < selection.k_masks.size(); ++b) selection.k_masks[b] &= 0xDB6D;
    selection.reads_copies = true;
    selection.copies = query.copies->View(*query.kv);
  }
};

TEST(LayerAttentionTest, CopiesAreReadAndCounted) {
  Made made(1, 1, 1200, 6, 2, 64);
  LayerCache cache;
  cache.MarkWritten(0, 1199);
  AttentionSink sink;
  StepCount count;
  sink.on_step = [&](const StepCount& step) { count = step; };
  ComputeAttention(made.Node(), cache, CopiesOfSome(), 2, sink);
  EXPECT_EQ(count.k_bytes, 2 * 68u * 825);  // 11 of 16 rows
  EXPECT_EQ(count.v_bytes, count.k_bytes);
  EXPECT_EQ(count.dense_bytes, 2 * 2 * 256u * 1200);
  EXPECT_GT(cache.code_bytes(), 1200u * 2 * 2 * 68);
  // The same as reading the rounded rows themselves.
  const KvView copies = cache.Stream(0).copies.View(made.Node().kv);
  for (int row = 0; row < 1200; ++row) {
    for (int g = 0; g < 2; ++g) {
      const size_t at = (static_cast<size_t>(row) * 2 + g) * 64;
      SummarizeRows(copies.KeyRow(g, row), copies.k_row, copies.k_type, 1, 64,
                    {.mean = made.k.data() + at});
      SummarizeRows(copies.ValueRow(g, row), copies.v_row, copies.v_type, 1, 64,
                    {.mean = made.v.data() + at});
    }
    if (!HasRow(std::vector<uint16_t>{0xDB6D}, row % 16)) made.Mask(0, 0)[row] = kHalfNegInf;
  }
  ExpectReference(made, 0, 1e-4);  // queries are rounded beside 8-bit keys
}

TEST(BlockChoiceTest, ScatteredRowsAreListedOneByOne) {
  Made made(1, 1, 3001, 6, 2, 64);
  for (bool per_query_head : {false, true}) {
    for (int one_in : {1, 4, 20}) {
      const Selection selection = Scattered(made, one_in, 70, per_query_head, true).selection;
      BlockChoice choice;
      choice.List(selection, 1, 3);
      EXPECT_EQ(choice.rows.empty(), one_in == 1);
      const int n_sets = per_query_head ? 3 : 1;
      for (int head = 0; head < 3; ++head) {
        const int set = per_query_head ? 3 + head : 1;
        RowMask k(selection.n_blocks), v(selection.n_blocks);
        for (int i = 0; i < choice.n_blocks * kBlockRows; ++i) {
          const int row = choice.rows.empty()
                              ? choice.blocks[i / kBlockRows] * kBlockRows + i % kBlockRows
                              : choice.rows[i];
          const size_t n = static_cast<size_t>(choice.n_blocks);
          if (HasRow({choice.KMask(head), n}, i)) AddRow(k, row);
          if (HasRow({choice.VMask(head), n}, i)) AddRow(v, row);
        }
        EXPECT_TRUE(std::equal(k.begin(), k.end(), selection.KMask(set)));
        EXPECT_TRUE(std::equal(v.begin(), v.end(), selection.VMask(set)));
        EXPECT_EQ(choice.k_masks.size(), static_cast<size_t>(n_sets) * choice.n_blocks);
      }
    }
  }
}

}  // namespace
}  // namespace condense
