// Rotary position embedding as the host applies it (ggml's rope: angles by repeated products in
// FP32, no YaRN), and its inverse: keys and queries reach the plug-in rotated, trained gates want
// some of them as they were before. Plain code in a fixed order: no step is spent here, but the
// keys of blocks that have just filled and one query a layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace condense {

enum class RopePairs : uint8_t {
  kNone,  // nothing is rotated
  kNeox,  // channel i goes with i + n_dims / 2
  kNorm,  // channel 2 i goes with 2 i + 1
};

struct RopeRule {
  RopePairs pairs = RopePairs::kNone;
  int n_dims = 0;  // the first channels of a head, an even number
  float freq_base = 10000.0f, freq_scale = 1.0f;
  std::vector<float> factors;  // [n_dims / 2] what each pair's frequency is divided by; or empty
};

// Cosines and sines of one rule by position.
class RopeTable {
 public:
  // Makes them for positions [0, n). `id`: the rule's, so that a table may serve several in turn.
  // Allocates nothing while n stays within `most`.
  void Cover(const RopeRule& rule, uint64_t id, int n, int most);
  // [n_dims / 2] cosines, then as many sines.
  const float* At(int position) const {
    return values_.data() + static_cast<size_t>(position) * n_dims_;
  }

 private:
  uint64_t id_ = 0;
  int n_dims_ = 0, n_positions_ = 0;
  std::vector<float> values_;  // [n_positions, n_dims]
};

// Rotates one head's channels in place by the position's angles, or back by them.
void Rotate(const RopeRule& rule, const float* at, float* values);
void RotateBack(const RopeRule& rule, const float* at, float* values);

}  // namespace condense
