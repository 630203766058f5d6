#include "bench/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "bench/setup.h"
#include "kernels/attend.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr int kWindow = 64, kDistant = 2;
constexpr int kRunQueries = 64;  // a thread's at a time: neighbours' windows overlap
// Queries of one call of the kernel: they share the blocks of their windows. 6 of these and 16
// distant ones fit its list.
constexpr int kTileQueries = 8;
constexpr int kTileBlocks = kWindow / kBlockRows + 2 + kTileQueries * kDistant;
static_assert(kTileBlocks <= kChunkBlocks);
constexpr int kCallRows = 512;   // query rows of a dense call
constexpr int kWholeCalls = 16;  // sequences of up to this many calls are measured whole
constexpr int kSampledCalls = 6;

// [n_rows][n_heads][kDistant]: blocks wholly before the window, ascending; -1 where there are none.
std::vector<int32_t> RandomBlocks(int n_rows, int n_heads) {
  std::vector<int32_t> blocks(static_cast<size_t>(n_rows) * n_heads * kDistant, -1);
  std::mt19937 random(7);
  for (int row = 0; row < n_rows; ++row) {
    const int n_whole = std::max(0, row - kWindow + 1) / kBlockRows;
    for (int head = 0; head < n_heads; ++head) {
      int32_t* chosen = &blocks[(static_cast<size_t>(row) * n_heads + head) * kDistant];
      if (n_whole >= 1) chosen[0] = static_cast<int32_t>(random() % n_whole);
      if (n_whole >= 2) {
        chosen[1] = static_cast<int32_t>(random() % (n_whole - 1));
        chosen[1] += chosen[1] >= chosen[0];
        if (chosen[1] < chosen[0]) std::swap(chosen[0], chosen[1]);
      }
    }
  }
  return blocks;
}

// What neighbouring queries of one head are given: one list, a mask for each. What all read comes
// first.
struct TileSupply {
  std::array<int32_t, kTileBlocks> blocks;
  uint16_t masks[kTileQueries][kTileBlocks];
  int n_blocks = 0;

  template <class DistantOf>
  TileSupply(int row, int n_queries, const DistantOf& distant_of) {
    const auto word = [](int query_row, int block) -> uint16_t {
      const int from = std::max(query_row - kWindow + 1 - block * kBlockRows, 0);
      const int to = std::min(query_row - block * kBlockRows, kBlockRows - 1);
      if (from > to) return 0;
      return static_cast<uint16_t>((0xFFFFu << from) & (0xFFFFu >> (kBlockRows - 1 - to)));
    };
    const int last = row + n_queries - 1;
    const int first_block = std::max(0, row - kWindow + 1) / kBlockRows;
    for (const bool shared : {true, false}) {
      for (int block = first_block; block <= last / kBlockRows; ++block) {
        // The windows' ends are in the first and the last query.
        const bool all = word(row, block) == 0xFFFF && word(last, block) == 0xFFFF;
        if (all != shared) continue;
        for (int i = 0; i < n_queries; ++i) masks[i][n_blocks] = word(row + i, block);
        blocks[n_blocks++] = block;
      }
    }
    for (int query = 0; query < n_queries; ++query) {
      for (int d = 0; d < kDistant; ++d) {
        const int32_t block = distant_of(row + query)[d];
        if (block < 0) continue;
        for (int i = 0; i < n_queries; ++i) masks[i][n_blocks] = i == query ? 0xFFFF : 0;
        blocks[n_blocks++] = block;
      }
    }
  }
};

class Candidate {
 public:
  Candidate(const MadeCaches& caches, const MadeQueries& queries, int n_threads)
      : caches_(caches),
        queries_(queries),
        shape_(caches.shape()),
        n_threads_(n_threads),
        distant_(RandomBlocks(shape_.n_rows, shape_.n_query_heads)),
        out_(hwy::AllocateAligned<float>(static_cast<size_t>(shape_.n_rows) * shape_.n_query_heads *
                                         shape_.head_dim)) {
    CONDENSE_CHECK(out_ != nullptr);
  }

