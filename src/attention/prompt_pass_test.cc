// What a prompt's queries made of the rows: column sums against plain loops in double, the same
// bits however the prompt is cut and on how many threads, and what ends a record.
#include "attention/prompt_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "kernels/half.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr int kDim = 32;

// An F32 cache of one stream, and the prompts in it. Queries are those of the cells that they
// write.
class Prompts {
 public:
  Prompts(int n_cells, int n_kv_heads, int group, float softcap = 0, bool sinks = false)
      : n_cells_(n_cells), n_kv_heads_(n_kv_heads), group_(group), softcap_(softcap) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    k_.resize(static_cast<size_t>(n_cells) * n_kv_heads * kDim);
    q_.resize(static_cast<size_t>(n_cells) * n_heads() * kDim);
    for (float& x : k_) x = normal(random);
    for (float& x : q_) x = 1.5f * normal(random);
    v_ = k_;
    if (sinks) sinks_.assign(n_heads(), 1.0f);
    bias_.assign(n_cells, 0.0f);
  }

  int n_heads() const { return n_kv_heads_ * group_; }
  PromptWants wants{.windows = {0}, .last_queries = 0};
  int n_threads = 1;

  // One node: `rows` are the cells of its query rows, each with the cells that it sees.
  struct Row {
    int cell;
    std::vector<int> sees;
  };
  void Node(const std::vector<Row>& rows) {
    const int n = static_cast<int>(rows.size());
    std::vector<float> q(static_cast<size_t>(n) * n_heads() * kDim), out(q.size());
    std::vector<uint16_t> mask(static_cast<size_t>(n) * n_cells_, kF16MinusInf);
    for (int i = 0; i < n; ++i) {
      cache.MarkWritten(0, rows[i].cell);
      std::copy_n(Query(rows[i].cell, 0), n_heads() * kDim, q.begin() + i * n_heads() * kDim);
      for (int cell : rows[i].sees)
        mask[static_cast<size_t>(i) * n_cells_ + cell] = F16FromF32Saturated(bias_[cell]);
    }
    AttentionNode node;
    node.n_rows = n;
    node.n_query_heads = n_heads();
    node.q = reinterpret_cast<const std::byte*>(q.data());
    node.q_head = sizeof(float) * kDim;
    node.q_row = node.q_stream = node.q_head * n_heads();
    node.kv = View();
    node.mask = reinterpret_cast<const std::byte*>(mask.data());
    node.mask_row = node.mask_stream = 2 * static_cast<size_t>(n_cells_);
    node.scale = kScale;
    node.softcap = softcap_;
    node.sinks = sinks_.empty() ? nullptr : sinks_.data();
    node.out = out.data();
    node.prompt_wants = &wants;
    AttentionSink sink;
    const std::unique_ptr<Policy> policy = std::move(MakePolicy("dense")->policy);
    ComputeAttention(node, cache, *policy, n_threads, sink);
  }
  // The cells in their order, `cut` rows a node; what they see besides: `before`.
  void Prompt(const std::vector<int>& cells, int cut, std::vector<int> before = {}) {
    std::vector<Row> rows;
    for (int cell : cells) {
      before.push_back(cell);
      rows.push_back({cell, before});
      if (static_cast<int>(rows.size()) < cut) continue;
      Node(rows);
      rows.clear();
    }
    if (!rows.empty()) Node(rows);
  }

  // What `cell`'s head gives each of `sees`, in double.
  std::vector<double> Shares(int cell, int head, const std::vector<int>& sees) const {
    std::vector<double> p(n_cells_, 0.0);
    double sum = 0;
    for (int seen : sees) {
      double z = 0;
      for (int c = 0; c < kDim; ++c)
        z += double(Query(cell, head)[c]) * Key(seen, head / group_)[c];
      z *= kScale;
      if (softcap_ > 0) z = softcap_ * std::tanh(z / softcap_);
      p[seen] = std::exp(z + bias_[seen]);
      sum += p[seen];
    }
    for (double& x : p) x /= sum;
    return p;
  }
  // [head][cell] of a prompt by window: queries that see the cell among the last so many count.
  using HeadSums = std::vector<std::vector<double>>;
  std::map<int, HeadSums> Reference(const std::vector<int>& cells,
                                    const std::vector<int>& windows) const {
    std::map<int, HeadSums> sums;
    for (int window : windows) sums[window].assign(n_heads(), std::vector<double>(n_cells_, 0.0));
    for (int h = 0; h < n_heads(); ++h) {
      std::vector<int> sees;
      for (int cell : cells) {
        sees.push_back(cell);
        const std::vector<double> p = Shares(cell, h, sees);
        for (auto& [window, of_window] : sums) {
          const size_t n = window == 0 ? sees.size() : std::min<size_t>(window, sees.size());
          for (size_t i = sees.size() - n; i < sees.size(); ++i)
            of_window[h][sees[i]] += p[sees[i]];
        }
      }
    }
    return sums;
  }

  const SeenPrompt* Find(const std::vector<int>& sees) {
    RowMask visible(BlocksFor(n_cells_), 0);
    for (int cell : sees) AddRow(visible, cell);
    return cache.Stream(0).prompts.Find(View(), visible);
  }
  void SetBias(int cell, float bias) { bias_[cell] = bias; }
  float* Key(int cell, int kv_head) {
    return &k_[(static_cast<size_t>(cell) * n_kv_heads_ + kv_head) * kDim];
  }
  const float* Query(int cell, int head) const {
    return &q_[(static_cast<size_t>(cell) * n_heads() + head) * kDim];
  }

  LayerCache cache;

 private:
  static constexpr float kScale = 0.25f;

  const float* Key(int cell, int kv_head) const {
    return &k_[(static_cast<size_t>(cell) * n_kv_heads_ + kv_head) * kDim];
  }
  KvView View() const {
    KvView view;
    view.k_type = view.v_type = KvType::kF32;
    view.k = reinterpret_cast<const std::byte*>(k_.data());
    view.v = reinterpret_cast<const std::byte*>(v_.data());
    view.k_head = view.v_head = sizeof(float) * kDim;
    view.k_row = view.v_row = view.k_head * n_kv_heads_;
    view.n_rows = n_cells_;
    view.n_kv_heads = n_kv_heads_;
    view.k_dim = view.v_dim = kDim;
    return view;
  }

  const int n_cells_, n_kv_heads_, group_;
  const float softcap_;
  std::vector<float> k_, v_, q_, sinks_, bias_;
};

