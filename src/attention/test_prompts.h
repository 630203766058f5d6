// For tests: an F32 cache of one stream and the nodes of prompts, steps and verifications in it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "attention/layer_attention.h"
#include "kernels/half.h"
#include "select/registry.h"

namespace condense {

// Queries are those of the cells that they write.
class Prompts {
 public:
  static constexpr int kDim = 32;

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

  // Two sequences' cells, rows by turns, `cut` rows a node.
  void ByTurns(const std::vector<int>& a, const std::vector<int>& b, size_t cut) {
    std::vector<Row> rows;
    for (size_t i = 0; i < a.size(); ++i) {
      for (const std::vector<int>* cells : {&a, &b}) {
        const auto end = cells->begin() + static_cast<std::ptrdiff_t>(i) + 1;
        rows.push_back({(*cells)[i], {cells->begin(), end}});
      }
      if (rows.size() < cut && i + 1 < a.size()) continue;
      Node(rows);
      rows.clear();
    }
  }
  // A decode step: one row.
  void Step(int cell, std::vector<int> before) {
    before.push_back(cell);
    Node({{cell, std::move(before)}});
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
    return cache.Stream(0).prompts.Find(View(), MaskOf(sees));
  }
  SeenCall* FindCall(const std::vector<int>& sees) {
    return cache.Stream(0).calls.Find(View(), MaskOf(sees));
  }
  RowMask MaskOf(const std::vector<int>& cells) const {
    RowMask mask(BlocksFor(n_cells_), 0);
    for (int cell : cells) AddRow(mask, cell);
    return mask;
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

inline std::vector<int> Cells(int begin, int end, int step = 1) {
  std::vector<int> cells;
  for (int cell = begin; cell < end; cell += step) cells.push_back(cell);
  return cells;
}

}  // namespace condense
