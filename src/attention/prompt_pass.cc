#include "attention/prompt_pass.h"

#include <algorithm>
#include <cmath>

#include "attention/step.h"
#include "base/row_mask.h"
#include "kernels/attend.h"
#include "kernels/column_sums.h"

namespace condense {
namespace {

// Query rows of one sequence, and the sums that their shares are added to.
struct Run {
  const AttentionNode& node;
  const Visibility& visibility;
  const SoftmaxStates& states;
  int stream;
  std::span<const int> rows;  // of the node, ascending
  KvView view;
  std::span<const uint16_t> masks;  // [n rows, n_blocks]: what counts of what they see
  std::span<float* const> sums;     // by query head: [rows of the cache, whole blocks]

  int n_blocks() const { return BlocksFor(view.n_rows); }
  const uint16_t* Mask(int i) const { return masks.data() + static_cast<size_t>(i) * n_blocks(); }
};

struct Scratch {
  std::vector<float> q, logits;
  std::vector<const uint16_t*> masks, bias;
};

// The last `window` of `visible`, all of them for 0, to `mask`.
void CopyLast(std::span<const uint16_t> visible, int window, uint16_t* mask) {
  if (window == 0) {
    std::copy(visible.begin(), visible.end(), mask);
    return;
  }
  const RowMask last = LastRows(visible, window);
  std::copy(last.begin(), last.end(), mask);
}

// Points `args` at rows [first, first + n) of the run over the chunk's blocks; false where they
// count none of them.
bool Prepare(const Run& run, int kv_head, int block, int first, int n, Scratch& scratch,
             AttendArgs& args) {
  const auto mask_of = [&](int i) { return run.Mask(first + i) + block; };
  bool any = false;
  for (int i = 0; i < n && !any; ++i)
    any = std::any_of(mask_of(i), mask_of(i) + args.n_blocks, [](uint16_t w) { return w != 0; });
  if (!any) return false;
  const int group = run.node.n_query_heads / run.view.n_kv_heads, k_dim = run.view.k_dim;
  scratch.q.resize(static_cast<size_t>(n) * group * k_dim);
  scratch.masks.resize(static_cast<size_t>(n) * group);
  scratch.bias.resize(scratch.masks.size());
  args.n_queries = n * group;
  for (int i = 0, at = 0; i < n; ++i) {
    const int row = run.rows[first + i];
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h, ++at) {
      scratch.masks[at] = mask_of(i);
      CopyQuery(run.node, run.stream, row, h, &scratch.q[static_cast<size_t>(at) * k_dim]);
      if (run.visibility.has_bias())
        scratch.bias[at] = run.visibility.Bias(run.stream, h, row) + block * kBlockRows;
    }
  }
  args.q = scratch.q.data();
  args.masks = scratch.masks.data();
  args.bias = run.visibility.has_bias() ? scratch.bias.data() : nullptr;
  return true;
}

// The shares of one KV head's queries in one chunk's rows.
void AddChunk(const Run& run, int kv_head, int chunk) {
  static thread_local Scratch scratch;
  const int group = run.node.n_query_heads / run.view.n_kv_heads, block = chunk * kChunkBlocks;
  const int rows_per_tile = std::max(1, kTileQueries / group);
  AttendArgs args;
  args.k = run.view.KeyRow(kv_head, block * kBlockRows);
  args.k_stride = run.view.k_row;
  args.k_type = run.view.k_type;
  args.k_dim = run.view.k_dim;
  args.n_blocks = std::min(kChunkBlocks, run.n_blocks() - block);
  args.scale = run.node.scale;
  args.softcap = run.node.softcap;
  const size_t n_logits = static_cast<size_t>(args.n_blocks) * kBlockRows;
  const int n_rows = static_cast<int>(run.rows.size());
  for (int first = 0; first < n_rows; first += rows_per_tile) {
    const int n = std::min(rows_per_tile, n_rows - first);
    if (!Prepare(run, kv_head, block, first, n, scratch, args)) continue;
    scratch.logits.resize(args.n_queries * n_logits);
    RowLogits(args, scratch.logits.data());
    for (int i = 0; i < args.n_queries; ++i) {
      const int head = kv_head * group + i % group;
      const size_t state =
          SoftmaxStates::Index(run.node, run.stream, run.rows[first + i / group], head);
      const float max = run.states.max[state], sum = run.states.sum[state];
      // Without a number there are no shares; a step of such a cache is dense.
      if (!std::isfinite(max) || !std::isfinite(sum) || !(sum > 0)) continue;
      AddShares(scratch.logits.data() + i * n_logits, n_logits, max, sum,
                run.sums[head] + static_cast<size_t>(block) * kBlockRows);
    }
  }
}

// Of the rows that each query sees the last `window` count, all of them for 0.
void AddRun(const AttentionNode& node, const Visibility& visibility, int stream,
            std::span<const int> rows, int window, const SoftmaxStates& states,
            std::span<float* const> sums, int n_threads) {
  static thread_local std::vector<uint16_t> masks;
  Run run{.node = node,
          .visibility = visibility,
          .states = states,
          .stream = stream,
          .rows = rows,
          .view = node.View(stream),
          .masks = {},
          .sums = sums};
  const int n_blocks = run.n_blocks(), n_chunks = ChunksFor(node.kv.n_rows);
  masks.resize(rows.size() * n_blocks);
  run.masks = masks;
  for (size_t i = 0; i < rows.size(); ++i) {
    CopyLast({visibility.Row(stream, 0, rows[i]), static_cast<size_t>(n_blocks)}, window,
             masks.data() + i * n_blocks);
  }
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, 1)
  for (int job = 0; job < node.kv.n_kv_heads * n_chunks; ++job)
    AddChunk(run, job % node.kv.n_kv_heads, job / node.kv.n_kv_heads);
}

