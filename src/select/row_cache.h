// A layer for tests of policies that choose rows by their keys' codes: keys as models make them
// (some channels vary much, a mean far from zero, slow channels that drift with the position),
// queries that look for a few rows each, every KV type, head size and group.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "base/row_mask.h"
#include "cache/block_index.h"
#include "cache/code_index.h"
#include "kernels/summary.h"
#include "kernels/test_case.h"
#include "select/policy.h"

namespace condense {

class RowCache {
 public:
  struct Shape {
    int n_rows = 4096, n_kv_heads = 2, group = 3, dim = 64;
    KvType type = KvType::kF16;
    unsigned seed = 1;
  };

  explicit RowCache(const Shape& shape) : shape_(shape), random_(shape.seed) {
    for (int r = 0; r < shape.n_rows; ++r) {
      AppendStored(MakeRow(r), shape.type, k_);
      AppendStored(Normal(shape.n_kv_heads * shape.dim), shape.type, v_);
    }
    row_bytes_ = k_.size() / shape.n_rows;
    q_.resize(static_cast<size_t>(n_query_heads()) * shape.dim);
    for (int h = 0; h < n_query_heads(); ++h) LookFor(h, {});
    See({{0, shape.n_rows}});
  }
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  int n_query_heads() const { return shape_.n_kv_heads * shape_.group; }

  void See(const std::vector<RowRange>& ranges) {
    visible_.assign(BlocksFor(shape_.n_rows), 0);
    for (const RowRange& range : ranges) AddRange(visible_, range);
  }

  // A new query of a head: random, and along what sets the keys of `rows` apart, which so get
  // logits far above others'.
  void LookFor(int head, const std::vector<int>& rows) {
    const std::vector<float> noise = Normal(shape_.dim);
    float* q = &q_[static_cast<size_t>(head) * shape_.dim];
    std::copy(noise.begin(), noise.end(), q);
    for (int row : rows) {
      std::vector<float> key = Decoded(head / shape_.group, row);
      float squares = 0;
      for (int c = 0; c < shape_.dim; ++c) {
        key[c] -= Common(c, row);
        squares += key[c] * key[c];
      }
      for (int c = 0; c < shape_.dim; ++c) q[c] += 24.0f / scale() * key[c] / squares;
    }
  }

  // Other keys and values in place of the stored ones; `apart` times as far from what keys have in
  // common.
  void Rewrite(int row, unsigned seed, float apart = 1.0f) {
    random_.seed(seed);
    std::vector<std::byte> bytes;
    AppendStored(MakeRow(row, apart), shape_.type, bytes);
    std::copy(bytes.begin(), bytes.end(), k_.begin() + row * row_bytes_);
    bytes.clear();
    AppendStored(Normal(shape_.n_kv_heads * shape_.dim), shape_.type, bytes);
    std::copy(bytes.begin(), bytes.end(), v_.begin() + row * row_bytes_);
  }
  void MarkWritten(int row) {
    index_.MarkWritten(row);
    codes_.MarkWritten(row);
    copies_.MarkWritten(row);
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.dim)); }

  LayerQuery Query() {
    view_ = View();
    LayerQuery query;
    query.kv = &view_;
    query.index = &index_;
    query.codes = &codes_;
    query.copies = &copies_;
    query.visible = visible_;
    query.n_visible = CountRows(visible_);
    query.q = q_.data();
    query.n_query_heads = n_query_heads();
    query.scale = scale();
    query.memory = &memory_;
    return query;
  }

  // exp(logit) of each row, summed over the group's shares: what a row is worth. [n_rows], 0 where
  // it is not visible.
  std::vector<double> Worth(int kv_head) {
    std::vector<double> worth(shape_.n_rows, 0.0);
    std::vector<std::vector<float>> keys(shape_.n_rows);
    for (int r = 0; r < shape_.n_rows; ++r) {
      if (HasRow(visible_, r)) keys[r] = Decoded(kv_head, r);
    }
    for (int h = kv_head * shape_.group; h < (kv_head + 1) * shape_.group; ++h) {
      std::vector<double> p(shape_.n_rows, 0.0);
      double sum = 0;
      for (int r = 0; r < shape_.n_rows; ++r) {
        if (keys[r].empty()) continue;
        double dot = 0;
        for (int c = 0; c < shape_.dim; ++c)
          dot += static_cast<double>(q_[h * shape_.dim + c]) * keys[r][c];
        p[r] = std::exp(dot * scale());
        sum += p[r];
      }
      for (int r = 0; r < shape_.n_rows; ++r) worth[r] += p[r] / sum;
    }
    return worth;
  }

  // The prompt's queries, as a node of it leaves them: all as they are now.
  void NotePrompt(int n_rows, bool with_products = false) {
    const std::vector<int> rows(n_rows, 0);
    QueryRows queries;
    queries.q = reinterpret_cast<const std::byte*>(q_.data());
    queries.q_head = sizeof(float) * shape_.dim;
    queries.rows = rows;
    queries.n_heads = n_query_heads();
    queries.k_dim = shape_.dim;
    codes_.NoteQueries(queries, shape_.n_kv_heads, with_products);
  }

  CodeIndex& codes() { return codes_; }
  BlockIndex& index() { return index_; }
  SequenceMemory& memory() { return memory_; }
  const RowMask& visible() const { return visible_; }
  std::byte* KeyBytes(int row) { return k_.data() + row * row_bytes_; }

 private:
  std::vector<float> Normal(int n) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& x : values) x = normal(random_);
    return values;
  }
  static float Common(int channel, int row) {
    const auto c = static_cast<float>(channel);
    return 2.0f * std::sin(c) + std::sin(static_cast<float>(row) / (200.0f + 40.0f * c));
  }
  std::vector<float> MakeRow(int row, float apart = 1.0f) {
    std::vector<float> values = Normal(shape_.n_kv_heads * shape_.dim);
    for (size_t i = 0; i < values.size(); ++i) {
      const int c = static_cast<int>(i) % shape_.dim;
      const float spread = 0.3f + 2.5f * std::exp(-static_cast<float>(c) / 10.0f);
      values[i] = apart * values[i] * spread + Common(c, row);
    }
    return values;
  }
  // As stored.
  std::vector<float> Decoded(int kv_head, int row) const {
    std::vector<float> values(shape_.dim);
    BlockStats stats;
    stats.mean = values.data();
    const KvView view = View();
    SummarizeRows(view.KeyRow(kv_head, row), view.k_row, view.k_type, 1, shape_.dim, stats);
    return values;
  }
  KvView View() const {
    KvView view;
    view.k_type = view.v_type = shape_.type;
    view.k = k_.data();
    view.v = v_.data();
    view.k_row = view.v_row = row_bytes_;
    view.k_head = view.v_head = KvBytes(shape_.type, shape_.dim);
    view.n_rows = shape_.n_rows;
    view.n_kv_heads = shape_.n_kv_heads;
    view.k_dim = view.v_dim = shape_.dim;
    return view;
  }

  const Shape shape_;
  std::mt19937 random_;
  std::vector<std::byte> k_, v_;
  size_t row_bytes_ = 0;
  std::vector<float> q_;
  RowMask visible_;
  KvView view_;
  BlockIndex index_;
  CodeIndex codes_;
  RowCopies copies_;
  SequenceMemory memory_;
};

}  // namespace condense
