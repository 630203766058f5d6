// Training of a token codebook: weights, bits, packing, k-means.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/result.h"
#include "kernels/codebook_rows.h"
#include "kernels/token_codes.h"

namespace condense {
namespace {

constexpr int kMostBits = 4;
constexpr int kRounds = 6;
// Expected squared error of a uniform quantiser of 2^b levels of a unit Gaussian, and its step.
constexpr double kDistortion[kMostBits + 1] = {1, .3634, .1188, .03744, .01154};
constexpr float kStep[kMostBits + 1] = {0, 1.596f, .9957f, .5860f, .3352f};

std::vector<float> ChannelWeights(const float* moment, int dim) {
  std::vector<float> weights(dim, 1.0f);
  if (moment == nullptr) return weights;
  const double mean = std::accumulate(moment, moment + dim, 0.0) / dim;
  // In units of the mean: any unit of the moments gives the same weights.
  if (!std::isfinite(mean) || mean <= 0) return weights;
  for (int c = 0; c < dim; ++c) {
    weights[c] = static_cast<float>(std::sqrt(std::max(moment[c] / mean, 0.0) + .003));
  }
  return weights;
}

// y of the sample's finite rows, channel by channel: [dim][n].
struct Sample {
  int dim = 0, n = 0;
  std::vector<float> y;
  const float* channel(int c) const { return y.data() + static_cast<size_t>(c) * n; }
};

Sample MakeSample(const TrainArgs& args, const std::vector<float>& weights) {
  const int dim = args.keys.dim;
  const int used = std::min(args.n_segments, kMostTrainSegments);
  std::vector<float> rows;
  std::vector<float> row(dim);
  for (int i = 0; i < used; ++i) {
    const size_t s = args.segments[static_cast<int64_t>(i) * args.n_segments / used];
    const int8_t* tile = args.centroids + s / kTileSegments * kTileSegments * dim;
    for (int r = 0; r < kSegmentRows; ++r) {
      LoadKeyRow(args.keys.k + (s * kSegmentRows + r) * args.keys.k_stride, args.keys.k_type, dim,
                 row.data());
      bool finite = true;
      for (int c = 0; c < dim; ++c) {
        const float steps = tile[c * kTileSegments + s % kTileSegments];
        row[c] = weights[c] * std::fma(-args.centroid_scales[s], steps, row[c]);
        finite = finite && std::isfinite(row[c]);
      }
      if (finite) rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  Sample sample;
  sample.dim = dim, sample.n = static_cast<int>(rows.size() / dim);
  sample.y.resize(rows.size());
  for (int c = 0; c < dim; ++c) {
    for (int r = 0; r < sample.n; ++r)
      sample.y[static_cast<size_t>(c) * sample.n + r] = rows[static_cast<size_t>(r) * dim + c];
  }
  return sample;
}

struct Spread {
  double mean = 0, var = 0;
};
Spread SpreadOf(const float* y, int n) {
  if (n == 0) return {};
  const double mean = std::accumulate(y, y + n, 0.0) / n;
  double squares = 0;
  for (int r = 0; r < n; ++r) squares += (y[r] - mean) * (y[r] - mean);
  return {mean, squares / n};
}

// Nibbles that channels with 1, 2, 3, 4 bits need: ones go beside threes first.
bool Fits(const std::array<int, kMostBits + 1>& n_with, int n_nibbles) {
  const int small = 2 * n_with[2] + std::max(0, n_with[1] - n_with[3]);
  return n_with[4] + n_with[3] + (small + 3) / 4 <= n_nibbles;
}

// Bits per channel, one at a time to the channel whose error falls most, while they can be packed.
std::vector<int> GiveBits(const std::vector<Spread>& spread, int n_nibbles) {
  std::vector<int> bits(spread.size());
  std::array<int, kMostBits + 1> n_with{};
  for (int given = 0; given < 4 * n_nibbles; ++given) {
    int best = -1;
    double greatest = 0;
    for (size_t c = 0; c < spread.size(); ++c) {
      const int b = bits[c];
      if (b == kMostBits) continue;
      const double drop = spread[c].var * (kDistortion[b] - kDistortion[b + 1]);
      if (!(drop > greatest)) continue;
      std::array<int, kMostBits + 1> after = n_with;
      --after[b], ++after[b + 1];
      if (Fits(after, n_nibbles)) best = static_cast<int>(c), greatest = drop;
    }
    if (best < 0) break;
    --n_with[bits[best]], ++n_with[bits[best] + 1];
    ++bits[best];
  }
  return bits;
}

// Channels by nibble: most bits first, each into the first nibble with room.
std::vector<std::vector<int>> Pack(const std::vector<int>& bits, int n_nibbles) {
  std::vector<std::vector<int>> nibbles(n_nibbles);
  std::vector<int> room(n_nibbles, kMostBits);
  for (int b = kMostBits; b > 0; --b) {
    for (size_t c = 0; c < bits.size(); ++c) {
      if (bits[c] != b) continue;
      const auto at = std::find_if(room.begin(), room.end(), [&](int left) { return left >= b; });
      CONDENSE_CHECK(at != room.end());
      *at -= b;
      nibbles[at - room.begin()].push_back(static_cast<int>(c));
    }
  }
  return nibbles;
}

// k-means from the entries as they are; entries: [n_channels][16]. An entry without rows stays.
void Refine(const Sample& sample, const std::vector<int>& channels, float* entries) {
  for (int round = 0; round < kRounds; ++round) {
    double sums[kNibbleChannels][kNibbleEntries] = {};
    int counts[kNibbleEntries] = {};
    for (int r = 0; r < sample.n; ++r) {
      int best = 0;
      float least = std::numeric_limits<float>::infinity();
      for (int e = 0; e < kNibbleEntries; ++e) {
        float distance = 0;
        for (size_t i = 0; i < channels.size(); ++i) {
          const float off = sample.channel(channels[i])[r] - entries[i * kNibbleEntries + e];
          distance = std::fma(off, off, distance);
        }
        if (distance < least) least = distance, best = e;
      }
      ++counts[best];
      for (size_t i = 0; i < channels.size(); ++i) sums[i][best] += sample.channel(channels[i])[r];
    }
    for (size_t i = 0; i < channels.size(); ++i) {
      for (int e = 0; e < kNibbleEntries; ++e) {
        if (counts[e] > 0)
          entries[i * kNibbleEntries + e] = static_cast<float>(sums[i][e] / counts[e]);
      }
    }
  }
}

}  // namespace

TokenCodebook TrainCodebook(const TrainArgs& args) {
  const int dim = args.keys.dim;
  CONDENSE_CHECK(args.n_nibbles == 8 || args.n_nibbles == kMostNibbles);
  const std::vector<float> weights = ChannelWeights(args.query_moment, dim);
  const Sample sample = MakeSample(args, weights);
  std::vector<Spread> spread(dim);
  for (int c = 0; c < dim; ++c) spread[c] = SpreadOf(sample.channel(c), sample.n);
  const std::vector<int> bits = GiveBits(spread, args.n_nibbles);
  TokenCodebook book;
  book.dim = dim, book.n_nibbles = args.n_nibbles;
  book.first.push_back(0);
  for (const std::vector<int>& channels : Pack(bits, args.n_nibbles)) {
    const size_t at = book.entries.size();
    int stride = 1;  // of a channel's level within the product grid
    for (int c : channels) {
      book.channel.push_back(static_cast<uint8_t>(c));
      book.weight.push_back(weights[c]);
      const int levels = 1 << bits[c];
      for (int e = 0; e < kNibbleEntries; ++e) {
        const float level =
            static_cast<float>(e / stride % levels) - .5f * static_cast<float>(levels - 1);
        book.entries.push_back(
            static_cast<float>(spread[c].mean + std::sqrt(spread[c].var) * kStep[bits[c]] * level));
      }
      stride *= levels;
    }
    book.first.push_back(static_cast<uint8_t>(book.channel.size()));
    Refine(sample, channels, book.entries.data() + at);
  }
  return book;
}

}  // namespace condense
