// Training of a token codebook: channel weights or axes, bits, packing into nibbles, k-means.
#include "kernels/codebook.h"

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

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codebook.cc"
#include "kernels/highway_config.h"
//
#include <hwy/foreach_target.h>
//
#include "kernels/code_nearest-inl.h"
#include "kernels/code_residuals-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace condense {
namespace HWY_NAMESPACE {

constexpr size_t kRows = kSegmentRows;
using Residuals = CodebookTrainer::Residuals;
using Spread = CodebookTrainer::Spread;

void Weigh(const SegmentKeys& keys, const int8_t* tile, float scale, const float* weights,
           float* y) {
  WithType(keys.k_type,
           [&]<KvType kType>() HWY_ATTR { WeighSegment<kType>(keys, tile, scale, weights, y); });
}

void Rotate(const KeyAxes& axes, Residuals& keys, Residuals& rotated) {
  for (size_t s = 0; s < keys.n_segments; ++s)
    RotateRows(axes.to_code.data(), rotated.dim, keys.dim, keys.channel(s, 0),
               rotated.channel(s, 0));
}

Spread SpreadOf(Residuals& sample, size_t c) {
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
  Spread spread;
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
HWY_INLINE void Round(Residuals& sample, const uint8_t* channels, float* entries) {
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

void KMeans(Residuals& sample, const uint8_t* channels, size_t n_channels, int n_rounds,
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

using Residuals = CodebookTrainer::Residuals;
using Spread = CodebookTrainer::Spread;

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

// Whether channels of 1, 2, 3 and 4 bits fit into the nibbles: ones go beside threes first.
bool Fits(const std::array<int, kMostBits + 1>& n_with, int n_nibbles) {
  const int small = 2 * n_with[2] + std::max(0, n_with[1] - n_with[3]);
  return n_with[4] + n_with[3] + (small + 3) / 4 <= n_nibbles;
}

// Bits per channel, one at a time to the channel whose error falls most, among those that leave the
// channels packable (eleven channels of three bits are not, in eight nibbles).
std::vector<int> GiveBits(const std::vector<Spread>& spreads, int n_nibbles) {
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
void PairByVariance(const std::vector<Spread>& spreads, Nibbles& nibbles) {
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

// The product of the uniform quantisers of `n` channels: entries, [n][16]. Fewer than 4 bits repeat
// the grid, and the repeated entries are never nearest.
void MakeGrid(const uint8_t* channels, size_t n, const std::vector<int>& bits,
              const std::vector<Spread>& spreads, float* entries) {
  int inner = 1;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t c = channels[i];
    const int n_levels = 1 << bits[c];
    const float step = std::sqrt(spreads[c].var) * kStep[bits[c]];
    for (int e = 0; e < kNibbleEntries; ++e) {
      const float level =
          static_cast<float>(e / inner % n_levels) - 0.5f * static_cast<float>(n_levels - 1);
      *entries++ = spreads[c].mean + step * level;
    }
    inner *= n_levels;
  }
}

KeyAxes AxesOf(const TrainArgs& args, const Residuals& sample, const std::vector<Spread>& spreads) {
  std::vector<float> mean;
  for (const Spread& spread : spreads) mean.push_back(spread.mean);
  return FindKeyAxes(Covariance(sample.y.data(), sample.n_segments, sample.dim, mean.data()),
                     args.keys.dim, args.query_products, args.query_moment);
}

// Mean and variance along the axes, of residuals with such means along the channels.
std::vector<Spread> SpreadsOfAxes(const KeyAxes& axes, const std::vector<Spread>& of_channels) {
  const size_t dim = of_channels.size();
  std::vector<Spread> spreads(dim);
  for (size_t a = 0; a < dim; ++a) {
    double mean = 0;
    for (size_t c = 0; c < dim; ++c)
      mean += static_cast<double>(axes.to_code[a * dim + c]) * of_channels[c].mean;
    spreads[a] = {static_cast<float>(mean), static_cast<float>(axes.variance[a])};
  }
  return spreads;
}

// As many as reach to the last that has bits.
size_t AxesWithBits(const std::vector<int>& bits) {
  size_t n = bits.size();
  while (n > 0 && bits[n - 1] == 0) --n;
  return n;
}

void AppendRow(const std::vector<float>& matrix, size_t dim, size_t row, std::vector<float>& to) {
  to.insert(to.end(), matrix.data() + row * dim, matrix.data() + (row + 1) * dim);
}

// Channels that the nibbles hold, without entries. Without weights they weigh 1.
TokenCodebook EmptyBook(const TrainArgs& args, const std::vector<int>& bits,
                        const std::vector<Spread>& spreads, const std::vector<float>& weights) {
  Nibbles nibbles = Pack(bits, args.n_nibbles);
  PairByVariance(spreads, nibbles);
  TokenCodebook book;
  book.dim = args.keys.dim, book.n_nibbles = args.n_nibbles;
  book.first.push_back(0);
  for (const std::vector<size_t>& channels : nibbles) {
    for (size_t c : channels) {
      book.channel.push_back(static_cast<uint8_t>(c));
      book.weight.push_back(weights[c]);
    }
    book.first.push_back(static_cast<uint8_t>(book.channel.size()));
  }
  book.entries.resize(book.channel.size() * kNibbleEntries);
  return book;
}

}  // namespace

void CodebookTrainer::Begin(const TrainArgs& args) {
  CONDENSE_CHECK(args.n_nibbles == 8 || args.n_nibbles == kMostNibbles);
  CONDENSE_CHECK(args.keys.dim >= 16 && args.keys.dim <= 256 && args.keys.dim % 16 == 0);
  args_ = args;
  const auto dim = static_cast<size_t>(args.keys.dim);
  if (args.rotate) {
    weights_.assign(dim, 1.0f);
  } else {
    weights_ = ChannelWeights(args.query_moment, dim);
  }
  used_.clear();
  const int n_wanted = std::min(args.n_segments, kMostTrainSegments);
  for (int i = 0; i < n_wanted; ++i) {
    const auto at = static_cast<int>(int64_t{i} * args.n_segments / n_wanted);
    // Not where rows are not finite.
    if (std::isfinite(args.centroid_scales[args.segments[at]])) used_.push_back(at);
  }
  sample_.Resize(used_.size(), dim);
  spreads_.assign(dim, Spread());
}

void CodebookTrainer::Sample(int i) {
  const int at = used_[i];
  const auto s = static_cast<size_t>(args_.segments[at]);
  const int8_t* tile = args_.centroids + s / kTileSegments * kTileSegments * sample_.dim;
  SegmentKeys keys = args_.keys;
  keys.k += s * kSegmentRows * keys.k_stride;
  float* y = sample_.channel(i, 0);
  HWY_DYNAMIC_DISPATCH(Weigh)
  (keys, tile + s % kTileSegments, args_.centroid_scales[s], weights_.data(), y);
  if (args_.counted != nullptr) FillUncounted(args_.counted[at], sample_.dim, y);
}

// A channel whose variance overflows counts as constant, which codes nothing of it.
void CodebookTrainer::Measure(int channel) {
  if (sample_.n_segments == 0) return;
  const Spread spread = HWY_DYNAMIC_DISPATCH(SpreadOf)(sample_, channel);
  if (std::isfinite(spread.var)) spreads_[channel] = spread;
}

void CodebookTrainer::Plan() {
  coded_ = &sample_;
  KeyAxes axes;
  if (args_.rotate) {
    axes = AxesOf(args_, sample_, spreads_);
    if (!axes.empty()) spreads_ = SpreadsOfAxes(axes, spreads_);
  }
  bits_ = GiveBits(spreads_, args_.n_nibbles);
  book_ = EmptyBook(args_, bits_, spreads_, weights_);
  if (axes.empty()) return;
  rotated_.Resize(sample_.n_segments, AxesWithBits(bits_));
  HWY_DYNAMIC_DISPATCH(Rotate)(axes, sample_, rotated_);
  coded_ = &rotated_;
  for (uint8_t axis : book_.channel) {
    AppendRow(axes.to_code, sample_.dim, axis, book_.to_code);
    AppendRow(axes.to_query, sample_.dim, axis, book_.to_query);
  }
}

void CodebookTrainer::TrainNibble(int nibble) {
  const size_t begin = book_.first[nibble], n = book_.first[nibble + 1] - begin;
  std::array<float, kNibbleChannels * kNibbleEntries> entries;
  MakeGrid(book_.channel.data() + begin, n, bits_, spreads_, entries.data());
  HWY_DYNAMIC_DISPATCH(KMeans)
  (*coded_, book_.channel.data() + begin, n, kRounds, entries.data());
  std::transform(entries.begin(), entries.begin() + n * kNibbleEntries,
                 book_.entries.begin() + begin * kNibbleEntries, BF16FromFinite);
}

TokenCodebook TrainCodebook(const TrainArgs& args) {
  CodebookTrainer trainer;
  trainer.Begin(args);
  for (int i = 0; i < trainer.n_samples(); ++i) trainer.Sample(i);
  for (int c = 0; c < trainer.n_channels(); ++c) trainer.Measure(c);
  trainer.Plan();
  for (int n = 0; n < trainer.n_nibbles(); ++n) trainer.TrainNibble(n);
  return trainer.TakeBook();
}

}  // namespace condense
#endif  // HWY_ONCE
