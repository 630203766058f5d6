#include "cache/query_moment.h"

#include <algorithm>

#include "kernels/moments.h"

namespace condense {
namespace {

// Makes `means`, which stand for n_rows rows, stand for n_new more, whose share of 0 is still to be
// added: as much of the old stays as makes most_rows together.
void MakeRoom(size_t n_values, int n_new, int most_rows, std::vector<float>& means, int& n_rows) {
  if (means.size() != n_values) {
    means.assign(n_values, 0.0f);
    n_rows = 0;
  }
  const int n_old = std::min(n_rows, most_rows - n_new);
  n_rows = n_old + n_new;
  const float keep = static_cast<float>(n_old) / static_cast<float>(n_rows);
  for (float& value : means) value *= keep;
}

}  // namespace

void QueryMoment::Add(const QueryRows& queries, int n_kv_heads, int most_rows, bool with_products) {
  const int dim = queries.k_dim;
  const int group = queries.n_heads / n_kv_heads;
  std::span<const int> rows = queries.rows;
  if (rows.empty()) return;
  if (static_cast<int>(rows.size()) > most_rows) rows = rows.last(most_rows);
  if (with_products) {
    AddProductsOf(queries, rows, n_kv_heads, most_rows);
  } else if (!products.empty()) {
    products = {};
    n_product_rows = 0;
  }
  const size_t n_values = static_cast<size_t>(n_kv_heads) * dim;
  MakeRoom(n_values, static_cast<int>(rows.size()), most_rows, mean, n_rows);
  const float share = 1.0f / (static_cast<float>(group) * static_cast<float>(n_rows));
  for (int row : rows) {
    for (int h = 0; h < queries.n_heads; ++h) {
      const auto* q =
          reinterpret_cast<const float*>(queries.q + row * queries.q_row + h * queries.q_head);
      float* to = mean.data() + static_cast<size_t>(h / group) * dim;
      for (int c = 0; c < dim; ++c) to[c] += share * q[c] * q[c];
    }
  }
}

void QueryMoment::AddProductsOf(const QueryRows& queries, std::span<const int> rows, int n_kv_heads,
                                int most_rows) {
  const size_t dim = queries.k_dim;
  const int group = queries.n_heads / n_kv_heads;
  const size_t n_values = n_kv_heads * dim * dim;
  MakeRoom(n_values, static_cast<int>(rows.size()), most_rows, products, n_product_rows);
  const float share = 1.0f / (static_cast<float>(group) * static_cast<float>(n_product_rows));
  for (int h = 0; h < queries.n_heads; ++h) {
    float* to = products.data() + h / group * dim * dim;
    for (int row : rows) {
      AddProducts(
          reinterpret_cast<const float*>(queries.q + row * queries.q_row + h * queries.q_head),
          queries.k_dim, share, to);
    }
  }
}

}  // namespace condense
