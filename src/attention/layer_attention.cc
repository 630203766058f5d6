// Orders the work of one attention node. The arithmetic is kernels/attend.h's; this file decides
// which rows each query reads, splits the work over threads, and merges partial states in chunk
// order.
#include "attention/layer_attention.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/observe.h"
#include "attention/step.h"
#include "attention/visibility.h"
#include "base/result.h"
#include "kernels/attend.h"

namespace condense {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t NsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Rows of one stream that share their pass over K and V.
struct Tile {
  int stream = 0;
  int row_begin = 0, row_end = 0;
  const Selection* selection = nullptr;  // null: everything visible is read
  bool reverse = false;
};

// Query rows of a prefill tile: 32 rows of a group of 3 fill the registers and keep scores in L2.
constexpr int kTileQueries = 96;

struct Scratch {
  std::vector<float> q, o, max, sum, sum_v;
  std::vector<const uint16_t*> masks, v_masks, bias;

  void Resize(int n_queries, int k_dim, int v_dim) {
    q.resize(static_cast<size_t>(n_queries) * k_dim);
    o.resize(static_cast<size_t>(n_queries) * v_dim);
    max.resize(n_queries);
    sum.resize(n_queries);
    sum_v.resize(n_queries);
    masks.resize(n_queries);
    v_masks.resize(n_queries);
    bias.resize(n_queries);
  }
};

class NodeRunner {
 public:
  NodeRunner(const AttentionNode& node, LayerCache& cache, const Policy& policy, int n_threads,
             AttentionSink& sink)
      : node_(node),
        cache_(cache),
        policy_(policy),
        n_threads_(n_threads),
        sink_(sink),
        group_(node.n_query_heads / node.kv.n_kv_heads),
        n_blocks_(BlocksFor(node.kv.n_rows)),
        n_chunks_(ChunksFor(node.kv.n_rows)) {}

  void Run() {
    visibility_.Scan(node_, n_threads_);
    MakeTiles();
    const auto start = Clock::now();
    const size_t n_jobs = tiles_.size() * node_.kv.n_kv_heads;
    if (n_jobs >= 4 * static_cast<size_t>(n_threads_) && tiles_.size() > 1) {
      RunWholeTiles();
    } else {
      RunSplitTiles();
    }
    if (n_single_ > 0) sink_.attend_ns += NsSince(start);
    if (sink_.on_observations && n_single_ > 0) {
      for (size_t i = 0; i < singles_.size(); ++i) {
        if (selections_[i].dense) continue;
        ObserveStep(node_, View(singles_[i].stream), singles_[i].stream, singles_[i].row,
                    Visible(singles_[i]), selections_[i], n_threads_, sink_.on_observations);
      }
    }
  }

 private:
  struct Single {
    int stream, row;
  };

  KvView View(int stream) const {
    KvView view = node_.kv;
    view.k += stream * node_.k_stream;
    view.v += stream * node_.v_stream;
    return view;
  }

  std::span<const uint16_t> Visible(const Single& single) const {
    return {visibility_.Row(single.stream, 0, single.row), static_cast<size_t>(n_blocks_)};
  }

  void MakeTiles() {
    const auto start = Clock::now();
    std::vector<uint8_t> is_single(node_.n_rows);
    for (int s = 0; s < node_.n_streams; ++s) {
      FindDecodeRows(node_, visibility_, s, cache_.Stream(node_.first_stream + s).written,
                     is_single);
      for (int r = 0; r < node_.n_rows; ++r) {
        if (is_single[r]) singles_.push_back({s, r});
      }
    }
    n_single_ = static_cast<int>(singles_.size());
    selections_.resize(singles_.size());
    for (size_t i = 0; i < singles_.size(); ++i) SelectRow(singles_[i], selections_[i]);
    if (n_single_ > 0) sink_.select_ns += NsSince(start);

    size_t next_single = 0;
    uint64_t multi_rows = 0;
    const int rows_per_tile = std::max(1, kTileQueries / group_);
    for (int s = 0; s < node_.n_streams; ++s) {
      int row = 0;
      while (row < node_.n_rows) {
        const bool single = next_single < singles_.size() && singles_[next_single].stream == s &&
                            singles_[next_single].row == row;
        Tile tile;
        tile.stream = s;
        tile.row_begin = row;
        if (single) {
          tile.row_end = row + 1;
          const Selection& selection = selections_[next_single];
          if (!selection.dense) tile.selection = &selection;
          tile.reverse = policy_.reverse_order();
          ++next_single;
        } else {
          const int limit = next_single < singles_.size() && singles_[next_single].stream == s
                                ? singles_[next_single].row
                                : node_.n_rows;
          tile.row_end = std::min(row + rows_per_tile, limit);
          multi_rows += tile.row_end - row;
        }
        row = tile.row_end;
        tiles_.push_back(tile);
      }
      cache_.Stream(node_.first_stream + s).written.clear();
    }
    if (multi_rows > 0 && sink_.on_multi_rows) sink_.on_multi_rows(node_.layer, multi_rows);
  }

