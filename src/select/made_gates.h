// Made gates for tests: tensors of small random numbers in the shapes that docs/GATES.md gives, and
// a reader that serves them without a file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor_file.h"

namespace condense {

struct MadeShape {
  int n_layers = 2, n_query_heads = 4, n_kv_heads = 2, head_dim = 16;
  int gate_length = 8;  // seer
  std::string rope = "neox";
};

// Hashed, about uniform in ±`size`.
inline Tensor MadeTensor(std::vector<int64_t> shape, uint64_t seed, float size) {
  Tensor tensor{.shape = std::move(shape), .values = {}, .type = "f32"};
  size_t n = 1;
  for (int64_t extent : tensor.shape) n *= static_cast<size_t>(extent);
  tensor.values.resize(n);
  for (size_t i = 0; i < n; ++i) {
    uint64_t x = (seed * 0x9E3779B97F4A7C15ull) ^ (i * 0xC2B2AE3D27D4EB4Full);
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
    tensor.values[i] = size * (static_cast<float>(x >> 40) / 0x1p23f - 1.0f);
  }
  return tensor;
}

// kind: "seer" or "nsa".
inline TensorFile MadeGates(const std::string& kind, const MadeShape& shape) {
  TensorFile file;
  const auto set = [&](const std::string& name, TensorFileValue value) {
    file.values[kind + "." + name] = std::move(value);
  };
  file.values["general.architecture"] = kind;
  set("block_count", int64_t{shape.n_layers});
  set("attention.head_count", int64_t{shape.n_query_heads});
  set("attention.head_count_kv", int64_t{shape.n_kv_heads});
  set("attention.key_length", int64_t{shape.head_dim});
  set("rope.type", shape.rope);
  set("rope.dimension_count", int64_t{shape.head_dim});
  set("rope.freq_base", 10000.0);
  if (kind == "seer") set("gate_length", int64_t{shape.gate_length});
  const int64_t n_kv = shape.n_kv_heads, d = shape.head_dim, gate = shape.gate_length;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const std::string at = "blk." + std::to_string(layer) + ".";
    const uint64_t seed = 10 * static_cast<uint64_t>(layer) + 1;
    auto& tensors = file.tensors;
    if (kind == "seer") {
      const int64_t group = shape.n_query_heads / n_kv;
      tensors[at + "seer_q.weight"] = MadeTensor({n_kv, group, d, gate}, seed, 0.2f);
      tensors[at + "seer_k.weight"] = MadeTensor({n_kv, 3 * d, gate}, seed + 1, 0.2f);
      tensors[at + "seer_q_norm.weight"] = MadeTensor({gate}, seed + 2, 2.0f);
      tensors[at + "seer_k_norm.weight"] = MadeTensor({gate}, seed + 3, 2.0f);
    } else {
      tensors[at + "nsa_k_compress.weight"] = MadeTensor({n_kv, 32 * d, d}, seed, 0.05f);
      tensors[at + "nsa_k_position.weight"] = MadeTensor({n_kv, 32, d}, seed + 1, 0.2f);
    }
  }
  return file;
}

}  // namespace condense
