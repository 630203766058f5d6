// Element types of a host's KV cache that Condense reads, and the sizes of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace condense {

// Storage type of K or V rows. kQ8_0 is ggml's: blocks of 32 int8 values behind one f16 scale, 34
// bytes.
enum class KvType : uint8_t { kF32, kF16, kBF16, kQ8_0 };

inline constexpr int kQ8BlockValues = 32;
inline constexpr int kQ8BlockBytes = 34;

// Bytes of `n` consecutive values. For kQ8_0, n must be a multiple of 32.
constexpr size_t KvBytes(KvType type, size_t n) {
  switch (type) {
    case KvType::kF32:
      return 4 * n;
    case KvType::kF16:
    case KvType::kBF16:
      return 2 * n;
    case KvType::kQ8_0:
      return n / kQ8BlockValues * kQ8BlockBytes;
  }
  return 0;
}

// "f32", "f16", "bf16", "q8_0": llama.cpp's spelling.
constexpr const char* KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBF16:
      return "bf16";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "?";
}

// The type of that name; nothing for any other.
constexpr std::optional<KvType> ParseKvType(std::string_view name) {
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    if (name == KvTypeName(type)) return type;
  }
  return std::nullopt;
}

}  // namespace condense