  void SelectRow(const Single& single, Selection& selection) {
    const std::span<const uint16_t> visible = Visible(single);
    const int n_visible = CountRows(visible);
    StreamCache& stream = cache_.Stream(node_.first_stream + single.stream);
    selection.dense = true;
    selection.reason = Fallback::kNone;
    if (!policy_.is_dense()) {
      if (!stream.writes_seen) {
        selection.reason = Fallback::kUntracked;
      } else if (visibility_.has_bias()) {
        selection.reason = Fallback::kBias;
      } else {
        const KvView view = View(single.stream);
        bool continued = false;
        SequenceState* state = &stream.Sequence(visible, n_visible, &continued);
        // Rows that grew by what was just written: two whole blocks in rotation. Else: all.
        const bool current = stream.index.SpotCheck(view, continued ? 2 : -1) &&
                             (!node_.check_all_blocks || stream.index.CheckLastRows(view));
        if (!current) {
          stream.ForgetChoices();
          state = &stream.Sequence(visible, n_visible, &continued);
        }
        query_.resize(static_cast<size_t>(node_.n_query_heads) * view.k_dim);
        for (int h = 0; h < node_.n_query_heads; ++h) CopyQuery(single, h, &query_[h * view.k_dim]);
        LayerQuery query;
        query.layer = node_.layer;
        query.kv = &view;
        query.index = &stream.index;
        query.visible = visible;
        query.n_visible = n_visible;
        for (int written : stream.written) {
          if (written < view.n_rows && HasRow(visible, written)) query.newest_row = written;
        }
        query.q = query_.data();
        query.n_query_heads = node_.n_query_heads;
        query.scale = node_.scale;
        query.softcap = node_.softcap;
        query.memory = &state->memory;
        policy_.Select(query, selection);
      }
    }
    if (sink_.on_step)
      sink_.on_step(CountStep(node_, policy_, selection, visible.size(), n_visible));
  }

  void CopyQuery(const Single& single, int head, float* to) const {
    std::memcpy(
        to,
        node_.q + single.stream * node_.q_stream + head * node_.q_head + single.row * node_.q_row,
        sizeof(float) * node_.kv.k_dim);
  }

  // Queries of tile x KV head, ordered by row, then by head of the group. Masks start at block
  // `block`.
  AttendArgs Prepare(const Tile& tile, int kv_head, Scratch& scratch) const {
    const int n_queries = (tile.row_end - tile.row_begin) * group_;
    scratch.Resize(n_queries, node_.kv.k_dim, node_.kv.v_dim);
    int i = 0;
    for (int row = tile.row_begin; row < tile.row_end; ++row) {
      for (int h = 0; h < group_; ++h, ++i) {
        CopyQuery({tile.stream, row}, kv_head * group_ + h, &scratch.q[i * node_.kv.k_dim]);
      }
    }
    const KvView view = View(tile.stream);
    AttendArgs args;
    args.k_stride = view.k_row;
    args.v_stride = view.v_row;
    args.k_type = view.k_type;
    args.v_type = view.v_type;
    args.k_dim = view.k_dim;
    args.v_dim = view.v_dim;
    args.n_queries = n_queries;
    args.q = scratch.q.data();
    args.masks = scratch.masks.data();
    args.v_masks =
        tile.selection && !tile.selection->v_masks.empty() ? scratch.v_masks.data() : nullptr;
    args.bias = visibility_.has_bias() ? scratch.bias.data() : nullptr;
    args.scale = node_.scale;
    args.softcap = node_.softcap;
    args.reverse = tile.reverse;
    args.sum_v = args.v_masks ? scratch.sum_v.data() : nullptr;
    args.o = scratch.o.data();
    args.max = scratch.max.data();
    args.sum = scratch.sum.data();
    return args;
  }

