// Choices of rows in plain loops and in double, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/row_mask.h"
#include "select/policy.h"
#include "select/test_cache.h"

namespace condense {

// Anchor, window and newest row.
inline RowMask Always(const LayerQuery& query, int anchor, int window) {
  RowMask always = FirstRows(query.visible, anchor);
  const RowMask last = LastRows(query.visible, window);
  for (size_t b = 0; b < always.size(); ++b) always[b] = static_cast<uint16_t>(always[b] | last[b]);
  if (query.newest_row >= 0) AddRow(always, query.newest_row);
  return always;
}

// The visible rows outside `always`, ascending.
inline std::vector<int> RowsOutside(const LayerQuery& query, const RowMask& always) {
  std::vector<int> rows;
  for (int row = 0; row < query.kv->n_rows; ++row) {
    if (HasRow(query.visible, row) && !HasRow(always, row)) rows.push_back(row);
  }
  return rows;
}

inline std::vector<int> VisibleRows(const LayerQuery& query) {
  return RowsOutside(query, RowMask(query.visible.size(), 0));
}

// Of the visible rows outside `always`, the n of the greatest worth: higher first, then lower row.
inline RowMask WithBest(const LayerQuery& query, const RowMask& always,
                        const std::vector<double>& worth, int n) {
  std::vector<int> rows = RowsOutside(query, always);
  std::stable_sort(rows.begin(), rows.end(), [&](int a, int b) { return worth[a] > worth[b]; });
  RowMask mask = always;
  for (int i = 0; i < n; ++i) AddRow(mask, rows[i]);
  return mask;
}

inline double Capped(double logit, double softcap) {
  return softcap > 0 ? softcap * std::tanh(logit / softcap) : logit;
}

// A head's logit of one row.
inline double Logit(TestCache& cache, const LayerQuery& query, int head, int row) {
  double z = 0;
  for (int c = 0; c < query.kv->k_dim; ++c) {
    z += static_cast<double>(cache.QueryHead(head)[c]) * cache.Key(head / query.group(), row)[c];
  }
  return Capped(z * query.scale, query.softcap);
}

// exp(logit) of each of `rows` over their sum, summed over heads [first, last); 0 of other rows.
inline std::vector<double> Shares(TestCache& cache, const LayerQuery& query, int first, int last,
                                  const std::vector<int>& rows) {
  std::vector<double> worth(query.kv->n_rows, 0.0);
  for (int h = first; h < last; ++h) {
    std::vector<double> p(worth.size(), 0.0);
    for (int row : rows) p[row] = std::exp(Logit(cache, query, h, row));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (int row : rows) worth[row] += p[row] / sum;
  }
  return worth;
}

// The same over the heads of one group and all visible rows.
inline std::vector<double> Worth(TestCache& cache, const LayerQuery& query, int kv_head) {
  const int group = query.group();
  return Shares(cache, query, kv_head * group, (kv_head + 1) * group, VisibleRows(query));
}

}  // namespace condense