std::vector<int> Cells(int begin, int end, int step = 1) {
  std::vector<int> cells;
  for (int cell = begin; cell < end; cell += step) cells.push_back(cell);
  return cells;
}

void ExpectSums(const SeenPrompt* record, int window,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_NE(record, nullptr);
  const SeenPrompt::Sums* sums = record->SumsOf(window);
  ASSERT_NE(sums, nullptr);
  ASSERT_EQ(sums->heads.size(), expected.size());
  for (size_t h = 0; h < expected.size(); ++h) {
    for (size_t cell = 0; cell < expected[h].size(); ++cell) {
      // 24 bits a query, and logits of some ten multiply-adds.
      EXPECT_NEAR(SeenPrompt::Sum(*sums, static_cast<int>(h), static_cast<int>(cell)),
                  expected[h][cell], 1e-5 * (1 + expected[h][cell]))
          << h << ' ' << cell;
    }
  }
}

TEST(PromptPassTest, SumsAreThoseOfPlainLoops) {
  for (const auto& [n_kv_heads, group] : {std::pair(1, 1), std::pair(2, 3), std::pair(1, 7)}) {
    for (float softcap : {0.0f, 4.0f}) {
      // Sinks take mass of the output's, not of the shares among rows.
      Prompts prompts(620, n_kv_heads, group, softcap, /*sinks=*/softcap == 0);
      prompts.wants.windows = {0, 50};
      const std::vector<int> cells = Cells(5, 605);
      prompts.Prompt(cells, 256);
      for (const auto& [window, expected] : prompts.Reference(cells, prompts.wants.windows))
        ExpectSums(prompts.Find(cells), window, expected);
    }
  }
}

TEST(PromptPassTest, AMasksBiasCounts) {
  Prompts prompts(200, 1, 2);
  for (int cell = 0; cell < 200; cell += 3) prompts.SetBias(cell, -1.5f);
  const std::vector<int> cells = Cells(0, 180);
  prompts.Prompt(cells, 60);
  ExpectSums(prompts.Find(cells), 0, prompts.Reference(cells, {0}).at(0));
}

TEST(PromptPassTest, CutsAndThreadsChangeNoBit) {
  const std::vector<int> cells = Cells(3, 700);
  Prompts whole(1024, 2, 3);
  whole.wants = {.windows = {0, 64}, .last_queries = 40};
  whole.Prompt(cells, 1024);
  const SeenPrompt* expected = whole.Find(cells);
  ASSERT_NE(expected, nullptr);
  for (int cut : {512, 100, 37, 17}) {
    for (int n_threads : {1, 2}) {
      Prompts other(1024, 2, 3);
      other.wants = whole.wants;
      other.n_threads = n_threads;
      // 697 rows: none is left alone, which would be a decode step.
      other.Prompt(cells, cut);
      const SeenPrompt* record = other.Find(cells);
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(record->n_queries, expected->n_queries);
      for (int window : {0, 64})
        EXPECT_EQ(record->SumsOf(window)->heads, expected->SumsOf(window)->heads) << cut;
      ASSERT_EQ(record->n_last, 40);
      for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(record->LastQuery(i).q, expected->LastQuery(i).q);
        EXPECT_EQ(record->LastQuery(i).visible, expected->LastQuery(i).visible);
      }
    }
  }
}