  // Points `args` at one chunk; false where no query reads a row of it.
  bool AtChunk(const Tile& tile, int kv_head, int chunk, Scratch& scratch, AttendArgs& args) const {
    const int block = chunk * kChunkBlocks;
    args.n_blocks = std::min(kChunkBlocks, n_blocks_ - block);
    const KvView view = View(tile.stream);
    args.k = view.KeyRow(kv_head, block * kBlockRows);
    args.v = view.ValueRow(kv_head, block * kBlockRows);
    bool any = false;
    int i = 0;
    for (int row = tile.row_begin; row < tile.row_end; ++row) {
      for (int h = 0; h < group_; ++h, ++i) {
        const int head = kv_head * group_ + h;
        if (tile.selection) {
          const int set = tile.selection->per_query_head ? head : kv_head;
          scratch.masks[i] = tile.selection->KMask(set) + block;
          scratch.v_masks[i] = tile.selection->VMask(set) + block;
        } else {
          scratch.masks[i] = visibility_.Row(tile.stream, head, row) + block;
        }
        if (args.bias)
          scratch.bias[i] = visibility_.Bias(tile.stream, head, row) + block * kBlockRows;
        any = any || (i > 0 && scratch.masks[i] == scratch.masks[i - 1]
                          ? any
                          : AnyRow(scratch.masks[i], args.n_blocks));
      }
    }
    return any;
  }

  static bool AnyRow(const uint16_t* words, int n) {
    uint16_t any = 0;
    for (int i = 0; i < n; ++i) any = static_cast<uint16_t>(any | words[i]);
    return any != 0;
  }

