// Attention of whole nodes on made caches: against the double reference, and the invariants that
// exact decoding rests on (threads, rows at once, full budget), bit for bit.
#include "attention/layer_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "attention/workspace.h"
#include "kernels/summary.h"
#include "select/test_choice.h"

namespace condense {
namespace {

constexpr uint16_t kHalfNegInf = 0xFC00;

// F32 cache and queries of one layer; [stream][row][head][dim].
struct Made {
  int n_streams, n_rows, n_cache, n_heads, n_kv_heads, dim;
  std::vector<float> q, k, v, out, sinks;
  std::vector<uint16_t> mask;  // [stream][row][n_cache]

  Made(int streams, int rows, int cache, int heads, int kv_heads, int d, unsigned seed = 1)
      : n_streams(streams),
        n_rows(rows),
        n_cache(cache),
        n_heads(heads),
        n_kv_heads(kv_heads),
        dim(d) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(streams * rows * heads * d);
    k.resize(streams * cache * kv_heads * d);
    v.resize(k.size());
    out.assign(q.size(), -1.0f);
    for (float& x : q) x = 2.0f * normal(random);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    mask.assign(streams * rows * cache, 0);
    Causal();
  }
  // The last n_rows cache rows are the query rows' own.
  void Causal() {
    for (int s = 0; s < n_streams; ++s) {
      for (int r = 0; r < n_rows; ++r) {
        for (int j = 0; j < n_cache; ++j)
          Mask(s, r)[j] = j <= n_cache - n_rows + r ? 0 : kHalfNegInf;
      }
    }
  }
  uint16_t* Mask(int s, int r) { return mask.data() + (s * n_rows + r) * n_cache; }

  AttentionNode Node(int first_row = 0, int rows = -1) {
    AttentionNode node;
    node.layer = 3;
    node.n_streams = n_streams;
    node.n_rows = rows < 0 ? n_rows : rows;
    node.n_query_heads = n_heads;
    node.q = reinterpret_cast<const std::byte*>(q.data() + first_row * n_heads * dim);
    node.q_head = sizeof(float) * dim;
    node.q_row = node.q_head * n_heads;
    node.q_stream = node.q_row * n_rows;
    KvView& kv = node.kv;
    kv.k_type = kv.v_type = KvType::kF32;
    kv.k = reinterpret_cast<const std::byte*>(k.data());
    kv.v = reinterpret_cast<const std::byte*>(v.data());
    kv.k_head = kv.v_head = sizeof(float) * dim;
    kv.k_row = kv.v_row = kv.k_head * n_kv_heads;
    kv.n_rows = n_cache;
    kv.n_kv_heads = n_kv_heads;
    kv.k_dim = kv.v_dim = dim;
    node.k_stream = node.v_stream = kv.k_row * n_cache;
    node.mask = reinterpret_cast<const std::byte*>(mask.data() + first_row * n_cache);
    node.mask_row = sizeof(uint16_t) * n_cache;
    node.mask_stream = node.mask_row * n_rows;
    node.mask_streams = n_streams;
    node.sinks = sinks.empty() ? nullptr : sinks.data();
    node.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    node.out = out.data();
    return node;
  }