  void Run() {
    const int n_heads = shape_.n_query_heads, dim = shape_.head_dim;
    const int n_runs = (shape_.n_rows + kRunQueries - 1) / kRunQueries;
    const KvView view = caches_.View(0, shape_.n_rows);
#pragma omp parallel for num_threads(n_threads_) schedule(dynamic, 4)
    for (int job = 0; job < n_runs * n_heads; ++job) {
      // Head by head: one head's rows stay in the last-level cache.
      const int head = job / n_runs, run = job % n_runs;
      const int kv_head = head / shape_.group();
      AttendArgs args;
      args.k = view.KeyRow(kv_head, 0);
      args.v = view.ValueRow(kv_head, 0);
      args.k_stride = view.k_row, args.v_stride = view.v_row;
      args.k_type = view.k_type, args.v_type = view.v_type;
      args.k_dim = args.v_dim = dim;
      args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
      std::array<float, kTileQueries> max, sum;
      std::array<const uint16_t*, kTileQueries> masks;
      static thread_local std::vector<float> q, o;
      q.resize(static_cast<size_t>(kTileQueries) * dim);
      o.resize(q.size());
      args.masks = masks.data();
      args.q = q.data();
      args.o = o.data(), args.max = max.data(), args.sum = sum.data();
      const int end = std::min(shape_.n_rows, (run + 1) * kRunQueries);
      for (int row = run * kRunQueries; row < end; row += kTileQueries) {
        const int n = std::min(kTileQueries, end - row);
        const TileSupply supply = Supply(row, n, head);
        for (int i = 0; i < n; ++i) {
          masks[i] = supply.masks[i];
          std::copy_n(Query(row + i, head), dim, &q[static_cast<size_t>(i) * dim]);
        }
        args.n_queries = n;
        args.n_blocks = supply.n_blocks;
        args.blocks = supply.blocks.data();
        AttendChunk(args);
        for (int i = 0; i < n; ++i) {
          const float inverse = 1.0f / sum[i];
          float* out = Out(row + i, head);
          for (int c = 0; c < dim; ++c) out[c] = o[static_cast<size_t>(i) * dim + c] * inverse;
        }
      }
    }
  }

  // Rows given to one head, summed over all queries.
  double PairsAHead() const {
    double pairs = 0;
    for (int row = 0; row < shape_.n_rows; ++row) {
      const TileSupply supply = Supply(row, 1, 0);
      pairs += CountRows({supply.masks[0], static_cast<size_t>(supply.n_blocks)});
    }
    return pairs;
  }

  CheckResult Check() const {
    CheckResult result;
    const KvView view = caches_.View(0, shape_.n_rows);
    for (int i = 0; i <= 8; ++i) {
      const int row = static_cast<int>(static_cast<int64_t>(shape_.n_rows - 1) * i / 8);
      for (int head : SampleOfIndices(shape_.n_query_heads)) {
        const TileSupply supply = Supply(row, 1, head);
        RowMask mask(BlocksFor(shape_.n_rows), 0);
        for (int b = 0; b < supply.n_blocks; ++b) mask[supply.blocks[b]] = supply.masks[0][b];
        CheckedQuery query;
        query.q = Query(row, head);
        query.kv_head = head / shape_.group();
        query.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
        query.k_mask = query.v_mask = mask;
        CheckOutput(view, query, Out(row, head), result);
      }
    }
    return result;
  }

 private:
  TileSupply Supply(int row, int n_queries, int head) const {
    return {row, n_queries, [&](int query_row) { return Distant(query_row, head); }};
  }
  const int32_t* Distant(int row, int head) const {
    return &distant_[(static_cast<size_t>(row) * shape_.n_query_heads + head) * kDistant];
  }
  const float* Query(int row, int head) const {
    return queries_.At(0, row) + static_cast<size_t>(head) * shape_.head_dim;
  }
  float* Out(int row, int head) const {
    return out_.get() + (static_cast<size_t>(row) * shape_.n_query_heads + head) * shape_.head_dim;
  }

  const MadeCaches& caches_;
  const MadeQueries& queries_;
  const Shape shape_;
  const int n_threads_;
  std::vector<int32_t> distant_;
  hwy::AlignedFreeUniquePtr<float[]> out_;
};

// Which calls of a dense pass are measured, and the pairs that each stands for.
struct SampledCall {
  int first_row = 0, n_rows = 0;
  double pairs = 0, stands_for = 0;
};