std::span<const uint16_t> VisibleTo(const AttentionNode& node, const Visibility& visibility,
                                    int stream, int row) {
  return {visibility.Row(stream, 0, row), static_cast<size_t>(BlocksFor(node.kv.n_rows))};
}

// A stream's query rows that are no decode steps, sequence by sequence.
void FindCalls(const AttentionNode& node, const Visibility& visibility, int stream,
               std::span<const uint8_t> is_decode, std::span<const int> written,
               std::vector<std::vector<int>>& calls) {
  calls.clear();
  for (int r = 0; r < node.n_rows; ++r) {
    if (is_decode[r] || written[r] >= node.kv.n_rows) continue;
    const std::span<const uint16_t> visible = VisibleTo(node, visibility, stream, r);
    if (!HasRow(visible, written[r])) continue;
    const auto call = std::find_if(calls.begin(), calls.end(), [&](const std::vector<int>& before) {
      return HasRow(visible, written[before.back()]);
    });
    if (call == calls.end()) {
      calls.push_back({r});
    } else {
      call->push_back(r);
    }
  }
  std::erase_if(calls, [](const std::vector<int>& call) { return call.size() < 2; });
}

void TakePrompt(const AttentionNode& node, const Visibility& visibility, int stream,
                std::span<const int> call, std::span<const int> written, PromptAttention& prompts,
                CallWork& work) {
  const KvView view = node.View(stream);
  if (call.size() <= kMostVerifiedRows &&
      prompts.FollowsSteps(view, VisibleTo(node, visibility, stream, call.front())))
    return;
  for (int r : call) {
    const std::span<const uint16_t> visible = VisibleTo(node, visibility, stream, r);
    SeenPrompt& record =
        prompts.Take(view, *node.prompt_wants, node.n_query_heads, written[r], visible);
    if (r == call.front() || work.shared.back().prompt != &record)
      work.shared.push_back({.stream = stream, .rows = {}, .prompt = &record, .call = nullptr});
    work.shared.back().rows.push_back(r);
    if (record.ring.empty()) continue;
    SeenPrompt::Query& query = record.NextQuery();
    query.q.resize(static_cast<size_t>(node.n_query_heads) * view.k_dim);
    for (int h = 0; h < node.n_query_heads; ++h)
      CopyQuery(node, stream, r, h, &query.q[static_cast<size_t>(h) * view.k_dim]);
    query.visible.assign(visible.begin(), visible.end());
  }
}

void TakeCall(const AttentionNode& node, const Visibility& visibility, int stream,
              std::span<const int> call, std::span<const int> written, CallAttention& records,
              CallWork& work) {
  const bool of_prompt = call.size() > kMostVerifiedRows;
  const std::span<const int> counted = of_prompt ? call.last(kMostVerifiedRows) : call;
  SeenCall& record = records.Take(node.View(stream), written[counted.front()],
                                  VisibleTo(node, visibility, stream, counted.front()),
                                  VisibleTo(node, visibility, stream, counted.back()), of_prompt);
  work.shared.push_back({.stream = stream,
                         .rows = {counted.begin(), counted.end()},
                         .prompt = nullptr,
                         .call = &record});
}

}  // namespace

void TakeCalls(const AttentionNode& node, const Visibility& visibility, int stream,
               std::span<const uint8_t> is_decode, StreamCache& cache, CallWork& work) {
  const PromptWants* wants = node.prompt_wants;
  if (wants == nullptr || wants->empty() || visibility.n_mask_heads() != 1) return;
  if (wants->of_prompts()) {
    for (int r = 0; r < node.n_rows; ++r) {
      if (is_decode[r]) cache.prompts.NoteStep(VisibleTo(node, visibility, stream, r));
    }
  }
  if (cache.written.size() != static_cast<size_t>(node.n_rows)) return;
  FindCalls(node, visibility, stream, is_decode, cache.written, work.calls);
  cache.prompts.Begin();
  cache.calls.Begin();
  for (const std::vector<int>& call : work.calls) {
    if (wants->of_prompts())
      TakePrompt(node, visibility, stream, call, cache.written, cache.prompts, work);
    if (wants->last_call && (node.call_shares || call.size() > kMostVerifiedRows))
      TakeCall(node, visibility, stream, call, cache.written, cache.calls, work);
  }
}

void AddShares(const AttentionNode& node, const Visibility& visibility, const CallWork& work,
               int n_threads) {
  const std::vector<int>& windows = node.prompt_wants->windows;
  const int group = node.n_query_heads / node.kv.n_kv_heads;
  std::vector<float*> to(node.n_query_heads);
  const auto add = [&](const SharedRows& shared, int window, std::vector<std::vector<float>>& heads,
                       int per_sum) {
    for (int h = 0; h < node.n_query_heads; ++h) to[h] = heads[h / per_sum].data();
    AddRun(node, visibility, shared.stream, shared.rows, window, work.states, to, n_threads);
  };
  for (const SharedRows& shared : work.shared) {
    if (shared.call != nullptr) {
      add(shared, 0, shared.call->heads, group);
      continue;
    }
    for (SeenPrompt::Sums& sums : shared.prompt->sums) {
      if (std::find(windows.begin(), windows.end(), sums.window) != windows.end())
        add(shared, sums.window, sums.heads, 1);
    }
  }
}

}  // namespace condense