  // One query row and head in double.
  std::vector<double> Reference(int s, int r, int h, float softcap = 0.0f) {
    const int g = h / (n_heads / n_kv_heads);
    const float* query = q.data() + ((s * n_rows + r) * n_heads + h) * dim;
    std::vector<double> logits(n_cache, -INFINITY), o(dim, 0.0);
    double max = sinks.empty() ? -INFINITY : sinks[h];
    for (int j = 0; j < n_cache; ++j) {
      if (Mask(s, r)[j] == kHalfNegInf) continue;
      double z = 0;
      for (int c = 0; c < dim; ++c)
        z += double(query[c]) * k[((s * n_cache + j) * n_kv_heads + g) * dim + c];
      z /= std::sqrt(double(dim));
      if (softcap > 0) z = softcap * std::tanh(z / softcap);
      logits[j] = z;
      max = std::max(max, z);
    }
    double sum = sinks.empty() ? 0.0 : std::exp(sinks[h] - max);
    for (int j = 0; j < n_cache; ++j) {
      const double p = std::exp(logits[j] - max);
      sum += p;
      for (int c = 0; c < dim; ++c) o[c] += p * v[((s * n_cache + j) * n_kv_heads + g) * dim + c];
    }
    for (double& x : o) x /= sum;
    return o;
  }
};

void Attend(const AttentionNode& node, const char* spec, int n_threads, LayerCache* cache = nullptr,
            std::vector<StepCount>* steps = nullptr) {
  LayerCache own;
  if (cache == nullptr) {
    cache = &own;
    for (int s = 0; s < node.n_streams; ++s) cache->Stream(s).MarkWritten(node.kv.n_rows - 1);
  }
  AttentionSink sink;
  if (steps) sink.on_step = [&](const StepCount& step) { steps->push_back(step); };
  const std::unique_ptr<Policy> policy = Make(spec);
  ComputeAttention(node, *cache, *policy, n_threads, sink);
}

bool SameBits(const float* a, const float* b, size_t n) {
  return std::equal(a, a + n, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

void ExpectReference(Made& made, float softcap = 0.0f, double error = 2e-5) {
  for (int s = 0; s < made.n_streams; ++s) {
    for (int r = 0; r < made.n_rows; ++r) {
      for (int h = 0; h < made.n_heads; ++h) {
        const std::vector<double> o = made.Reference(s, r, h, softcap);
        const float* out = made.out.data() + ((s * made.n_rows + r) * made.n_heads + h) * made.dim;
        for (int c = 0; c < made.dim; ++c)
          ASSERT_NEAR(out[c], o[c], error) << s << ' ' << r << ' ' << h;
      }
    }
  }
}

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

TEST(LayerAttentionTest, ObserverSeesLogitsWhereItAsks) {
  Made made(1, 1, 1200, 6, 2, 64, 29);
  LayerCache cache;
  cache.MarkWritten(0, 1199);
  int n_heads = 0;
  AttentionSink sink;
  sink.observe_logits = true;
  sink.on_observations = [&](std::span<const Observation> all) {
    for (const Observation& o : all) {
      ++n_heads;
      ASSERT_EQ(o.logits.size(), o.read.size() * kBlockRows);
      double all_sum = 0, left_out = 0;
      for (int row = 0; row < static_cast<int>(o.logits.size()); ++row) {
        if (row >= 1200) {
          EXPECT_EQ(o.logits[row], -INFINITY) << row;
          continue;
        }
        const double weight = std::exp(static_cast<double>(o.logits[row]));
        all_sum += weight;
        if (!HasRow(o.read, row)) left_out += weight;
      }
      EXPECT_NEAR(left_out / all_sum, o.omitted_mass, 1e-5);
    }
  };
  ComputeAttention(made.Node(), cache, *Make("mean:blocks=4"), 2, sink);
  EXPECT_EQ(n_heads, 6);
}

TEST(LayerAttentionTest, ObserverSeesTheOmittedMass) {
  Made made(1, 1, 1200, 6, 2, 64, 23);
  LayerCache cache;
  cache.MarkWritten(0, 1199);
  std::vector<Observation> seen;
  AttentionSink sink;
  sink.on_observations = [&](std::span<const Observation> all) {
    seen.assign(all.begin(), all.end());
    for (const Observation& o : all) {
      EXPECT_EQ(CountRows(o.read), o.rows_read);
      EXPECT_TRUE(HasRow(o.read, 1199)) << "the newest row";
    }
  };
  ComputeAttention(made.Node(), cache, *Make("mean:blocks=4"), 2, sink);
  ASSERT_EQ(seen.size(), 6u);
  for (const Observation& o : seen) {
    EXPECT_EQ(o.layer, 3);
    EXPECT_EQ(o.visible_rows, 1200);
    EXPECT_GE(o.rows_read, 128);  // 15 rows where the anchor's block is among the four
    EXPECT_LE(o.rows_read, 129);
    EXPECT_GT(o.omitted_mass, 0.0f);
    EXPECT_LT(o.omitted_mass, 1.0f);
    EXPECT_LT(o.identity_error, 1e-5f);
    EXPECT_LE(o.output_error, 2 * o.omitted_mass * o.value_norm_max * 1.0001f);
    // What the sparse step returned is off from dense by the reported error.
    const std::vector<double> full = made.Reference(0, 0, o.query_head);
    double error = 0;
    for (int c = 0; c < 64; ++c) {
      const double d = full[c] - made.out[o.query_head * 64 + c];
      error += d * d;
    }
    EXPECT_NEAR(std::sqrt(error), o.output_error, 1e-5);
  }
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
