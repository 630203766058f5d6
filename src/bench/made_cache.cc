#include "bench/made_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/half.h"

namespace condense {
namespace {

constexpr int kUnits = 4096;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint16_t BF16FromF32(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

void StoreValues(const float* values, int n, KvType type, std::byte* to) {
  if (type == KvType::kF32) {
    std::memcpy(to, values, sizeof(float) * n);
  } else if (type == KvType::kQ8_0) {
    float largest = 0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(values[i]));
    const uint16_t scale = F16FromF32Saturated(largest / 127);
    std::memcpy(to, &scale, sizeof(scale));
    for (int i = 0; i < n; ++i) {
      const float steps = std::round(values[i] / F32FromF16(scale));
      to[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f)));
    }
  } else {
    for (int i = 0; i < n; ++i) {
      const uint16_t half =
          type == KvType::kF16 ? F16FromF32Saturated(values[i]) : BF16FromF32(values[i]);
      std::memcpy(to + 2 * i, &half, sizeof(half));
    }
  }
}

size_t WholePages(size_t n_bytes) { return (n_bytes + 4095) / 4096 * 4096; }

}  // namespace

MadeCaches::Units MadeCaches::MakeUnits(KvType type, int head_dim, uint32_t seed) {
  Units units;
  units.n_values = type == KvType::kQ8_0 || head_dim % 32 == 0 ? 32 : 16;
  units.n_bytes = KvBytes(type, units.n_values);
  units.bytes.resize(units.n_bytes * kUnits);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(units.n_values);
  for (int i = 0; i < kUnits; ++i) {
    for (float& value : values) value = normal(random);
    StoreValues(values.data(), units.n_values, type, units.bytes.data() + i * units.n_bytes);
  }
  return units;
}

int MadeCaches::RowsOf(int n_layers, int n_caches, int n_capacity) {
  return PaddedRows(n_capacity) + (n_layers - 1) / n_caches * kPadRows;
}

size_t MadeCaches::CacheBytes(const Shape& shape, int n_rows) {
  return WholePages(shape.KeyRowBytes() * n_rows) + WholePages(shape.ValueRowBytes() * n_rows);
}

size_t MadeCaches::BytesFor(const Shape& shape, int n_layers, int n_caches, int n_capacity) {
  return CacheBytes(shape, RowsOf(n_layers, n_caches, n_capacity)) * n_caches;
}

Result<MadeCaches> MadeCaches::Make(const Shape& shape, int n_layers, int n_caches, int n_capacity,
                                    int n_threads, bool huge_pages) {
  MadeCaches made;
  made.shape_ = shape;
  made.n_layers_ = n_layers;
  made.n_caches_ = n_caches;
  made.n_rows_ = RowsOf(n_layers, n_caches, n_capacity);
  made.cache_bytes_ = CacheBytes(shape, made.n_rows_);
  made.value_offset_ = WholePages(shape.KeyRowBytes() * made.n_rows_);
  made.k_units_ = MakeUnits(shape.k_type, shape.head_dim, 1);
  made.v_units_ = MakeUnits(shape.v_type, shape.head_dim, 2);
  Result<Buffer> buffer = Buffer::Map(made.cache_bytes_ * n_caches, huge_pages);
  if (!buffer.ok()) return Error{buffer.error()};
  made.buffer_ = std::move(buffer.value());
  const int64_t n = static_cast<int64_t>(n_caches) * made.n_rows_;
#pragma omp parallel for num_threads(n_threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    // The first layer of a cache begins at its first row.
    made.WriteRow(static_cast<int>(i / made.n_rows_), static_cast<int>(i % made.n_rows_));
  }
  return made;
}

std::byte* MadeCaches::Keys(int layer) const {
  return buffer_.data() + layer % n_caches_ * cache_bytes_ +
         layer / n_caches_ * kPadRows * shape_.KeyRowBytes();
}

std::byte* MadeCaches::Values(int layer) const {
  return buffer_.data() + layer % n_caches_ * cache_bytes_ + value_offset_ +
         layer / n_caches_ * kPadRows * shape_.ValueRowBytes();
}

