// Training of a token codebook: channel weights or axes, bits, packing into nibbles, k-means.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/result.h"
#include "kernels/key_axes.h"
#include "kernels/moments.h"
#include "kernels/token_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codebook.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/code_nearest-inl.h"
#include "kernels/code_residuals-inl.h"
#include "kernels/vector-inl.h"

// What both halves of this file share.
#ifndef CONDENSE_KERNELS_CODEBOOK_CC_
#define CONDENSE_KERNELS_CODEBOOK_CC_
namespace condense {

// y of the sample: [segment][dim][64 rows]; rotated, dim axes.
struct CodeSample {
  size_t dim = 0, n_segments = 0;
  std::vector<float> y;
  float* channel(size_t segment, size_t c) { return y.data() + (segment * dim + c) * kSegmentRows; }
};

// Mean and population variance of one channel of y.
struct ChannelSpread {
  float mean = 0, var = 0;
};

}  // namespace condense
#endif

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

constexpr size_t kRows = kSegmentRows;

void Weigh(const SegmentKeys& keys, const int8_t* tile, float scale, const float* weights,
           float* y) {
  WithType(keys.k_type,
           [&]<KvType kType>() HWY_ATTR { WeighSegment<kType>(keys, tile, scale, weights, y); });
}

void Rotate(const KeyAxes& axes, CodeSample& keys, CodeSample& rotated) {
  for (size_t s = 0; s < keys.n_segments; ++s)
    RotateRows(axes.to_code.data(), rotated.dim, keys.dim, keys.channel(s, 0),
               rotated.channel(s, 0));
}

ChannelSpread SpreadOf(CodeSample& sample, size_t c) {
  const DF d;
  const VF share = hn::Set(d, static_cast<float>(sample.n_segments * kRows));
  const auto mean_of = [&](auto value) HWY_ATTR {
    VF sum[kRowVectors];
    for (size_t g = 0; g < kRowVectors; ++g) {
      sum[g] = hn::Zero(d);
      for (size_t s = 0; s < sample.n_segments; ++s) {
        const float* y = sample.channel(s, c) + g * kLanes;
        for (size_t r = 0; r < kRows; r += 16) sum[g] = value(hn::LoadU(d, y + r), sum[g]);
      }
    }
    return SumOfLanes(sum) / hn::GetLane(share);
  };
  ChannelSpread spread;
  spread.mean = mean_of([](VF y, VF sum) HWY_ATTR { return hn::Add(sum, y); });
  const VF mean = hn::Set(d, spread.mean);
  spread.var = mean_of([mean](VF y, VF sum) HWY_ATTR {
    const VF off = hn::Sub(y, mean);
    return hn::MulAdd(off, off, sum);
  });
  return spread;
}

// One round of k-means: entries become the means of the rows nearest to them; an entry without rows
// stays. channels: [kChannels]; entries: [kChannels][16].
template <size_t kChannels>
HWY_INLINE void Round(CodeSample& sample, const uint8_t* channels, float* entries) {
  double sums[kNibbleEntries][kChannels] = {};
  double counts[kNibbleEntries] = {};
  HWY_ALIGN float y[kChannels][kRows];
  HWY_ALIGN uint8_t nearest[kRows];
  for (size_t s = 0; s < sample.n_segments; ++s) {
    for (size_t i = 0; i < kChannels; ++i) std::copy_n(sample.channel(s, channels[i]), kRows, y[i]);
    NearestOf<kChannels>(y[0], kRows, entries, nearest);
    for (size_t at = 0; at < kRows; ++at) {
      const size_t row = at % 4 * 16 + at / 4;
      double* sum = sums[nearest[at]];
      for (size_t i = 0; i < kChannels; ++i) sum[i] += static_cast<double>(y[i][row]);
      counts[nearest[at]] += 1;
    }
  }
  for (size_t e = 0; e < kNibbleEntries; ++e) {
    if (counts[e] == 0) continue;
    for (size_t i = 0; i < kChannels; ++i)
      entries[i * kNibbleEntries + e] = static_cast<float>(sums[e][i] / counts[e]);
  }
}