TEST(PromptPassTest, LastQueriesAreTheLast) {
  Prompts prompts(256, 1, 2);
  prompts.wants = {.windows = {}, .last_queries = 8};
  prompts.Prompt(Cells(0, 5), 5);
  EXPECT_EQ(prompts.Find(Cells(0, 5))->n_last, 5);
  prompts.Prompt(Cells(5, 130), 50, Cells(0, 5));
  const SeenPrompt* record = prompts.Find(Cells(0, 130));
  ASSERT_EQ(record->n_last, 8);
  for (int i = 0; i < 8; ++i) {
    const int cell = 122 + i;
    EXPECT_EQ(record->LastQuery(i).q[3], prompts.Query(cell, 0)[3]);
    EXPECT_EQ(CountRows(record->LastQuery(i).visible), cell + 1);
  }
}

// Two prompts in the same nodes, rows by turns: each has what it has alone.
TEST(PromptPassTest, SequencesKeepTheirOwn) {
  const std::vector<int> a = Cells(0, 300, 2), b = Cells(1, 301, 2);
  Prompts both(320, 2, 2), only_a(320, 2, 2), only_b(320, 2, 2);
  std::vector<Prompts::Row> rows;
  for (int i = 0; i < 150; ++i) {
    rows.push_back({a[i], {a.begin(), a.begin() + i + 1}});
    rows.push_back({b[i], {b.begin(), b.begin() + i + 1}});
    if (rows.size() < 100) continue;
    both.Node(rows);
    rows.clear();
  }
  only_a.Prompt(a, 50);
  only_b.Prompt(b, 50);
  EXPECT_EQ(both.Find(a)->SumsOf(0)->heads, only_a.Find(a)->SumsOf(0)->heads);
  EXPECT_EQ(both.Find(b)->SumsOf(0)->heads, only_b.Find(b)->SumsOf(0)->heads);
}

TEST(PromptPassTest, APromptEndsWithItsNewestRow) {
  Prompts prompts(512, 1, 2);
  const std::vector<int> cells = Cells(0, 300);
  prompts.Prompt(cells, 150);
  // Steps that follow see it; who does not see its last row does not.
  EXPECT_NE(prompts.Find(Cells(0, 320)), nullptr);
  EXPECT_EQ(prompts.Find(Cells(0, 299)), nullptr);
  // A freed row's place taken by another is a row of which nothing is known.
  prompts.cache.MarkWritten(0, 7);
  prompts.cache.Stream(0).written.clear();  // by a node of its own
  const SeenPrompt* record = prompts.Find(cells);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(SeenPrompt::Sum(*record->SumsOf(0), 1, 7), 0.0f);
  EXPECT_GT(SeenPrompt::Sum(*record->SumsOf(0), 1, 8), 0.0f);
  // Another prompt over the end of the first.
  prompts.Prompt(Cells(250, 340), 90, Cells(0, 250));
  record = prompts.Find(Cells(0, 340));
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->n_queries, 90);
}

TEST(PromptPassTest, AForgottenCacheIsComparedFirst) {
  Prompts prompts(512, 2, 2);
  const std::vector<int> cells = Cells(0, 300);
  prompts.Prompt(cells, 150);
  const auto sums = prompts.Find(cells)->SumsOf(0)->heads;
  prompts.cache.Forget();
  ASSERT_NE(prompts.Find(cells), nullptr) << "nothing was written";
  EXPECT_EQ(prompts.Find(cells)->SumsOf(0)->heads, sums);
  for (int kv_head : {0, 1}) prompts.Key(123, kv_head)[0] += 1;
  ASSERT_NE(prompts.Find(cells), nullptr) << "nobody said so";
  prompts.cache.Forget();
  EXPECT_EQ(prompts.Find(cells), nullptr);
}

TEST(PromptPassTest, NothingIsKeptWhereNobodyAsks) {
  Prompts prompts(512, 1, 2);
  prompts.wants = {};
  prompts.Prompt(Cells(0, 300), 150);
  EXPECT_EQ(prompts.Find(Cells(0, 300)), nullptr);
  EXPECT_EQ(prompts.cache.Stream(0).prompts.bytes(), 0u);
  const size_t before = prompts.cache.bytes();
  prompts.wants.windows = {0};
  prompts.Prompt(Cells(300, 400), 100, Cells(0, 300));
  // Sums of 512 rows and two heads.
  EXPECT_GE(prompts.cache.bytes(), before + 512 * 2 * sizeof(float));
}

TEST(PromptPassTest, WantsAddUp) {
  PromptWants wants;
  EXPECT_TRUE(wants.empty());
  wants.Add({.windows = {64}, .last_queries = 1});
  wants.Add({.windows = {0}, .last_queries = 32});
  wants.Add({.windows = {64}, .last_queries = 8});
  EXPECT_EQ(wants, (PromptWants{.windows = {0, 64}, .last_queries = 32}));
}

}  // namespace
}  // namespace condense