void MadeCaches::WriteRow(int layer, int row) const {
  const auto cache = static_cast<uint64_t>(layer % n_caches_);
  const auto place = static_cast<uint32_t>(row + layer / n_caches_ * kPadRows);
  uint64_t state = Mix((cache << 32 | place) + 1);
  const auto write = [&](const Units& units, std::byte* to) {
    const int n = shape_.n_kv_heads * shape_.head_dim / units.n_values;
    for (int i = 0; i < n; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      std::memcpy(to + i * units.n_bytes, units.bytes.data() + (state >> 52) * units.n_bytes,
                  units.n_bytes);
    }
  };
  static_assert(kUnits == 1 << 12, "twelve bits choose a unit");
  write(k_units_, Keys(layer) + shape_.KeyRowBytes() * row);
  write(v_units_, Values(layer) + shape_.ValueRowBytes() * row);
}

KvView MadeCaches::View(int layer, int n_rows) const {
  KvView view;
  view.k_type = shape_.k_type;
  view.v_type = shape_.v_type;
  view.k = Keys(layer);
  view.v = Values(layer);
  view.k_row = shape_.KeyRowBytes();
  view.v_row = shape_.ValueRowBytes();
  view.k_head = KvBytes(shape_.k_type, shape_.head_dim);
  view.v_head = KvBytes(shape_.v_type, shape_.head_dim);
  view.n_rows = n_rows;
  view.n_kv_heads = shape_.n_kv_heads;
  view.k_dim = view.v_dim = shape_.head_dim;
  return view;
}

MadeQueries::MadeQueries(const Shape& shape, int n_pool, int n_together)
    : n_pool_(n_pool), width_(shape.n_query_heads * shape.head_dim) {
  const size_t n_values = static_cast<size_t>(n_pool) * width_;
  const size_t n_all = n_values + static_cast<size_t>(n_together) * width_;
  values_ = hwy::AllocateAligned<float>(n_all);
  CONDENSE_CHECK(values_ != nullptr);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> table(kUnits);
  for (float& value : table) value = normal(random);
  for (size_t i = 0; i < n_values; ++i) values_[i] = table[Mix(i + 1) >> 52];
  // Rows wrap around: those behind the last are the first again.
  for (size_t i = n_values; i < n_all; ++i) values_[i] = values_[i - n_values];
}

CausalMask::CausalMask(int n_capacity, int n_query_rows)
    : values_(hwy::AllocateAligned<uint16_t>(static_cast<size_t>(PaddedRows(n_capacity)) *
                                             n_query_rows)) {
  CONDENSE_CHECK(values_ != nullptr);
}

void CausalMask::Set(int first, int n) {
  const int n_padded = PaddedRows(first + n);
  if (n == 1 && n_ == 1 && n_padded == n_padded_) {
    // A step on, or back for the next arm.
    for (int row = first_ + 1; row <= first; ++row) values_[row] = 0;
    for (int row = first + 1; row <= first_; ++row) values_[row] = kF16MinusInf;
  } else {
    for (int i = 0; i < n; ++i) {
      uint16_t* row = values_.get() + static_cast<size_t>(i) * n_padded;
      std::fill_n(row, first + i + 1, uint16_t{0});
      std::fill(row + first + i + 1, row + n_padded, kF16MinusInf);
    }
  }
  first_ = first;
  n_ = n;
  n_padded_ = n_padded;
}

AttentionNode MakeNode(const MadeCaches& caches, int layer, const CausalMask& mask,
                       const float* queries, int n_query_rows, float* out) {
  const Shape& shape = caches.shape();
  AttentionNode node;
  node.layer = layer;
  node.n_rows = n_query_rows;
  node.n_query_heads = shape.n_query_heads;
  node.q = reinterpret_cast<const std::byte*>(queries);
  node.q_head = sizeof(float) * shape.head_dim;
  node.q_row = node.q_head * shape.n_query_heads;
  node.q_stream = node.q_row * n_query_rows;
  node.kv = caches.View(layer, mask.n_rows());
  node.mask = reinterpret_cast<const std::byte*>(mask.values());
  node.mask_row = sizeof(uint16_t) * mask.n_rows();
  node.mask_head = node.mask_stream = node.mask_row * n_query_rows;
  node.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  node.out = out;
  return node;
}

}  // namespace condense
