// Orders the work of one attention node. The arithmetic is kernels/attend.h's; this file decides
// which rows each query reads, splits the work over threads, and merges partial states in chunk
// order.
#include "attention/layer_attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/observe.h"
#include "attention/prompt_pass.h"
#include "attention/step.h"
#include "attention/workspace.h"
#include "base/clock.h"
#include "base/result.h"
#include "kernels/attend.h"

namespace condense {
namespace {

// Blocks of a sparse row's list that are one unit of work: 193 rows of 3 KV heads make 6 units.
constexpr int kListBlocks = 8;
static_assert(kListBlocks <= kChunkBlocks);

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

class NodeRunner {
 public:
  NodeRunner(const AttentionNode& node, LayerCache& cache, const Policy& policy, int n_threads,
             AttentionSink& sink, Workspace& work)
      : node_(node),
        cache_(cache),
        policy_(policy),
        n_threads_(n_threads),
        sink_(sink),
        work_(work),
        group_(node.n_query_heads / node.kv.n_kv_heads),
        n_blocks_(BlocksFor(node.kv.n_rows)),
        n_chunks_(ChunksFor(node.kv.n_rows)) {}

  void Run() {
    work_.visibility.Scan(node_, n_threads_);
    MakeTiles();
    const auto start = Clock::now();
    MakeUnits();
    const size_t n_jobs = work_.tiles.size() * node_.kv.n_kv_heads;
    if (n_jobs >= 4 * static_cast<size_t>(n_threads_) && work_.tiles.size() > 1) {
      RunWholeTiles();
    } else {
      RunSplitTiles();
    }
    const std::vector<SingleRow>& singles = work_.singles;
    if (!singles.empty()) sink_.attend_ns += NsSince(start);
    if (work_.calls.any()) AddShares(node_, work_.visibility, work_.calls, n_threads_);
    if (sink_.on_observations) {
      for (size_t i = 0; i < singles.size(); ++i) {
        if (work_.selections[i].dense) continue;
        ObserveStep(node_, View(singles[i].stream), singles[i].stream, singles[i].row,
                    Visible(singles[i]), work_.selections[i], n_threads_, sink_);
      }
    }
  }

 private:
  KvView View(int stream) const { return node_.View(stream); }

  // What a tile's rows read.
  KvView View(const RowTile& tile) const {
    const KvView host = View(tile.stream);
    return tile.selection != nullptr ? tile.selection->ReadFrom(host) : host;
  }

  std::span<const uint16_t> Visible(const SingleRow& single) const {
    return {work_.visibility.Row(single.stream, 0, single.row), static_cast<size_t>(n_blocks_)};
  }

  void MakeTiles() {
    const auto start = Clock::now();
    std::vector<SingleRow>& singles = work_.singles;
    std::vector<RowTile>& tiles = work_.tiles;
    singles.clear();
    tiles.clear();
    work_.calls.shared.clear();
    work_.is_single.resize(node_.n_rows);
    for (int s = 0; s < node_.n_streams; ++s) {
      StreamCache& stream = cache_.Stream(node_.first_stream + s);
      FindDecodeRows(node_, work_.visibility, s, stream.written, work_.is_single);
      for (int r = 0; r < node_.n_rows; ++r) {
        if (work_.is_single[r]) singles.push_back({s, r});
      }
      NotePromptQueries(node_, s, work_.is_single,
                        node_.query_products || policy_.wants_query_products(), work_.prompt_rows,
                        stream.codes);
      TakeCalls(node_, work_.visibility, s, work_.is_single, stream, work_.calls);
    }
    if (work_.calls.any()) work_.calls.states.Resize(node_);
    if (work_.selections.size() < singles.size()) work_.selections.resize(singles.size());
    for (size_t i = 0; i < singles.size(); ++i) SelectRow(singles[i], work_.selections[i]);

    size_t next_single = 0;
    uint64_t multi_rows = 0;
    const int rows_per_tile = std::max(1, kTileQueries / group_);
    for (int s = 0; s < node_.n_streams; ++s) {
      int row = 0;
      while (row < node_.n_rows) {
        const bool stream_has_single =
            next_single < singles.size() && singles[next_single].stream == s;
        RowTile tile;
        tile.stream = s;
        tile.row_begin = row;
        if (stream_has_single && singles[next_single].row == row) {
          tile.row_end = row + 1;
          const Selection& selection = work_.selections[next_single];
          if (!selection.dense && !KeepsAll(singles[next_single], selection))
            tile.selection = &selection;
          tile.reverse = policy_.reverse_order();
          ++next_single;
        } else {
          const int limit = stream_has_single ? singles[next_single].row : node_.n_rows;
          tile.row_end = std::min(row + rows_per_tile, limit);
          multi_rows += tile.n_rows();
        }
        row = tile.row_end;
        tiles.push_back(tile);
      }
      cache_.Stream(node_.first_stream + s).written.clear();
    }
    const size_t n_choices = tiles.size() * node_.kv.n_kv_heads;
    if (work_.choices.size() < n_choices) work_.choices.resize(n_choices);
    for (size_t t = 0; t < tiles.size(); ++t) {
      if (tiles[t].selection == nullptr) continue;
      for (int g = 0; g < node_.kv.n_kv_heads; ++g)
        Choice(t, g).List(*tiles[t].selection, g, group_);
    }
    // The lists of blocks are a part of choosing.
    if (!singles.empty()) sink_.select_ns += NsSince(start);
    for (size_t i = 0; i < singles.size(); ++i) {
      sink_.select_ns -= work_.selections[i].logits_ns;
      sink_.attend_ns += work_.selections[i].logits_ns;
    }
    if (multi_rows > 0 && sink_.on_multi_rows) sink_.on_multi_rows(node_.layer, multi_rows);
  }

