// A host's KV caches made up: rows of about normal values, one cache a layer, written row by row as
// a decoding host writes them; the queries and the mask to go with them. Row contents depend on
// their place alone, so arms that share the memory may each write a row at its turn. Where a
// model's caches would not fit, several layers are views of one cache, each begun at rows of its
// own: what a sparse step reads of them lies apart.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "attention/layer_attention.h"
#include "bench/memory.h"
#include "bench/options.h"

namespace condense {

// Rows of a view and of a mask, as llama.cpp pads them.
inline constexpr int kPadRows = 256;
constexpr int PaddedRows(int n) { return (n + kPadRows - 1) / kPadRows * kPadRows; }

class MadeCaches {
 public:
  // Every row up to `n_capacity` is written once, by the team.
  // n_layers views over n_caches.
  static Result<MadeCaches> Make(const Shape& shape, int n_layers, int n_caches, int n_capacity,
                                 int n_threads, bool huge_pages);
  // Bytes of all caches.
  static size_t BytesFor(const Shape& shape, int n_layers, int n_caches, int n_capacity);

  KvView View(int layer, int n_rows) const;
  void WriteRow(int layer, int row) const;

  const Shape& shape() const { return shape_; }
  int n_layers() const { return n_layers_; }
  const Buffer& buffer() const { return buffer_; }

 private:
  // Runs of stored values of one type to make rows from.
  struct Units {
    int n_values = 0;
    size_t n_bytes = 0;
    std::vector<std::byte> bytes;
  };
  static Units MakeUnits(KvType type, int head_dim, uint32_t seed);
  static int RowsOf(int n_layers, int n_caches, int n_capacity);
  static size_t CacheBytes(const Shape& shape, int n_rows);
  // The first row of a layer.
  std::byte* Keys(int layer) const;
  std::byte* Values(int layer) const;

  Shape shape_;
  int n_layers_ = 0, n_caches_ = 0, n_rows_ = 0;  // rows of a cache
  size_t cache_bytes_ = 0, value_offset_ = 0;
  Units k_units_, v_units_;
  Buffer buffer_;
};

// Query rows [n_query_heads, head_dim], f32; a layer's rows of following positions lie one behind
// the other, up to n_together of them.
class MadeQueries {
 public:
  MadeQueries(const Shape& shape, int n_pool, int n_together);
  const float* At(int layer, int row) const {
    return values_.get() + static_cast<size_t>((layer * 7 + row) % n_pool_) * width_;
  }

 private:
  int n_pool_, width_;
  hwy::AlignedFreeUniquePtr<float[]> values_;  // ggml wants it aligned
};

// The host's mask of rows that see themselves and what came before: f16 [n_rows][PaddedRows], grown
// as the sequence grows.
class CausalMask {
 public:
  explicit CausalMask(int n_capacity, int n_query_rows);
  // Query rows first … first + n - 1 of the cache, which are its newest.
  void Set(int first, int n);

  const uint16_t* values() const { return values_.get(); }
  int n_rows() const { return n_padded_; }  // of the cache, padded

 private:
  hwy::AlignedFreeUniquePtr<uint16_t[]> values_;
  int first_ = -1, n_ = 0, n_padded_ = 0;
};

// The graph node of a layer as the host would hand it over: queries at `first` … of the cache, all
// older rows visible. `queries` and `out` hold n rows.
AttentionNode MakeNode(const MadeCaches& caches, int layer, const CausalMask& mask,
                       const float* queries, int n_query_rows, float* out);

}  // namespace condense