  // Sinks, the value that takes unread mass, the normaliser.
  void Finish(const Tile& tile, int row, int head, float* o, float max, float sum,
              float sum_v) const {
    const int v_dim = node_.kv.v_dim;
    if (tile.selection && !tile.selection->rest_value.empty()) {
      const float* rest = tile.selection->rest_value.data() + static_cast<size_t>(head) * v_dim;
      const float mass = sum - sum_v;
      for (int d = 0; d < v_dim; ++d) o[d] += mass * rest[d];
    }
    if (node_.sinks) {
      const float sink = node_.sinks[head];
      const float top = std::max(max, sink);
      const float shrink =
          max == -std::numeric_limits<float>::infinity() ? 0.0f : std::exp(max - top);
      for (int d = 0; d < v_dim; ++d) o[d] *= shrink;
      sum = sum * shrink + std::exp(sink - top);
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    float* out =
        node_.out +
        ((static_cast<size_t>(tile.stream) * node_.n_rows + row) * node_.n_query_heads + head) *
            v_dim;
    for (int d = 0; d < v_dim; ++d) out[d] = o[d] * inverse;
  }

  static int Chunk(const Tile& tile, int i, int n_chunks) {
    return tile.reverse ? n_chunks - 1 - i : i;
  }

  // Many tiles (prefill): a thread takes a whole (tile, KV head) and walks its chunks.
  void RunWholeTiles() {
    const int n_heads = node_.kv.n_kv_heads;
    const int n_jobs = static_cast<int>(tiles_.size()) * n_heads;
    const int v_dim = node_.kv.v_dim;
#pragma omp parallel num_threads(n_threads_)
    {
      static thread_local Scratch scratch;
      static thread_local std::vector<float> o, max, sum, sum_v;
#pragma omp for schedule(dynamic, 1)
      for (int job = 0; job < n_jobs; ++job) {
        // Later rows see more: the longest jobs first.
        const Tile& tile = tiles_[tiles_.size() - 1 - job / n_heads];
        const int kv_head = job % n_heads;
        AttendArgs args = Prepare(tile, kv_head, scratch);
        o.assign(static_cast<size_t>(args.n_queries) * v_dim, 0.0f);
        max.assign(args.n_queries, -std::numeric_limits<float>::infinity());
        sum.assign(args.n_queries, 0.0f);
        sum_v.assign(args.n_queries, 0.0f);
        for (int c = 0; c < n_chunks_; ++c) {
          if (!AtChunk(tile, kv_head, Chunk(tile, c, n_chunks_), scratch, args)) continue;
          AttendChunk(args);
          for (int i = 0; i < args.n_queries; ++i) {
            MergeState({&o[i * v_dim], &max[i], &sum[i], args.sum_v ? &sum_v[i] : nullptr},
                       {args.o + i * v_dim, args.max + i, args.sum + i,
                        args.sum_v ? args.sum_v + i : nullptr},
                       v_dim);
          }
        }
        for (int i = 0; i < args.n_queries; ++i) {
          Finish(tile, tile.row_begin + i / group_, kv_head * group_ + i % group_, &o[i * v_dim],
                 max[i], sum[i], args.sum_v ? sum_v[i] : sum[i]);
        }
      }
    }
  }

  // Few tiles (decoding, verification): threads share (tile, KV head, chunk); states are merged
  // afterwards.
  void RunSplitTiles() {
    const int n_heads = node_.kv.n_kv_heads;
    const int v_dim = node_.kv.v_dim;
    int max_queries = 0;
    for (const Tile& tile : tiles_) {
      max_queries = std::max(max_queries, (tile.row_end - tile.row_begin) * group_);
    }
    const size_t n_jobs = tiles_.size() * n_heads * n_chunks_;
    // One slot a (job, query): o, max, sum, sum_v. max = -inf marks the empty state.
    const size_t slot = v_dim + 3;
    static thread_local std::vector<float> partial_buffer;
    if (partial_buffer.size() < n_jobs * max_queries * slot) {
      partial_buffer.resize(n_jobs * max_queries * slot);
    }
    // The team's other threads must see this thread's buffer, not a thread-local of their own.
    float* const partials = partial_buffer.data();
    const int n_finish = static_cast<int>(tiles_.size()) * n_heads;
#pragma omp parallel num_threads(n_threads_)
    {
      static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 1)
      for (size_t job = 0; job < n_jobs; ++job) {
        const Tile& tile = tiles_[job / (n_heads * n_chunks_)];
        const int kv_head = static_cast<int>(job / n_chunks_ % n_heads);
        const int chunk = static_cast<int>(job % n_chunks_);
        AttendArgs args = Prepare(tile, kv_head, scratch);
        float* slots = partials + job * max_queries * slot;
        const bool any = AtChunk(tile, kv_head, chunk, scratch, args);
        if (any) AttendChunk(args);
        for (int i = 0; i < args.n_queries; ++i) {
          float* to = slots + i * slot;
          to[v_dim] = any ? args.max[i] : -std::numeric_limits<float>::infinity();
          to[v_dim + 1] = any ? args.sum[i] : 0.0f;
          to[v_dim + 2] = any && args.sum_v ? args.sum_v[i] : 0.0f;
          if (any) std::memcpy(to, args.o + i * v_dim, sizeof(float) * v_dim);
        }
      }
#pragma omp for schedule(static)
      for (int f = 0; f < n_finish; ++f) {
        const Tile& tile = tiles_[f / n_heads];
        const int kv_head = f % n_heads;
        const int n_queries = (tile.row_end - tile.row_begin) * group_;
        const bool split = tile.selection && !tile.selection->v_masks.empty();
        static thread_local std::vector<float> o;
        for (int i = 0; i < n_queries; ++i) {
          o.assign(v_dim, 0.0f);
          float max = -std::numeric_limits<float>::infinity(), sum = 0.0f, sum_v = 0.0f;
          for (int c = 0; c < n_chunks_; ++c) {
            const size_t job = static_cast<size_t>(f) * n_chunks_ + Chunk(tile, c, n_chunks_);
            float* from = partials + (job * max_queries + i) * slot;
            if (from[v_dim] == -std::numeric_limits<float>::infinity()) continue;
            MergeState({o.data(), &max, &sum, split ? &sum_v : nullptr},
                       {from, from + v_dim, from + v_dim + 1, split ? from + v_dim + 2 : nullptr},
                       v_dim);
          }
          Finish(tile, tile.row_begin + i / group_, kv_head * group_ + i % group_, o.data(), max,
                 sum, split ? sum_v : sum);
        }
      }
    }
  }

  const AttentionNode& node_;
  LayerCache& cache_;
  const Policy& policy_;
  const int n_threads_;
  AttentionSink& sink_;
  const int group_, n_blocks_, n_chunks_;
  Visibility visibility_;
  std::vector<Single> singles_;
  std::vector<Selection> selections_;
  std::vector<Tile> tiles_;
  std::vector<float> query_;
  int n_single_ = 0;
};

}  // namespace

void ComputeAttention(const AttentionNode& node, LayerCache& cache, const Policy& policy,
                      int n_threads, AttentionSink& sink) {
  CONDENSE_CHECK(node.n_query_heads % node.kv.n_kv_heads == 0);
  NodeRunner(node, cache, policy, n_threads, sink).Run();
}

}  // namespace condense