  BlockChoice& Choice(size_t tile, int kv_head) const {
    return work_.choices[tile * node_.kv.n_kv_heads + kv_head];
  }

  // A selection of every visible row is computed as dense attention is, to the same bits.
  bool KeepsAll(const SingleRow& single, const Selection& selection) const {
    if (!selection.v_masks.empty() || selection.has_tail) return false;
    const std::span<const uint16_t> visible = Visible(single);
    const int n_sets = selection.per_query_head ? node_.n_query_heads : node_.kv.n_kv_heads;
    for (int set = 0; set < n_sets; ++set) {
      if (!std::equal(visible.begin(), visible.end(), selection.KMask(set))) return false;
    }
    return true;
  }

  void SelectRow(const SingleRow& single, Selection& selection) {
    const std::span<const uint16_t> visible = Visible(single);
    const int n_visible = CountRows(visible);
    const KvView view = View(single.stream);
    SelectStep({.node = node_,
                .view = view,
                .stream = single.stream,
                .row = single.row,
                .visible = visible,
                .n_visible = n_visible,
                .has_bias = work_.visibility.has_bias(),
                .n_threads = n_threads_},
               policy_, cache_.Stream(node_.first_stream + single.stream), work_.query, selection);
    if (sink_.on_step)
      sink_.on_step(CountStep(node_, policy_, selection, visible.size(), n_visible));
  }

  // Queries of tile x KV head, ordered by row, then by head of the group.
  AttendArgs Prepare(const RowTile& tile, int kv_head, QueryScratch& scratch) const {
    const int n_queries = tile.n_rows() * group_;
    scratch.Resize(n_queries, node_.kv.k_dim, node_.kv.v_dim);
    int i = 0;
    for (int row = tile.row_begin; row < tile.row_end; ++row) {
      for (int h = 0; h < group_; ++h, ++i) {
        CopyQuery(node_, tile.stream, row, kv_head * group_ + h, &scratch.q[i * node_.kv.k_dim]);
      }
    }
    const KvView view = View(tile);
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
    args.scale = node_.scale;
    args.softcap = node_.softcap;
    args.reverse = tile.reverse;
    args.o = scratch.o.data();
    args.max = scratch.max.data();
    args.sum = scratch.sum.data();
    return args;
  }

