// Training of token codebooks (kernels/token_codes.h), one KV head's at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/token_codes.h"

namespace condense {

inline constexpr int kMostTrainSegments = 32;

struct TrainArgs {
  SegmentKeys keys;  // row 0 of the KV head's cache
  // The sample: rows 64 segments[i] … 64 segments[i] + 63, those of them that count. Of more than
  // kMostTrainSegments segments as many, evenly spread over the list, are used.
  const int32_t* segments = nullptr;
  int n_segments = 0;
  // [n_segments] As SegmentKeys::counted; null: all rows count.
  const uint64_t* counted = nullptr;
  // Centroids by segment number, as in CodesView; only the sample's are read.
  const int8_t* centroids = nullptr;
  const float* centroid_scales = nullptr;
  // [dim]: sum or mean of q_i² over queries, in any one positive unit. Null, NaN, infinite or all
  // zero: every channel weighs the same.
  const float* query_moment = nullptr;
  int n_nibbles = 8;  // 8 or 16
  // Code along the axes of kernels/key_axes.h instead of the channels.
  bool rotate = false;
  // [dim, dim], for `rotate`: sum or mean of q_i q_j, of which j >= i counts. Null: query_moment.
  const float* query_products = nullptr;
};
// Channel weights, bits, channels of nibbles and their entries (TokenCodebook), from a sample of
// keys: bits one at a time to the channel whose expected squared error of y falls most, nibbles
// packed first-fit, entries from uniform Gaussian quantisers and 6 rounds of k-means. Rows that are
// not finite are passed over. Deterministic; .46 ms for 2,048 rows of 64 channels, .57 ms of 128
// (one core, AVX-512, 2.8 GHz). Rotated, the decomposition comes on top: of the order of dim³. Keys
// whose covariance overflows are coded along the channels, all of weight 1.
TokenCodebook TrainCodebook(const TrainArgs& args);

// TrainCodebook in parts that threads may share: any number of calls of one stage at a time, each
// of its parts once; a stage begins where all of the one before has ended.
class CodebookTrainer {
 public:
  // Stage 1, one call. What `args` points to must stay as it is until Plan has returned; memory
  // is kept for the next training.
  void Begin(const TrainArgs& args);
  // Stage 2: the residuals of one of the sample's segments.
  int n_samples() const { return static_cast<int>(used_.size()); }
  void Sample(int i);
  // Stage 3: mean and variance of one channel.
  int n_channels() const { return args_.keys.dim; }
  void Measure(int channel);
  // Stage 4, one call: weights or axes, bits, the nibbles' channels.
  void Plan();
  // Stage 5: the entries of one nibble.
  int n_nibbles() const { return args_.n_nibbles; }
  void TrainNibble(int nibble);
  // After all of it, once.
  TokenCodebook TakeBook() { return std::move(book_); }

  // Mean and population variance of one channel of y.
  struct Spread {
    float mean = 0, var = 0;
  };
  // y of the sample: [segment][dim][64 rows]; rotated, the first `dim` axes.
  struct Residuals {
    size_t dim = 0, n_segments = 0;
    std::vector<float> y;
    float* channel(size_t segment, size_t c) {
      return y.data() + (segment * dim + c) * kSegmentRows;
    }
    void Resize(size_t n, size_t n_channels) {
      n_segments = n, dim = n_channels;
      y.resize(n_segments * dim * kSegmentRows);
    }
  };

 private:
  TrainArgs args_;
  std::vector<int> used_;       // which of args_.segments
  std::vector<float> weights_;  // [dim], of the sample's channels
  Residuals sample_, rotated_;
  Residuals* coded_ = nullptr;   // of them, what the nibbles code
  std::vector<Spread> spreads_;  // of its channels
  std::vector<int> bits_;        // likewise
  TokenCodebook book_;
};

}  // namespace condense
