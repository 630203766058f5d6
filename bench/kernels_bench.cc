// The kernels' speed on one core, beside what the core can do: bytes of K and V (or of summaries)
// per second and as a share of a plain sum over a large buffer, and multiply-adds as a share of the
// register-only peak. Asserts nothing. --benchmark_repetitions=9 gives medians and spread;
// CONDENSE_BENCH_TARGET forces an instruction set.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "bench/machine.h"
#include "kernels/attend.h"
#include "kernels/half.h"
#include "kernels/summary.h"
#include "kernels/target.h"
#include "kernels_report.h"

namespace condense {
namespace {

constexpr int kDim = 64;
constexpr int kKvHeads = 3;
constexpr int kGroup = 3;
// A host's cache of one layer after another: rows of all KV heads next to each other, K and V
// apart.
struct Cache {
  Cache(KvType type_in, size_t n_rows_in)
      : type(type_in), row(KvBytes(type_in, kDim * kKvHeads)), n_rows(n_rows_in) {
    std::mt19937 random(1);
    std::vector<std::byte> pattern(row * 512);
    for (size_t i = 0; i < pattern.size(); i += 2) {
      // Halves in (-2, 2) for f16 and as q8_0's scale; any byte is a q8_0 value.
      const uint16_t half =
          static_cast<uint16_t>((random() & 0x83FF) | 0x3800 | (random() & 0x0400));
      std::memcpy(&pattern[i], &half, 2);
    }
    const size_t n_bytes = row * n_rows;
    for (Bytes* rows : {&k, &v}) {
      rows->reset(
          static_cast<std::byte*>(std::aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096)));
      for (size_t at = 0; at < n_bytes; at += pattern.size()) {
        std::memcpy(rows->get() + at, pattern.data(), std::min(pattern.size(), n_bytes - at));
      }
    }
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Bytes = std::unique_ptr<std::byte, Free>;
  KvType type;
  size_t row, n_rows;
  Bytes k, v;  // aligned as a host's buffers are: rows of 384 bytes start on cache lines
};

// One decode step's or prefill tile's call on rows [first, first + 16 n_blocks) of a head.
struct Call {
  Call(const Cache& cache, int n_queries, int n_blocks)
      : q(n_queries * kDim, 0.25f),
        o(n_queries * kDim),
        max(n_queries),
        sum(n_queries),
        mask(n_blocks, 0xFFFF),
        masks(n_queries, mask.data()) {
    for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i));
    args.k_stride = args.v_stride = cache.row;
    args.k_type = args.v_type = cache.type;
    args.k_dim = args.v_dim = kDim;
    args.n_blocks = n_blocks;
    args.n_queries = n_queries;
    args.q = q.data(), args.masks = masks.data();
    args.scale = 0.125f;
    args.o = o.data(), args.max = max.data(), args.sum = sum.data();
  }
  void Run(const Cache& cache, size_t first_row, int head) {
    const size_t at = first_row * cache.row + KvBytes(cache.type, kDim) * head;
    args.k = cache.k.get() + at, args.v = cache.v.get() + at;
    AttendChunk(args);
    benchmark::DoNotOptimize(o.data());
  }
  std::vector<float> q, o, max, sum;
  RowMask mask;
  std::vector<const uint16_t*> masks;
  AttendArgs args;
};

double CallBytes(const Cache& cache, int n_rows) {
  return 2.0 * n_rows * KvBytes(cache.type, kDim);
}
double CallFlops(int n_rows, int n_queries) { return 4.0 * n_rows * n_queries * kDim; }

void StreamRead(benchmark::State& state) {
  const std::vector<float> values(kLargeBytes / sizeof(float), 1.0f);
  for (auto _ : state) benchmark::DoNotOptimize(SumStream(values.data(), values.size()));
  Report(state, kLargeBytes, 0);
}

void PeakMultiplyAdd(benchmark::State& state) {
  double flops = 0;
  for (auto _ : state) flops = Multiply(1000000);
  state.counters["flops"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                               benchmark::Counter::kIsRate);
}

// All chunks of a cache larger than the last-level cache, each KV head's rows once, as a dense
// decode step does.
void DecodeFromMemory(benchmark::State& state, KvType type, int n_queries) {
  const Cache cache(type,
                    kLargeBytes / (2 * KvBytes(type, kDim * kKvHeads)) / kChunkRows * kChunkRows);
  Call call(cache, n_queries, kChunkBlocks);
  size_t row = 0;
  int head = 0;
  for (auto _ : state) {
    call.Run(cache, row, head);
    head = (head + 1) % kKvHeads;
    if (head == 0) row = (row + kChunkRows) % cache.n_rows;
  }
  Report(state, CallBytes(cache, kChunkRows), CallFlops(kChunkRows, n_queries));
}

