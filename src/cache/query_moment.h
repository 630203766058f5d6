// Second moments of queries by KV head, for codes that spend their bits where queries look.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace condense {

// Query rows of one node: f32 [row][head][k_dim] by byte strides.
struct QueryRows {
  const std::byte* q = nullptr;
  size_t q_row = 0, q_head = 0;
  std::span<const int> rows;  // which, ascending
  int n_heads = 0, k_dim = 0;
};

// Second moment per KV head of its group's queries: what an error in a key costs.
struct QueryMoment {
  std::vector<float> mean;  // of q_i², [n_kv_heads, k_dim]
  int n_rows = 0;           // that it stands for
  // Means of q_i q_j, [n_kv_heads, k_dim, k_dim], of which j >= i counts. Empty unless asked for:
  // 16 KB a KV head of 64 channels and layer.
  std::vector<float> products;
  int n_product_rows = 0;

  // Takes in rows; of what was there before, as much stays as makes `most_rows` together. Without
  // `with_products` those kept until now are dropped.
  void Add(const QueryRows& queries, int n_kv_heads, int most_rows, bool with_products = false);
  size_t bytes() const { return sizeof(float) * (mean.capacity() + products.capacity()); }

 private:
  void AddProductsOf(const QueryRows& queries, std::span<const int> rows, int n_kv_heads,
                     int most_rows);
};

}  // namespace condense
