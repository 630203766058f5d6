// The token codes' kernels on one core, by the sizes of a decode step: a scan's parts, the ranking,
// and the upkeep (encoding, training). Part of condense_kernels_bench.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/half.h"
#include "kernels/token_codes.h"
#include "kernels/top.h"

namespace condense {
namespace {

// One KV head's coded rows and a group's queries, and what a step writes.
struct CodedHead {
  CodedHead(int n_rows, int dim_in, int n_heads_in, uint32_t seed = 1)
      : dim(dim_in), n_heads(n_heads_in), n_segments(n_rows / kSegmentRows), random(seed) {
    const size_t row = static_cast<size_t>(dim);
    keys_of_rows.resize(n_rows * row);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < keys_of_rows.size(); ++i) {
      // Channels of unlike spread, some with an offset, as cached keys have them.
      const size_t c = i % row;
      const float value = normal(random) * (c % 7 == 0 ? 4.0f : 1.0f) + (c % 16 == 3 ? 6.0f : 0.0f);
      keys_of_rows[i] = F16FromF32Saturated(value);
    }
    keys = {reinterpret_cast<const std::byte*>(keys_of_rows.data()), 2 * row, KvType::kF16, dim};
    centroids.resize(CentroidBytes(n_segments, dim));
    scales.resize(SegmentTiles(n_segments) * kTileSegments);
    for (int s = 0; s < n_segments; ++s) {
      EncodeCentroid(Segment(s), Tile(s), s % kTileSegments, &scales[s]);
      if (s % std::max(1, n_segments / kMostTrainSegments) == 0) sample.push_back(s);
    }
    moment.assign(row, 1.0f);
    train.keys = keys;
    train.segments = sample.data(), train.n_segments = static_cast<int>(sample.size());
    train.centroids = centroids.data(), train.centroid_scales = scales.data();
    train.query_moment = moment.data();
    book = TrainCodebook(train);
    codes.resize(CodeBytes(n_segments, book.n_nibbles));
    for (int s = 0; s < n_segments; ++s) Encode(s);
    q.resize(n_heads * row);
    for (float& value : q) value = normal(random);
    tables.resize(n_heads);
    bases.resize(n_heads * scales.size()), sums.resize(bases.size());
    estimates.resize(static_cast<size_t>(n_heads) * n_rows);
    max.resize(n_heads), share.resize(n_heads);
    worth.resize(n_rows), keys_of_worth.resize(n_rows), best.resize(n_rows);
    scan.view = {dim, book.n_nibbles, n_segments, codes.data(), centroids.data(), scales.data()};
    scan.n_heads = n_heads, scan.tables = tables.data();
    scan.bases = bases.data(), scan.bases_stride = scales.size();
    scan.estimates = estimates.data(), scan.estimates_stride = n_rows;
  }
  SegmentKeys Segment(int s) const {
    SegmentKeys at = keys;
    at.k += static_cast<size_t>(s) * kSegmentRows * keys.k_stride;
    return at;
  }
  int8_t* Tile(int s) {
    return centroids.data() + static_cast<size_t>(s / kTileSegments) * kTileSegments * dim;
  }
  void Encode(int s) {
    EncodeSegment(book, Segment(s), Tile(s), s % kTileSegments, scales[s],
                  codes.data() + CodeBytes(s, book.n_nibbles));
  }

  void Tables() {
    for (int h = 0; h < n_heads; ++h) MakeQueryTable(book, &q[h * dim], 0.125f, &tables[h]);
  }
  void Scan() {
    CentroidLogits(scan.view, q.data(), n_heads, 0.125f, 0, n_segments, bases.data(),
                   scan.bases_stride);
    ScanCodes(scan, 0, n_segments, max.data());
  }
  void Exp() {
    ExpEstimates(estimates.data(), scan.estimates_stride, n_heads, max.data(), 0, n_segments,
                 sums.data(), scan.bases_stride);
  }
  void Worth() {
    for (int h = 0; h < n_heads; ++h)
      share[h] = 1 / SumInOrder(&sums[h * scan.bases_stride], n_segments);
    WorthOfRows(estimates.data(), scan.estimates_stride, n_heads, share.data(), 0, n_segments,
                worth.data());
  }
  int Top() {
    const int n = static_cast<int>(worth.size());
    return TopScores(worth.data(), n, n * 7 / 100, keys_of_worth.data(), best.data());
  }