void DecodeFromCache(benchmark::State& state, KvType type, int n_queries) {
  const Cache cache(type, 1024);  // f16: 768 KiB with all heads
  Call call(cache, n_queries, kChunkBlocks);
  int n = 0;
  for (auto _ : state) {
    call.Run(cache, n / kKvHeads % 2 * kChunkRows, n % kKvHeads);
    ++n;
  }
  Report(state, CallBytes(cache, kChunkRows), CallFlops(kChunkRows, n_queries));
}

// 12 scattered blocks in a cache larger than the last-level cache: 3 in each of 4 chunks.
void SparseFromMemory(benchmark::State& state, KvType type) {
  const Cache cache(type,
                    kLargeBytes / (2 * KvBytes(type, kDim * kKvHeads)) / kChunkRows * kChunkRows);
  Call call(cache, kGroup, kChunkBlocks);
  std::fill(call.mask.begin(), call.mask.end(), 0);
  for (int b : {3, 14, 27}) call.mask[b] = 0xFFFF;
  std::mt19937 random(5);
  for (auto _ : state) {
    for (int i = 0; i < 4; ++i) {
      call.Run(cache, random() % (cache.n_rows / kChunkRows) * kChunkRows,
               static_cast<int>(random() % kKvHeads));
    }
  }
  Report(state, CallBytes(cache, 12 * kBlockRows), 0);
}

void PrefillTile(benchmark::State& state, KvType type, bool causal) {
  const Cache cache(type, kChunkRows);
  constexpr int kRows = 32;
  Call call(cache, kRows * kGroup, kChunkBlocks);
  std::vector<RowMask> masks;
  int n_pairs = 0;
  for (int row = 0; row < kRows; ++row) {
    RowMask mask(kChunkBlocks);
    AddRange(mask, {0, causal ? kChunkRows - kRows + row + 1 : kChunkRows});
    n_pairs += kGroup * CountRows(mask);
    masks.push_back(mask);
  }
  for (int query = 0; query < kRows * kGroup; ++query)
    call.masks[query] = masks[query / kGroup].data();
  for (auto _ : state) call.Run(cache, 0, 1);
  Report(state, 0, CallFlops(n_pairs, 1));
}

void MeanScores(benchmark::State& state) {
  const int n_tiles = 512 / kTileBlocks;
  const std::vector<uint16_t> tiles(n_tiles * kDim * kTileBlocks, 0x3800);
  const std::vector<float> q(kDim, 0.5f);
  std::vector<float> scores(512);
  for (auto _ : state) {
    ScoreMean(tiles.data(), n_tiles, kDim, q.data(), 0.125f, scores.data());
    benchmark::DoNotOptimize(scores.data());
  }
  Report(state, 2.0 * static_cast<double>(tiles.size()), 2.0 * 512 * kDim);
}

void Summaries(benchmark::State& state) {
  const Cache cache(KvType::kF16, 16);
  std::vector<float> mean(kDim), min(kDim), max(kDim);
  for (auto _ : state) {
    SummarizeRows(cache.k.get(), cache.row, cache.type, kBlockRows, kDim,
                  {.mean = mean.data(), .min = min.data(), .max = max.data()});
    benchmark::DoNotOptimize(mean.data());
  }
  Report(state, kBlockRows * KvBytes(cache.type, kDim), 0);
}

void MaskToBits(benchmark::State& state) {
  const std::vector<uint16_t> mask(8192, 0);
  std::vector<uint16_t> bits(512);
  for (auto _ : state) benchmark::DoNotOptimize(MaskBits(mask.data(), 8192, bits.data()));
  Report(state, 2 * 8192, 0);
}

BENCHMARK(StreamRead)->Unit(benchmark::kMillisecond);
BENCHMARK(PeakMultiplyAdd)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(DecodeFromMemory, f16_group_3, KvType::kF16, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromMemory, q8_0_group_3, KvType::kQ8_0, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, f16_group_1, KvType::kF16, 1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, f16_group_3, KvType::kF16, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, f16_group_7, KvType::kF16, 7)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, bf16_group_3, KvType::kBF16, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, f32_group_3, KvType::kF32, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(DecodeFromCache, q8_0_group_3, KvType::kQ8_0, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(SparseFromMemory, f16_12_blocks, KvType::kF16)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(PrefillTile, f16_full, KvType::kF16, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(PrefillTile, f16_causal, KvType::kF16, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(PrefillTile, q8_0_full, KvType::kQ8_0, false)->Unit(benchmark::kMicrosecond);
BENCHMARK(MeanScores);
BENCHMARK(Summaries);
BENCHMARK(MaskToBits);

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  if (const char* target = std::getenv("CONDENSE_BENCH_TARGET")) {
    const condense::Status status = condense::ForceTarget(target);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.error().c_str());
      return 1;
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("instruction_set", condense::CurrentTarget());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
