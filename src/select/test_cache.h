// A small layer for tests: keys, values and queries of whole numbers in f32. Means over 16 rows,
// extremes and dot products of such data are exact in f16 and f32, so tests may expect equal
// scores, ties included.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "base/row_mask.h"
#include "cache/block_index.h"
#include "cache/call_attention.h"
#include "cache/kv_view.h"
#include "cache/prompt_attention.h"
#include "select/policy.h"

namespace condense {

class TestCache {
 public:
  TestCache(int n_rows, int n_kv_heads, int n_query_heads, int dim, uint32_t seed = 1)
      : n_rows_(n_rows), n_kv_heads_(n_kv_heads), n_query_heads_(n_query_heads), dim_(dim) {
    std::mt19937 rng(seed);
    auto fill = [&](std::vector<float>& values, size_t n) {
      values.resize(n);
      for (float& value : values) value = static_cast<float>(static_cast<int>(rng() % 17) - 8);
    };
    fill(k_, static_cast<size_t>(n_rows) * n_kv_heads * dim);
    fill(v_, static_cast<size_t>(n_rows) * n_kv_heads * dim);
    fill(q_, static_cast<size_t>(n_query_heads) * dim);
    visible_.assign(BlocksFor(n_rows), 0);
    AddRange(visible_, {0, n_rows});
    MakeView();
  }
  TestCache(const TestCache&) = delete;
  TestCache& operator=(const TestCache&) = delete;

  void See(const std::vector<RowRange>& ranges) {
    visible_.assign(BlocksFor(n_rows_), 0);
    for (const RowRange& range : ranges) AddRange(visible_, range);
  }
  void Hide(int row) { RemoveRow(visible_, row); }
  void SetQuery(uint32_t seed) {
    std::mt19937 rng(seed);
    for (float& value : q_) value = static_cast<float>(static_cast<int>(rng() % 17) - 8);
  }

  LayerQuery Query() {
    LayerQuery query;
    query.kv = &view_;
    query.index = &index_;
    query.codes = &codes_;
    query.copies = &copies_;
    query.prompts = &prompts_;
    query.calls = &calls_;
    query.visible = visible_;
    query.n_visible = CountRows(visible_);
    query.q = q_.data();
    query.n_query_heads = n_query_heads_;
    query.scale = 0.0625f;
    query.memory = &memory_;
    return query;
  }

  float* Key(int kv_head, int row) {
    return &k_[(static_cast<size_t>(row) * n_kv_heads_ + kv_head) * dim_];
  }
  float* Value(int kv_head, int row) {
    return &v_[(static_cast<size_t>(row) * n_kv_heads_ + kv_head) * dim_];
  }
  float* QueryHead(int head) { return &q_[static_cast<size_t>(head) * dim_]; }
  BlockIndex& index() { return index_; }
  SequenceMemory& memory() { return memory_; }
  PromptAttention& prompts() { return prompts_; }
  CallAttention& calls() { return calls_; }
  const KvView& view() const { return view_; }

 private:
  void MakeView() {
    view_.k_type = view_.v_type = KvType::kF32;
    view_.k = reinterpret_cast<const std::byte*>(k_.data());
    view_.v = reinterpret_cast<const std::byte*>(v_.data());
    view_.k_head = view_.v_head = sizeof(float) * dim_;
    view_.k_row = view_.v_row = view_.k_head * n_kv_heads_;
    view_.n_rows = n_rows_;
    view_.n_kv_heads = n_kv_heads_;
    view_.k_dim = view_.v_dim = dim_;
  }

  int n_rows_, n_kv_heads_, n_query_heads_, dim_;
  std::vector<float> k_, v_, q_;
  RowMask visible_;
  KvView view_;
  BlockIndex index_;
  CodeIndex codes_;
  RowCopies copies_;
  PromptAttention prompts_;
  CallAttention calls_;
  SequenceMemory memory_;
};

inline std::span<const uint16_t> KRows(const Selection& selection, int set) {
  return {selection.KMask(set), static_cast<size_t>(selection.n_blocks)};
}

}  // namespace condense