  // Points `args` at blocks of the cache; false where no query reads a row of them.
  bool AtBlocks(const RowTile& tile, int kv_head, int block, int n_blocks, QueryScratch& scratch,
                AttendArgs& args) const {
    const KvView view = View(tile.stream);
    args.n_blocks = n_blocks;
    args.k = view.KeyRow(kv_head, block * kBlockRows);
    args.v = view.ValueRow(kv_head, block * kBlockRows);
    args.bias = work_.visibility.has_bias() ? scratch.bias.data() : nullptr;
    bool any = false;
    int i = 0;
    for (int row = tile.row_begin; row < tile.row_end; ++row) {
      for (int h = 0; h < group_; ++h, ++i) {
        const int head = kv_head * group_ + h;
        scratch.masks[i] = work_.visibility.Row(tile.stream, head, row) + block;
        if (args.bias)
          scratch.bias[i] = work_.visibility.Bias(tile.stream, head, row) + block * kBlockRows;
        any = any || (i > 0 && scratch.masks[i] == scratch.masks[i - 1]
                          ? any
                          : AnyRow(scratch.masks[i], n_blocks));
      }
    }
    return any;
  }

  // Points `args` at entries of a sparse row's list.
  void AtList(const RowTile& tile, const WorkUnit& unit, const WorkUnit* next,
              QueryScratch& scratch, AttendArgs& args) const {
    const KvView view = View(tile);
    const BlockChoice& choice = Choice(unit.tile, unit.kv_head);
    args.n_blocks = unit.n_blocks;
    if (choice.rows.empty()) {
      args.blocks = choice.blocks.data() + unit.begin;
    } else {
      args.rows = RowsOf(choice, unit);
      args.logits = choice.logits == nullptr
                        ? nullptr
                        : choice.logits + static_cast<size_t>(unit.begin) * kBlockRows;
      args.logits_stride = choice.logits_stride;
      if (next != nullptr && next->tile == unit.tile) PointAtNext(view, *next, args);
    }
    args.k = view.KeyRow(unit.kv_head, 0);
    args.v = view.ValueRow(unit.kv_head, 0);
    const bool split = !choice.v_masks.empty();
    for (int h = 0; h < group_; ++h) {
      scratch.masks[h] = choice.KMask(h) + unit.begin;
      if (split) scratch.v_masks[h] = choice.VMask(h) + unit.begin;
    }
    args.v_masks = split ? scratch.v_masks.data() : nullptr;
  }

  static const int32_t* RowsOf(const BlockChoice& choice, const WorkUnit& unit) {
    return choice.rows.data() + static_cast<size_t>(unit.begin) * kBlockRows;
  }

  // The rows that this thread attends to next, where they are a list too.
  void PointAtNext(const KvView& view, const WorkUnit& next, AttendArgs& args) const {
    const BlockChoice& choice = Choice(next.tile, next.kv_head);
    if (choice.rows.empty() || choice.logits != nullptr) return;
    args.next_k = view.KeyRow(next.kv_head, 0);
    args.next_rows = RowsOf(choice, next);
    args.n_next_rows = next.n_blocks * kBlockRows;
  }

  static bool AnyRow(const uint16_t* words, int n) {
    uint16_t any = 0;
    for (int i = 0; i < n; ++i) any = static_cast<uint16_t>(any | words[i]);
    return any != 0;
  }

  // What stands for rows not read. MergeState only reads it.
  AttendState TailOf(const Selection& selection, int head) const {
    Selection::PartialState& tail = const_cast<Selection&>(selection).tail;
    float* sum = &tail.sum[head];
    return {&tail.o[static_cast<size_t>(head) * node_.kv.v_dim], &tail.max[head], sum, sum};
  }