std::vector<SampledCall> SampleCalls(int n_rows) {
  const int n_calls = (n_rows + kCallRows - 1) / kCallRows;
  const int n_sampled = n_calls <= kWholeCalls ? n_calls : kSampledCalls;
  std::vector<SampledCall> calls;
  for (int i = 0; i < n_sampled; ++i) {
    // The middle call of each of n_sampled equal parts.
    const int begin = n_calls * i / n_sampled, end = n_calls * (i + 1) / n_sampled;
    SampledCall call;
    call.first_row = (begin + end) / 2 * kCallRows;
    call.n_rows = std::min(kCallRows, n_rows - call.first_row);
    call.pairs = VisiblePairs(call.first_row, call.n_rows);
    call.stands_for =
        VisiblePairs(begin * kCallRows, std::min(n_rows, end * kCallRows) - begin * kCallRows);
    calls.push_back(call);
  }
  return calls;
}

// arXiv 2602.06317 v3, table 5.
std::optional<Published> PublishedFor(int n_rows) {
  constexpr std::pair<int, double> kRatios[] = {
      {8192, 16.8}, {32768, 39.3}, {65536, 56.1}, {131072, 159.3}};
  for (const auto& [rows, ratio] : kRatios) {
    if (rows == n_rows) {
      return Published{ratio, "arXiv 2602.06317 v3, table 5, over dense SDPA on a GPU"};
    }
  }
  return std::nullopt;
}

uint64_t BytesFor(const Shape& shape) {
  const uint64_t width = static_cast<uint64_t>(shape.n_query_heads) * shape.head_dim;
  const auto n = static_cast<uint64_t>(shape.n_rows);
  return MadeCaches::BytesFor(shape, 1, 1, shape.n_rows) + n * (2 * 4 * width) +
         n * shape.n_query_heads * kDistant * 4 + n * kCallRows * 2;
}

