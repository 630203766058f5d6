// Working memory of one thread's attention call. Grows to what the largest call needed and stays,
// so that a warm call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "base/row_mask.h"

namespace condense {

inline constexpr size_t kMaxHeadDim = 256;
// Up to this many queries read K and V straight from the cache; more share blocks that were
// converted to FP32 once.
inline constexpr size_t kFewQueries = 8;
// Queries that share a converted block: 96 rows of logits are 192 KiB, a part of a second-level
// cache.
inline constexpr size_t kQueryTile = 96;
// Blocks of keys transposed ahead of their products, so that few queries still fill the pipelines;
// blocks of values converted at once for many queries.
inline constexpr size_t kPack = 4;

struct AttendScratch {
  alignas(64) float tile32[kPack * kMaxHeadDim * kBlockRows];     // K: [block][pair][16 rows][2]
  alignas(64) float v32[kPack * kMaxHeadDim * kBlockRows];        // V: [block][16 rows][v_dim]
  alignas(64) uint16_t tile16[kPack * kMaxHeadDim * kBlockRows];  // K: [block][pair][16 rows][2]
  alignas(64) float q8_scales[kPack][kMaxHeadDim / 32][kBlockRows];
  alignas(64) int16_t q16[kQueryTile * kMaxHeadDim];  // queries of a q8_0 cache: [query][k_dim]
  float q16_scales[kQueryTile][kMaxHeadDim / 32];

  // Room for n floats, aligned to 64 bytes. What it held is lost when it grows.
  float* Weights(size_t n) {
    if (n > n_weights_) {
      weights_.reset(static_cast<float*>(::operator new(n * sizeof(float), kAlign)));
      n_weights_ = n;
    }
    return weights_.get();
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<float, Free> weights_;
  size_t n_weights_ = 0;
};

inline AttendScratch& ThreadScratch() {
  thread_local const std::unique_ptr<AttendScratch> scratch = std::make_unique<AttendScratch>();
  return *scratch;
}

}  // namespace condense