  int dim, n_heads, n_segments;
  std::mt19937 random;
  std::vector<uint16_t> keys_of_rows;
  SegmentKeys keys;
  std::vector<int8_t> centroids;
  std::vector<float> scales, moment;
  std::vector<int32_t> sample;
  TrainArgs train;
  TokenCodebook book;
  std::vector<uint8_t> codes;
  std::vector<float> q, bases, sums, estimates, max, share, worth;
  std::vector<QueryTable> tables;
  std::vector<int32_t> keys_of_worth;
  std::vector<int> best;
  ScanArgs scan;
};

enum Part { kTables, kScan, kExp, kWorth, kTop };

// One part of a step for one KV head, again and again: from the second-level cache.
template <Part kPart>
void CodesPart(benchmark::State& state) {
  CodedHead head(static_cast<int>(state.range(0)), 64, static_cast<int>(state.range(1)));
  head.Tables(), head.Scan();
  const std::vector<float> estimates = head.estimates;
  head.Exp(), head.Worth();
  if (kPart == kExp) {
    // The exponentials of probabilities cost what those of logits do.
    head.estimates = estimates;
    for (float& max : head.max) max = 100;
  }
  for (auto _ : state) {
    if (kPart == kTables) head.Tables();
    if (kPart == kScan) head.Scan();
    if (kPart == kExp) head.Exp();
    if (kPart == kWorth) head.Worth();
    if (kPart == kTop) benchmark::DoNotOptimize(head.Top());
    benchmark::ClobberMemory();
  }
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(state.range(0)),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

// All of it for one layer's KV heads, one after the other, over 16 layers in turns: codes come from
// the last-level cache or from memory, the scratch from the second level. Arguments: rows, heads of
// the group, KV heads.
void CodesStep(benchmark::State& state) {
  const size_t n_heads = 16 * static_cast<size_t>(state.range(2));
  CodedHead head(static_cast<int>(state.range(0)), 64, static_cast<int>(state.range(1)));
  const std::vector<std::vector<uint8_t>> codes(n_heads, head.codes);
  const std::vector<std::vector<int8_t>> centroids(n_heads, head.centroids);
  size_t at = 0;
  for (auto _ : state) {
    for (int i = 0; i < state.range(2); ++i) {
      head.scan.view.codes = codes[at].data();
      head.scan.view.centroids = centroids[at].data();
      at = (at + 1) % n_heads;
      head.Tables(), head.Scan(), head.Exp(), head.Worth();
      benchmark::DoNotOptimize(head.Top());
    }
  }
}

void CodesEncode(benchmark::State& state) {
  CodedHead head(1024, static_cast<int>(state.range(0)), 1);
  int s = 0;
  for (auto _ : state) {
    EncodeCentroid(head.Segment(s), head.Tile(s), s % kTileSegments, &head.scales[s]);
    head.Encode(s);
    s = (s + 1) % head.n_segments;
  }
}

void CodesTrain(benchmark::State& state) {
  CodedHead head(4096, static_cast<int>(state.range(0)), 1);
  for (auto _ : state) benchmark::DoNotOptimize(TrainCodebook(head.train));
}

#define CODES_SIZES Args({8192, 3})->Args({32768, 7})->Unit(benchmark::kMicrosecond)
BENCHMARK(CodesPart<kTables>)->Name("CodesTables")->CODES_SIZES;
BENCHMARK(CodesPart<kScan>)->Name("CodesScan")->CODES_SIZES;
BENCHMARK(CodesPart<kExp>)->Name("CodesExp")->CODES_SIZES;
BENCHMARK(CodesPart<kWorth>)->Name("CodesWorth")->CODES_SIZES;
BENCHMARK(CodesPart<kTop>)->Name("CodesTop")->CODES_SIZES->Args({131072, 3});
BENCHMARK(CodesStep)->Args({8192, 3, 3})->Args({32768, 7, 2})->Unit(benchmark::kMicrosecond);
BENCHMARK(CodesEncode)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);
BENCHMARK(CodesTrain)->Arg(64)->Arg(128)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace condense