  // The tail, sinks, the value that takes unread mass, the normaliser.
  void Finish(const RowTile& tile, int row, int head, float* o, float max, float sum,
              float sum_v) const {
    const int v_dim = node_.kv.v_dim;
    if (tile.selection && tile.selection->has_tail)
      MergeState({o, &max, &sum, &sum_v}, TailOf(*tile.selection, head), v_dim);
    if (tile.selection && !tile.selection->rest_value.empty()) {
      const float* rest = tile.selection->rest_value.data() + static_cast<size_t>(head) * v_dim;
      const float mass = sum - sum_v;
      for (int d = 0; d < v_dim; ++d) o[d] += mass * rest[d];
    }
    if (work_.calls.any()) {
      const size_t state = SoftmaxStates::Index(node_, tile.stream, row, head);
      work_.calls.states.max[state] = max;
      work_.calls.states.sum[state] = sum;
    }
    if (node_.sinks) {
      const float sink = node_.sinks[head];
      const float top = std::max(max, sink);
      const float shrink = max == kMinusInf ? 0.0f : std::exp(max - top);
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

  // The units of every tile, chunk by chunk and all KV heads of a chunk one after the other: a host
  // keeps the heads of a row next to each other. Sparse rows: list by list.
  void MakeUnits() {
    const int n_heads = node_.kv.n_kv_heads;
    work_.units.clear();
    work_.runs.clear();
    for (size_t t = 0; t < work_.tiles.size(); ++t) {
      const RowTile& tile = work_.tiles[t];
      const int tile_idx = static_cast<int>(t);
      const int first = static_cast<int>(work_.units.size());
      if (tile.selection == nullptr) {
        for (int i = 0; i < n_chunks_; ++i) {
          const int chunk = tile.reverse ? n_chunks_ - 1 - i : i;
          const int begin = chunk * kChunkBlocks;
          for (int g = 0; g < n_heads; ++g)
            work_.units.push_back({tile_idx, g, begin, std::min(kChunkBlocks, n_blocks_ - begin)});
        }
        for (int g = 0; g < n_heads; ++g) work_.runs.push_back({first + g, n_heads, n_chunks_});
        continue;
      }
      for (int g = 0; g < n_heads; ++g) {
        const int n = Choice(t, g).n_blocks;
        const int first_of_head = static_cast<int>(work_.units.size());
        for (int begin = 0; begin < n; begin += kListBlocks)
          work_.units.push_back({tile_idx, g, begin, std::min(kListBlocks, n - begin)});
        work_.runs.push_back(
            {first_of_head, 1, static_cast<int>(work_.units.size()) - first_of_head});
      }
    }
  }

  // args: prepared for the unit's tile and KV head; sum_v: where it goes where V is read for fewer
  // rows than K. False where no query reads a row of it.
  bool Attend(const WorkUnit& unit, const WorkUnit* next, float* sum_v, QueryScratch& scratch,
              AttendArgs& args) const {
    const RowTile& tile = work_.tiles[unit.tile];
    if (tile.selection != nullptr) {
      AtList(tile, unit, next, scratch, args);
      if (args.v_masks != nullptr) args.sum_v = sum_v;
    } else {
      if (!AtBlocks(tile, unit.kv_head, unit.begin, unit.n_blocks, scratch, args)) return false;
      if (next != nullptr && next->tile == unit.tile && next->n_blocks == kChunkBlocks)
        args.next_k = View(tile.stream).KeyRow(next->kv_head, next->begin * kBlockRows);
    }
    AttendChunk(args);
    return true;
  }

  // Many tiles (prefill): a thread takes a whole (tile, KV head) and walks its units.
  void RunWholeTiles() {
    const int n_heads = node_.kv.n_kv_heads;
    const int n_jobs = static_cast<int>(work_.tiles.size()) * n_heads;
    const int v_dim = node_.kv.v_dim;
#pragma omp parallel num_threads(n_threads_)
    {
      static thread_local QueryScratch scratch;
      static thread_local std::vector<float> o, max, sum, sum_v;
#pragma omp for schedule(dynamic, 1)
      for (int job = 0; job < n_jobs; ++job) {
        // Later rows see more: the longest jobs first.
        const int t = static_cast<int>(work_.tiles.size()) - 1 - job / n_heads;
        const RowTile& tile = work_.tiles[t];
        const int kv_head = job % n_heads;
        const Workspace::UnitRun& run = work_.runs[static_cast<size_t>(t) * n_heads + kv_head];
        AttendArgs args = Prepare(tile, kv_head, scratch);
        const int n_queries = args.n_queries;
        const bool split = tile.selection && !tile.selection->v_masks.empty();
        o.assign(static_cast<size_t>(n_queries) * v_dim, 0.0f);
        max.assign(n_queries, kMinusInf);
        sum.assign(n_queries, 0.0f);
        sum_v.assign(n_queries, 0.0f);
        for (int u = 0; u < run.n_units; ++u) {
          if (!Attend(work_.units[run.first_unit + u * run.step], nullptr, scratch.sum_v.data(),
                      scratch, args))
            continue;
          for (int i = 0; i < n_queries; ++i) {
            MergeState({&o[i * v_dim], &max[i], &sum[i], split ? &sum_v[i] : nullptr},
                       {&scratch.o[i * v_dim], &scratch.max[i], &scratch.sum[i],
                        split ? &scratch.sum_v[i] : nullptr},
                       v_dim);
          }
        }
        for (int i = 0; i < n_queries; ++i) {
          Finish(tile, tile.row_begin + i / group_, kv_head * group_ + i % group_, &o[i * v_dim],
                 max[i], sum[i], split ? sum_v[i] : sum[i]);
        }
      }
    }
  }

  // Few tiles (decoding, verification): each thread takes neighbouring units, whose rows follow
  // each other in the cache; states are merged afterwards.
  void RunSplitTiles() {
    const int v_dim = node_.kv.v_dim;
    int max_queries = 0;
    for (const RowTile& tile : work_.tiles)
      max_queries = std::max(max_queries, tile.n_rows() * group_);
    const size_t n_units = work_.units.size();
    // A unit's states, one after the other: o, then max, sum and sum_v of every query. max = -inf
    // marks the empty state.
    const size_t slot = static_cast<size_t>(max_queries) * (v_dim + 3);
    if (work_.partials.size() < n_units * slot) work_.partials.resize(n_units * slot);
    const auto partial = [&](size_t unit) {
      float* o = work_.partials.data() + unit * slot;
      float* max = o + static_cast<size_t>(max_queries) * v_dim;
      return Partial{o, max, max + max_queries, max + 2 * max_queries};
    };
    const int n_runs = static_cast<int>(work_.runs.size());
#pragma omp parallel num_threads(n_threads_)
    {
      static thread_local QueryScratch scratch;
      const size_t thread = omp_get_thread_num(), n_team = omp_get_num_threads();
      const size_t end = n_units * (thread + 1) / n_team;
      for (size_t u = n_units * thread / n_team; u < end; ++u) {
        const WorkUnit& unit = work_.units[u];
        const Partial out = partial(u);
        AttendArgs args = Prepare(work_.tiles[unit.tile], unit.kv_head, scratch);
        args.o = out.o, args.max = out.max, args.sum = out.sum;
        if (!Attend(unit, u + 1 < end ? &work_.units[u + 1] : nullptr, out.sum_v, scratch, args))
          std::fill_n(out.max, args.n_queries, kMinusInf);
      }
#pragma omp barrier
#pragma omp for schedule(static)
      for (int r = 0; r < n_runs; ++r) {
        const Workspace::UnitRun& run = work_.runs[r];
        const RowTile& tile = work_.tiles[r / node_.kv.n_kv_heads];
        const int kv_head = r % node_.kv.n_kv_heads;
        const bool split = tile.selection && !tile.selection->v_masks.empty();
        static thread_local std::vector<float> o;
        for (int i = 0; i < tile.n_rows() * group_; ++i) {
          o.assign(v_dim, 0.0f);
          float max = kMinusInf, sum = 0.0f, sum_v = 0.0f;
          for (int u = 0; u < run.n_units; ++u) {
            const size_t unit = static_cast<size_t>(run.first_unit) + u * run.step;
            const Partial from = partial(unit);
            if (from.max[i] == kMinusInf) continue;
            MergeState({o.data(), &max, &sum, split ? &sum_v : nullptr},
                       {from.o + static_cast<size_t>(i) * v_dim, from.max + i, from.sum + i,
                        split ? from.sum_v + i : nullptr},
                       v_dim);
          }
          Finish(tile, tile.row_begin + i / group_, kv_head * group_ + i % group_, o.data(), max,
                 sum, split ? sum_v : sum);
        }
      }
    }
  }

  struct Partial {
    float *o, *max, *sum, *sum_v;
  };

  const AttentionNode& node_;
  LayerCache& cache_;
  const Policy& policy_;
  const int n_threads_;
  AttentionSink& sink_;
  Workspace& work_;
  const int group_, n_blocks_, n_chunks_;
};

}  // namespace

void ComputeAttention(const AttentionNode& node, LayerCache& cache, const Policy& policy,
                      int n_threads, AttentionSink& sink) {
  CONDENSE_CHECK(node.n_query_heads % node.kv.n_kv_heads == 0);
  static thread_local Workspace workspace;
  NodeRunner(node, cache, policy, n_threads, sink, workspace).Run();
}

}  // namespace condense