Result<BenchOutcome> BenchOneLength(const BenchOptions& options, const BenchControl& control,
                                    Yard& yard) {
  const Shape& shape = options.shape;
  Result<MadeCaches> caches =
      MadeCaches::Make(shape, 1, 1, shape.n_rows, options.n_threads, options.huge_pages);
  if (!caches.ok()) return Error{caches.error()};
  const MadeQueries queries(shape, shape.n_rows, kCallRows);
  const std::unique_ptr<Policy> dense = std::move(MakePolicy("dense")->policy);
  Candidate candidate(caches.value(), queries, options.n_threads);
  OperatorArm dense_arm(caches.value(), queries, *dense, 1, 1, kCallRows, options.n_threads);
  CausalMask mask(shape.n_rows, kCallRows);
  std::unique_ptr<HostOperator> host;
  if (options.host) {
    Result<std::unique_ptr<HostOperator>> made = HostOperator::Make(options.n_threads);
    if (!made.ok()) return Error{made.error()};
    host = std::move(made.value());
  }

  // Arm 0 is the candidate pass; then each sampled call, ours and ggml's.
  const std::vector<SampledCall> calls = SampleCalls(shape.n_rows);
  std::vector<Arm> arms = {{"candidate", nullptr, [&](int) { candidate.Run(); }}};
  for (const SampledCall& call : calls) {
    const auto set_mask = [&](int) { mask.Set(call.first_row, call.n_rows); };
    arms.push_back(
        {"dense", set_mask, [&](int) { dense_arm.Run(mask, call.first_row, call.n_rows); }});
    if (host == nullptr) continue;
    arms.push_back({"ggml",
                    [&, set_mask](int round) {
                      set_mask(round);
                      const Status built = host->Build(caches.value(), 1, queries, call.first_row,
                                                       mask, call.n_rows);
                      CONDENSE_CHECK(built.ok());
                    },
                    [&](int) { CONDENSE_CHECK(host->Compute().ok()); }});
  }
  candidate.Run();
  const RoundTimes times =
      RunInTurns(arms, options.n_rounds > 0 ? options.n_rounds : 3, yard, options.n_threads,
                 fmt::format("candidate, {} rows", shape.n_rows), control);
  if (times.n_rounds() == 0) return BenchOutcome::kStopped;

  // The whole sequence's time, each round.
  const size_t stride = host != nullptr ? 2 : 1;
  const auto whole = [&](size_t first) {
    std::vector<double> ns(times.n_rounds(), 0.0);
    for (int round = 0; round < times.n_rounds(); ++round) {
      for (size_t i = 0; i < calls.size(); ++i) {
        ns[round] += times.ns[first + i * stride][round] * calls[i].stands_for / calls[i].pairs;
      }
    }
    return ns;
  };
  RoundTimes summed = times;
  summed.ns = {times.ns[0], whole(1)};
  if (host != nullptr) summed.ns.push_back(whole(2));

  Plan plan;
  std::vector<BenchRecord> records;
  const char* const names[] = {"candidate", "dense", "ggml"};
  const int n_calls = (shape.n_rows + kCallRows - 1) / kCallRows;
  for (size_t i = 0; i < summed.ns.size(); ++i) {
    BenchRecord record = NewRecord("candidate", names[i], shape, plan, options.n_threads);
    record.per = "sequence";
    record.n_query_rows = shape.n_rows;
    const double pairs = i == 0 ? candidate.PairsAHead() : VisiblePairs(0, shape.n_rows);
    record.visible_rows = pairs / shape.n_rows;
    record.flops = 4.0 * shape.head_dim * shape.n_query_heads * pairs;
    // The candidate kernel reads each head's rows for each query; a dense call must read them once.
    double row_reads = pairs * shape.group();
    if (i > 0) {
      row_reads = 0;
      for (int end = kCallRows; end < shape.n_rows + kCallRows; end += kCallRows) {
        row_reads += std::min(end, shape.n_rows);
      }
    }
    record.k_bytes = row_reads * static_cast<double>(shape.KeyRowBytes());
    record.v_bytes = row_reads * static_cast<double>(shape.ValueRowBytes());
    record.bytes = record.k_bytes + record.v_bytes;
    FillTimes(summed, i, 1, 1, yard, record);
    if (i != 1) record.ratio_to_dense = RatioOf(summed.ns[1], summed.ns[i]);
    if (i != 2 && host != nullptr) record.ratio_to_host = RatioOf(summed.ns[2], summed.ns[i]);
    if (i > 0) {
      record.note =
          static_cast<int>(calls.size()) == n_calls
              ? fmt::format("all {} calls of {} rows", n_calls, kCallRows)
              : fmt::format("{} of {} calls of {} rows, even over the positions, scaled by pairs",
                            calls.size(), n_calls, kCallRows);
    } else {
      record.published = PublishedFor(shape.n_rows);
    }
    records.push_back(std::move(record));
  }
  if (options.check && !times.stopped) {
    candidate.Run();
    NoteCheck(candidate.Check(), records[0]);
  }
  return Finish(records, times.stopped, control);
}

}  // namespace

Status CheckCandidate(const BenchOptions& options, const std::vector<int>& rows) {
  for (int n_rows : rows) {
    BenchOptions one = options;
    one.shape.n_rows = n_rows;
    one.n_layers = 1;
    Status status = CheckOptions(OperatorBench::kPrefill, one);
    if (!status.ok()) return status;
    const uint64_t needed = BytesFor(one.shape);
    if (options.free_bytes > 0 && needed > options.free_bytes / 10 * 8) {
      return Error{
          fmt::format("{} rows take {:.1f} GB with queries, outputs and masks, and {:.1f} GB "
                      "are free: pass a smaller --rows",
                      n_rows, 1e-9 * static_cast<double>(needed),
                      1e-9 * static_cast<double>(options.free_bytes))};
    }
  }
  return {};
}

Result<BenchOutcome> BenchCandidate(const BenchOptions& options, const std::vector<int>& rows,
                                    const BenchControl& control) {
  Result<std::unique_ptr<Yard>> yard =
      Yard::Make(options.buffer_bytes, options.free_bytes, options.n_threads, options.huge_pages);
  if (!yard.ok()) return Error{yard.error()};
  BenchOutcome worst = BenchOutcome::kDone;
  for (int n_rows : rows) {
    BenchOptions one = options;
    one.shape.n_rows = n_rows;
    Result<BenchOutcome> outcome = BenchOneLength(one, control, *yard.value());
    if (!outcome.ok() || outcome.value() == BenchOutcome::kStopped) return outcome;
    if (outcome.value() == BenchOutcome::kCheckFailed) worst = BenchOutcome::kCheckFailed;
  }
  return worst;
}

}  // namespace condense
