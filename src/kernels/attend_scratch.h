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
// Queries that share registers, and queries that share one transposed block: 96 rows of logits are
// 192 KiB, a part of a second-level cache.
inline constexpr size_t kMaxBatch = 6;
inline constexpr size_t kQueryTile = 96;

struct AttendScratch {
  alignas(64) float tile32[kMaxHeadDim * kBlockRows];     // K: [pair][16 rows][2]
  alignas(64) float v32[kMaxHeadDim * kBlockRows];        // V: [16 rows][v_dim]
  alignas(64) uint16_t tile16[kMaxHeadDim * kBlockRows];  // K: [pair][16 rows][2]
  alignas(64) int16_t q8_rows[kMaxHeadDim * kBlockRows];  // [16 rows][kMaxHeadDim]
  alignas(
      64) uint32_t q8_scales[kMaxHeadDim / 32 * kBlockRows];  // [32 channels][16 rows], f16 twice

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
