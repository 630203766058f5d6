// What each query row of a node may see: the host's f16 mask as row bits, and whether it carries an
// additive bias besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace condense {

struct AttentionNode;

class Visibility {
 public:
  // Reads the mask once, with up to `n_threads` threads.
  void Scan(const AttentionNode& node, int n_threads);

  // [BlocksFor(n_rows)] words of one query row. Heads wrap around the mask's heads.
  const uint16_t* Row(int stream, int head, int row) const {
    return bits_.data() + Index(stream, head, row) * n_blocks_;
  }
  // The f16 mask row itself, for its additive values.
  const uint16_t* Bias(int stream, int head, int row) const;
  // Some visible value differs from zero.
  bool has_bias() const { return has_bias_; }
  int n_mask_heads() const { return n_heads_; }

 private:
  size_t Index(int stream, int head, int row) const {
    return (static_cast<size_t>(stream % n_streams_) * n_heads_ + head % n_heads_) * n_rows_ + row;
  }

  const AttentionNode* node_ = nullptr;
  int n_streams_ = 1, n_heads_ = 1, n_rows_ = 0, n_blocks_ = 0;
  bool has_bias_ = false;
  std::vector<uint16_t> bits_;
};

}  // namespace condense
