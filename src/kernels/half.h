// 16-bit floats as the host stores them, one value at a time, in integer arithmetic alone: the same
// bits on every machine. Not for inner loops; those convert whole vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace condense {

inline constexpr uint16_t kF16MinusInf = 0xFC00;
inline constexpr uint16_t kF16MaxFinite = 0x7BFF;  // 65504

// Exact, subnormals, infinities and NaN included.
constexpr float F32FromF16(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFFu;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude << 13));
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Rounds to nearest even. Finite values too large for f16, and infinities, become the largest
// finite f16 of their sign; NaN stays NaN.
constexpr uint16_t F16FromF32Saturated(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FE000u)
    return static_cast<uint16_t>(sign | kF16MaxFinite);             // 65504 or more
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below 2^-25
  uint32_t mantissa = magnitude;
  uint32_t shift = 13;
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal in f16
    mantissa = (magnitude & 0x007FFFFFu) | 0x00800000u;
    shift = 126 - (magnitude >> 23);
  } else {
    mantissa -= 0x38000000u;
  }
  uint32_t half = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t middle = 1u << (shift - 1);
  if (rest > middle || (rest == middle && (half & 1))) ++half;
  return static_cast<uint16_t>(sign | (half > kF16MaxFinite ? kF16MaxFinite : half));
}

constexpr float F32FromBF16(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Rounded to nearest, ties to even; finite stays finite: what would round to infinity gives the
// greatest finite value.
constexpr uint16_t BF16FromFinite(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t half = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((half & 0x7FFFu) == 0x7F80u ? half - 1 : half);
}

}  // namespace condense
