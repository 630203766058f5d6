// The token codes' kernels on one core, by the sizes of a decode step: a scan's parts, the ranking,
// and the upkeep (encoding, training). Part of condense_kernels_bench.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "kernels/codes_case.h"
#include "kernels/token_codes.h"
#include "kernels_report.h"

namespace condense {
namespace {

// One KV head's coded rows, and a step's results in place.
struct CodedHead : CodedKeys {
  CodedHead(int n_rows, int dim, int n_heads)
      : CodedKeys({.n_segments = n_rows / kSegmentRows, .dim = dim, .n_heads = n_heads}),
        best(static_cast<size_t>(n_rows) + kSpare) {
    Encode();
    Step(shape.n_segments);
    least = WorthOfTwice(kPercent);
  }
  void Scan() { CodedKeys::Scan(0, shape.n_segments); }
  void Collect() {
    Shares();
    n_found = CodedKeys::Collect(0, shape.n_segments, least);
  }
  void Top() { CodedKeys::Top(kPercent, 2 * least, best.data()); }
  // What a scan reads.
  double bytes() const {
    return static_cast<double>(codes.size() + centroids.size() + sizeof(float) * scales.size());
  }

  static constexpr int kPercent = 7;  // of the rows are taken
  float least = 0;
  std::vector<int32_t> best;
};

enum Part { kTables, kScan, kCollect, kTop };

// One part of a step for one KV head, again and again: from the second-level cache.
template <Part kPart>
void CodesPart(benchmark::State& state) {
  CodedHead head(static_cast<int>(state.range(0)), 64, static_cast<int>(state.range(1)));
  head.Collect();
  for (auto _ : state) {
    if (kPart == kTables) head.Tables();
    if (kPart == kScan) head.Scan();
    if (kPart == kCollect) head.Collect();
    if (kPart == kTop) head.Top();
    benchmark::ClobberMemory();
  }
  Report(state, kPart == kScan ? head.bytes() : 0, 0);
}

// All of it for a layer's KV heads, one after the other, over some layers in turns: of one, codes
// come from the second-level cache, of 64, from the last level or memory. Arguments: rows, heads of
// the group, KV heads, layers.
void CodesStep(benchmark::State& state) {
  const size_t n_heads = static_cast<size_t>(state.range(3) * state.range(2));
  CodedHead head(static_cast<int>(state.range(0)), 64, static_cast<int>(state.range(1)));
  const std::vector<std::vector<uint8_t>> codes(n_heads, head.codes);
  const std::vector<std::vector<int8_t>> centroids(n_heads, head.centroids);
  size_t at = 0;
  for (auto _ : state) {
    for (int i = 0; i < state.range(2); ++i) {
      head.scan.view.codes = codes[at].data();
      head.scan.view.centroids = centroids[at].data();
      at = (at + 1) % n_heads;
      head.Tables(), head.Scan(), head.Collect(), head.Top();
    }
  }
  Report(state, head.bytes() * static_cast<double>(state.range(2)), 0);
}

void CodesEncode(benchmark::State& state) {
  CodedHead head(1024, static_cast<int>(state.range(0)), 1);
  int s = 0;
  for (auto _ : state) {
    EncodeCentroid(head.Segment(s), head.Tile(s), s % kTileSegments, &head.scales[s]);
    head.EncodeCodes(s);
    s = (s + 1) % head.shape.n_segments;
  }
}

void CodesTrain(benchmark::State& state) {
  CodedHead head(4096, static_cast<int>(state.range(0)), 1);
  for (auto _ : state) benchmark::DoNotOptimize(TrainCodebook(head.train));
}

#define CODES_SIZES Args({8192, 3})->Args({32768, 7})->Unit(benchmark::kMicrosecond)
BENCHMARK(CodesPart<kTables>)->Name("CodesTables")->CODES_SIZES;
BENCHMARK(CodesPart<kScan>)->Name("CodesScan")->CODES_SIZES;
BENCHMARK(CodesPart<kCollect>)->Name("CodesCollect")->CODES_SIZES;
BENCHMARK(CodesPart<kTop>)->Name("CodesTop")->CODES_SIZES->Args({131072, 3});
BENCHMARK(CodesStep)
    ->Args({8192, 3, 3, 1})
    ->Args({8192, 3, 3, 64})
    ->Args({32768, 7, 2, 1})
    ->Args({32768, 7, 2, 64})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(CodesEncode)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);
BENCHMARK(CodesTrain)->Arg(64)->Arg(128)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace condense