void KMeans(CodeSample& sample, const uint8_t* channels, size_t n_channels, int n_rounds,
            float* entries) {
  for (int round = 0; round < n_rounds; ++round) {
    switch (n_channels) {
      case 1:
        Round<1>(sample, channels, entries);
        break;
      case 2:
        Round<2>(sample, channels, entries);
        break;
      case 3:
        Round<3>(sample, channels, entries);
        break;
      case 4:
        Round<4>(sample, channels, entries);
        break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace condense
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace condense {
namespace {

HWY_EXPORT(Weigh);
HWY_EXPORT(Rotate);
HWY_EXPORT(SpreadOf);
HWY_EXPORT(KMeans);

constexpr int kMostBits = 4;
constexpr int kRounds = 6;
// The best uniform quantiser of 2^b levels for a unit Gaussian (Max 1960): its squared error, and
// its step.
constexpr double kDistortion[kMostBits + 1] = {1, .3634, .1188, .03744, .01154};
constexpr float kStep[kMostBits + 1] = {0, 1.596f, .9957f, .5860f, .3352f};

std::vector<float> ChannelWeights(const float* moment, size_t dim) {
  std::vector<float> weights(dim, 1.0f);
  if (moment == nullptr) return weights;
  const double mean = std::accumulate(moment, moment + dim, 0.0) / static_cast<double>(dim);
  if (!std::isfinite(mean) || mean <= 0) return weights;
  // In units of the mean: any unit of the moments gives the same weights. The floor keeps channels
  // that the sample's queries did not use from being thrown away.
  for (size_t c = 0; c < dim; ++c)
    weights[c] = static_cast<float>(std::sqrt(std::max(moment[c] / mean, 0.0) + .003));
  return weights;
}

// Rows that do not count give way to the next one that does: y, [dim][64].
void FillUncounted(uint64_t counted, size_t dim, float* y) {
  if (counted == ~uint64_t{0}) return;
  std::array<size_t, kSegmentRows> source;
  for (size_t r = 0; r < kSegmentRows; ++r) {
    const uint64_t from = counted >> r;
    source[r] = static_cast<size_t>(from != 0 ? static_cast<int>(r) + std::countr_zero(from)
                                              : std::countr_zero(counted));
  }
  for (size_t c = 0; c < dim; ++c, y += kSegmentRows) {
    const float first = y[source[kSegmentRows - 1]];  // for rows past the last that counts
    for (size_t r = 0; r < kSegmentRows; ++r) y[r] = source[r] >= r ? y[source[r]] : first;
  }
}

// Without weights, residuals as they are.
CodeSample MakeSample(const TrainArgs& args, const float* weights) {
  CodeSample sample;
  sample.dim = static_cast<size_t>(args.keys.dim);
  const int n_used = std::min(args.n_segments, kMostTrainSegments);
  sample.y.resize(static_cast<size_t>(n_used) * kSegmentRows * sample.dim);
  for (int i = 0; i < n_used; ++i) {
    const int64_t at = int64_t{i} * args.n_segments / std::max(n_used, 1);
    const size_t s = static_cast<size_t>(args.segments[at]);
    if (!std::isfinite(args.centroid_scales[s])) continue;  // rows that are not finite
    const int8_t* tile = args.centroids + s / kTileSegments * kTileSegments * sample.dim;
    SegmentKeys keys = args.keys;
    keys.k += s * kSegmentRows * keys.k_stride;
    HWY_DYNAMIC_DISPATCH(Weigh)
    (keys, tile + s % kTileSegments, args.centroid_scales[s], weights,
     sample.channel(sample.n_segments, 0));
    if (args.counted != nullptr)
      FillUncounted(args.counted[at], sample.dim, sample.channel(sample.n_segments, 0));
    ++sample.n_segments;
  }
  return sample;
}

// A channel whose variance overflows counts as constant, which codes nothing of it.
std::vector<ChannelSpread> Spreads(CodeSample& sample) {
  std::vector<ChannelSpread> spreads(sample.dim);
  if (sample.n_segments == 0) return spreads;
  for (size_t c = 0; c < sample.dim; ++c) {
    const ChannelSpread spread = HWY_DYNAMIC_DISPATCH(SpreadOf)(sample, c);
    if (std::isfinite(spread.var)) spreads[c] = spread;
  }
  return spreads;
}

// Whether channels of 1, 2, 3 and 4 bits fit into the nibbles: ones go beside threes first.
bool Fits(const std::array<int, kMostBits + 1>& n_with, int n_nibbles) {
  const int small = 2 * n_with[2] + std::max(0, n_with[1] - n_with[3]);
  return n_with[4] + n_with[3] + (small + 3) / 4 <= n_nibbles;
}

// Bits per channel, one at a time to the channel whose error falls most, among those that leave the
// channels packable (eleven channels of three bits are not, in eight nibbles).
std::vector<int> GiveBits(const std::vector<ChannelSpread>& spreads, int n_nibbles) {
  std::vector<int> bits(spreads.size());
  std::array<int, kMostBits + 1> n_with{};
  for (int given = 0; given < kMostBits * n_nibbles; ++given) {
    size_t best = 0;
    double greatest = 0;
    for (size_t c = 0; c < spreads.size(); ++c) {
      const int b = bits[c];
      if (b == kMostBits) continue;
      const double drop = spreads[c].var * (kDistortion[b] - kDistortion[b + 1]);
      if (!(drop > greatest)) continue;
      std::array<int, kMostBits + 1> after = n_with;
      --after[b], ++after[b + 1];
      if (Fits(after, n_nibbles)) best = c, greatest = drop;
    }
    if (greatest == 0) break;
    --n_with[bits[best]], ++n_with[bits[best] + 1];
    ++bits[best];
  }
  return bits;
}

using Nibbles = std::vector<std::vector<size_t>>;  // channels, per nibble

// Most bits first, each into the first nibble with room.
Nibbles Pack(const std::vector<int>& bits, int n_nibbles) {
  Nibbles nibbles(static_cast<size_t>(n_nibbles));
  std::vector<int> room(nibbles.size(), kMostBits);
  for (int b = kMostBits; b > 0; --b) {
    for (size_t c = 0; c < bits.size(); ++c) {
      if (bits[c] != b) continue;
      size_t n = 0;
      while (n < room.size() && room[n] < b) ++n;
      CONDENSE_CHECK(n < room.size());
      room[n] -= b;
      nibbles[n].push_back(c);
    }
  }
  return nibbles;
}

// The two nibbles of a byte share a range of 8 bits in a query's tables: the widest goes with the
// narrowest.
void PairByVariance(const std::vector<ChannelSpread>& spreads, Nibbles& nibbles) {
  std::vector<std::pair<float, std::vector<size_t>>> order;
  for (std::vector<size_t>& channels : nibbles) {
    float var = 0;
    for (size_t c : channels) var += spreads[c].var;
    order.emplace_back(var, std::move(channels));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t p = 0; p < order.size() / 2; ++p) {
    nibbles[2 * p] = std::move(order[p].second);
    nibbles[2 * p + 1] = std::move(order[order.size() - 1 - p].second);
  }
}

// The product of its channels' uniform quantisers; fewer than 4 bits repeat the grid, and the
// repeated entries are never nearest.
void AppendGrid(const std::vector<size_t>& channels, const std::vector<int>& bits,
                const std::vector<ChannelSpread>& spreads, std::vector<float>& entries) {
  int inner = 1;
  for (size_t c : channels) {
    const int n_levels = 1 << bits[c];
    const float step = std::sqrt(spreads[c].var) * kStep[bits[c]];
    for (int e = 0; e < kNibbleEntries; ++e) {
      const float level =
          static_cast<float>(e / inner % n_levels) - 0.5f * static_cast<float>(n_levels - 1);
      entries.push_back(spreads[c].mean + step * level);
    }
    inner *= n_levels;
  }
}

KeyAxes AxesOf(const TrainArgs& args, const CodeSample& sample,
               const std::vector<ChannelSpread>& spreads) {
  std::vector<float> mean;
  for (const ChannelSpread& spread : spreads) mean.push_back(spread.mean);
  return FindKeyAxes(Covariance(sample.y.data(), sample.n_segments, sample.dim, mean.data()),
                     args.keys.dim, args.query_products, args.query_moment);
}

// Mean and variance along the axes, of residuals with such means along the channels.
std::vector<ChannelSpread> SpreadsOfAxes(const KeyAxes& axes,
                                         const std::vector<ChannelSpread>& of_channels) {
  const size_t dim = of_channels.size();
  std::vector<ChannelSpread> spreads(dim);
  for (size_t a = 0; a < dim; ++a) {
    double mean = 0;
    for (size_t c = 0; c < dim; ++c)
      mean += static_cast<double>(axes.to_code[a * dim + c]) * of_channels[c].mean;
    spreads[a] = {static_cast<float>(mean), static_cast<float>(axes.variance[a])};
  }
  return spreads;
}

// The sample along the first axes, as far as one has bits.
CodeSample RotatedSample(const KeyAxes& axes, const std::vector<int>& bits, CodeSample& sample) {
  CodeSample rotated;
  rotated.n_segments = sample.n_segments;
  for (size_t a = 0; a < bits.size(); ++a) {
    if (bits[a] > 0) rotated.dim = a + 1;
  }
  rotated.y.resize(rotated.n_segments * rotated.dim * kSegmentRows);
  HWY_DYNAMIC_DISPATCH(Rotate)(axes, sample, rotated);
  return rotated;
}

void AppendRow(const std::vector<float>& matrix, size_t dim, size_t row, std::vector<float>& to) {
  to.insert(to.end(), matrix.data() + row * dim, matrix.data() + (row + 1) * dim);
}

// From the coded sample, whose channels have such bits and spreads: what the nibbles hold. Channels
// weigh 1 where there are no weights.
TokenCodebook MakeBook(const TrainArgs& args, CodeSample& sample, const std::vector<int>& bits,
                       const std::vector<ChannelSpread>& spreads, const float* weights) {
  Nibbles nibbles = Pack(bits, args.n_nibbles);
  PairByVariance(spreads, nibbles);
  TokenCodebook book;
  book.dim = args.keys.dim, book.n_nibbles = args.n_nibbles;
  book.first.push_back(0);
  for (const std::vector<size_t>& channels : nibbles) {
    const size_t begin = book.channel.size();
    for (size_t c : channels) {
      book.channel.push_back(static_cast<uint8_t>(c));
      book.weight.push_back(weights != nullptr ? weights[c] : 1.0f);
    }
    std::vector<float> entries;
    AppendGrid(channels, bits, spreads, entries);
    book.first.push_back(static_cast<uint8_t>(book.channel.size()));
    HWY_DYNAMIC_DISPATCH(KMeans)
    (sample, book.channel.data() + begin, channels.size(), kRounds, entries.data());
    for (float entry : entries) book.entries.push_back(BF16FromFinite(entry));
  }
  return book;
}

TokenCodebook TrainWeighted(const TrainArgs& args) {
  const std::vector<float> weights =
      ChannelWeights(args.query_moment, static_cast<size_t>(args.keys.dim));
  CodeSample sample = MakeSample(args, weights.data());
  const std::vector<ChannelSpread> spreads = Spreads(sample);
  return MakeBook(args, sample, GiveBits(spreads, args.n_nibbles), spreads, weights.data());
}

TokenCodebook TrainRotated(const TrainArgs& args) {
  CodeSample sample = MakeSample(args, nullptr);
  const std::vector<ChannelSpread> of_channels = Spreads(sample);
  const KeyAxes axes = AxesOf(args, sample, of_channels);
  if (axes.empty()) return TrainWeighted(args);
  const std::vector<ChannelSpread> spreads = SpreadsOfAxes(axes, of_channels);
  const std::vector<int> bits = GiveBits(spreads, args.n_nibbles);
  CodeSample rotated = RotatedSample(axes, bits, sample);
  TokenCodebook book = MakeBook(args, rotated, bits, spreads, nullptr);
  for (uint8_t axis : book.channel) {
    AppendRow(axes.to_code, sample.dim, axis, book.to_code);
    AppendRow(axes.to_query, sample.dim, axis, book.to_query);
  }
  return book;
}

}  // namespace

TokenCodebook TrainCodebook(const TrainArgs& args) {
  CONDENSE_CHECK(args.n_nibbles == 8 || args.n_nibbles == kMostNibbles);
  CONDENSE_CHECK(args.keys.dim >= 16 && args.keys.dim <= 256 && args.keys.dim % 16 == 0);
  return args.rotate ? TrainRotated(args) : TrainWeighted(args);
}

}  // namespace condense
#endif  // HWY_ONCE
