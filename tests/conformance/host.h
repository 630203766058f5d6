// A stand-in for the host in conformance tests: a cache of cells in f16, streams of it, sequences
// that own cells, and attention nodes over them. Contents depend on token and position alone, so
// that two hosts that saw the same sequence hold the same rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/layer_attention.h"
#include "base/result.h"
#include "kernels/half.h"

namespace condense {

inline constexpr int kKvHeads = 3, kGroup = 3, kHeads = kKvHeads * kGroup, kDim = 64;

inline uint64_t Hash(uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull ^ b * 0xC2B2AE3D27D4EB4Full ^ c * 0x165667B19E3779F9ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// About standard normal: the sum of four uniform values.
inline float Normal(uint64_t hash) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<float>((hash >> (16 * i)) & 0xFFFF) / 65536.0f - 0.5f;
  }
  return sum * 1.73f;
}

// Fills whole numbers of four values with normal f16 values times `scale`. A table keeps the tests
// quick.
inline void FillNormal(uint16_t* values, size_t n, uint64_t seed, float scale) {
  static const std::vector<float> table = [] {
    std::vector<float> normals(4096);
    for (size_t i = 0; i < normals.size(); ++i) normals[i] = Normal(Hash(i, 77));
    return normals;
  }();
  for (size_t i = 0; i < n; i += 4) {
    uint64_t hash = Hash(seed, i);
    for (size_t j = i; j < i + 4; ++j, hash >>= 16) {
      values[j] = F16FromF32Saturated(scale * table[hash & 4095]);
    }
  }
}

// One sequence: the cells of its rows, in order.
struct Sequence {
  int stream = 0;
  std::vector<int> cells;
  uint64_t newest_token = 0;
};

struct StepResult {
  std::vector<float> out;  // [kHeads, kDim]
  StepCount count;
};

class Host {
 public:
  explicit Host(int n_rows, int n_streams = 1)
      : n_rows_(n_rows),
        n_streams_(n_streams),
        k_(static_cast<size_t>(n_streams) * n_rows * kKvHeads * kDim),
        v_(k_.size()) {
    // Cells that nobody wrote hold leftovers.
    FillNormal(k_.data(), k_.size(), 1, 40.0f);
    FillNormal(v_.data(), v_.size(), 2, 40.0f);
  }

  void Append(Sequence& sequence, int cell, uint64_t token) {
    const auto position = static_cast<uint64_t>(sequence.cells.size());
    const size_t at = (static_cast<size_t>(sequence.stream) * n_rows_ + cell) * kKvHeads * kDim;
    FillNormal(&k_[at], kKvHeads * kDim, Hash(token, position, 1), 1.0f);
    FillNormal(&v_[at], kKvHeads * kDim, Hash(token, position, 2), 1.0f);
    cache_.Stream(sequence.stream).MarkWritten(cell);
    sequence.cells.push_back(cell);
    sequence.newest_token = token;
  }

  // Other tokens' rows in a sequence's cells, and no word of it: a state is loaded, a context
  // shifted.
  void Restore(const Sequence& sequence, uint64_t token) {
    for (size_t i = 0; i < sequence.cells.size(); ++i) {
      const int cell = sequence.cells[i];
      const size_t at = (static_cast<size_t>(sequence.stream) * n_rows_ + cell) * kKvHeads * kDim;
      FillNormal(&k_[at], kKvHeads * kDim, Hash(token + cell, i, 1), 1.0f);
      FillNormal(&v_[at], kKvHeads * kDim, Hash(token + cell, i, 2), 1.0f);
    }
  }

  // Many rows at once, as a prompt's node leaves them.
  void Prefill(Sequence& sequence, RowRange cells, uint64_t token) {
    for (int cell = cells.begin; cell < cells.end; ++cell) Append(sequence, cell, token + cell);
    cache_.Stream(sequence.stream).written.clear();
  }

  // The same computed, dense, in nodes of `cut` rows: of their attention is kept what `wants` says.
  // No node of one row, which would be a decode step.
  void Compute(Sequence& sequence, RowRange cells, uint64_t token, const PromptWants& wants,
               int cut, const Policy& dense, int n_threads = 1) {
    for (int begin = cells.begin; begin < cells.end; begin += cut) {
      const int n = std::min(cut, cells.end - begin);
      CONDENSE_CHECK(n > 1);
      std::vector<float> q, out(static_cast<size_t>(n) * kHeads * kDim);
      std::vector<uint16_t> mask(static_cast<size_t>(n) * n_rows_, kF16MinusInf);
      for (int i = 0; i < n; ++i) {
        Append(sequence, begin + i, token + begin + i);
        const std::vector<float> one = QueryOf(sequence);
        q.insert(q.end(), one.begin(), one.end());
        for (int cell : sequence.cells) mask[static_cast<size_t>(i) * n_rows_ + cell] = 0;
      }
      AttentionNode node = Node(sequence.stream, q, mask, out);
      node.n_rows = n;
      node.prompt_wants = &wants;
      AttentionSink sink;
      ComputeAttention(node, cache_, dense, n_threads, sink);
    }
  }

  // As the C interface's forget.
  void Forget() { cache_.Forget(); }

  RowMask Visible(const Sequence& sequence) const {
    RowMask visible(BlocksFor(n_rows_), 0);
    for (int cell : sequence.cells) AddRow(visible, cell);
    return visible;
  }

  // The query of a sequence's newest row. [kHeads, kDim]
  static std::vector<float> QueryOf(const Sequence& sequence) {
    std::vector<float> q(kHeads * kDim);
    for (size_t i = 0; i < q.size(); ++i) {
      q[i] = 2.0f * Normal(Hash(sequence.newest_token, sequence.cells.size(), 1000 + i));
    }
    return q;
  }

  KvView View(int stream = 0) const {
    KvView view;
    view.k = reinterpret_cast<const std::byte*>(k_.data()) + stream * StreamBytes();
    view.v = reinterpret_cast<const std::byte*>(v_.data()) + stream * StreamBytes();
    view.k_head = view.v_head = 2 * kDim;
    view.k_row = view.v_row = 2 * kDim * kKvHeads;
    view.n_rows = n_rows_;
    view.n_kv_heads = kKvHeads;
    view.k_dim = view.v_dim = kDim;
    return view;
  }

  // One node with one row of each sequence: all in one stream, or one sequence in each stream, in
  // order.
  std::vector<StepResult> Step(const std::vector<const Sequence*>& sequences, const Policy& policy,
                               int n_threads = 1, int layer = 5) {
    const int n = static_cast<int>(sequences.size());
    std::vector<float> q(static_cast<size_t>(n) * kHeads * kDim), out(q.size());
    std::vector<uint16_t> mask(static_cast<size_t>(n) * n_rows_, kF16MinusInf);
    for (int i = 0; i < n; ++i) {
      const std::vector<float> one = QueryOf(*sequences[i]);
      std::copy(one.begin(), one.end(), q.begin() + i * kHeads * kDim);
      for (int cell : sequences[i]->cells) mask[static_cast<size_t>(i) * n_rows_ + cell] = 0;
    }
    AttentionNode node = Node(sequences[0]->stream, q, mask, out);
    const bool streams = n_streams_ > 1;
    node.layer = layer;
    node.n_streams = streams ? n : 1;
    node.n_rows = streams ? 1 : n;
    node.mask_streams = node.n_streams;
    AttentionSink sink;
    std::vector<StepCount> counts;
    sink.on_step = [&](const StepCount& count) { counts.push_back(count); };
    sink.on_observations = observer_;
    ComputeAttention(node, cache_, policy, n_threads, sink);
    CONDENSE_CHECK(counts.size() == sequences.size());
    std::vector<StepResult> results(n);
    for (int i = 0; i < n; ++i) {
      results[i].out.assign(out.begin() + i * kHeads * kDim, out.begin() + (i + 1) * kHeads * kDim);
      results[i].count = counts[i];
    }
    return results;
  }

  StepResult Step(const Sequence& sequence, const Policy& policy, int n_threads = 1,
                  int layer = 5) {
    return Step(std::vector<const Sequence*>{&sequence}, policy, n_threads, layer)[0];
  }

  // Every sparse step is observed from now on; null: no more.
  void Observe(std::function<void(std::span<const Observation>)> observer) {
    observer_ = std::move(observer);
  }

  // What the policy selects for a sequence's newest row, the attention aside.
  Selection Select(const Sequence& sequence, const Policy& policy, int layer = 5) {
    const KvView view = View(sequence.stream);
    const RowMask visible = Visible(sequence);
    const std::vector<float> q = QueryOf(sequence);
    SequenceMemory memory;
    LayerQuery query;
    query.layer = layer;
    query.kv = &view;
    query.index = &cache_.Stream(sequence.stream).index;
    query.codes = &cache_.Stream(sequence.stream).codes;
    query.copies = &cache_.Stream(sequence.stream).copies;
    query.visible = visible;
    query.n_visible = CountRows(visible);
    query.newest_row = sequence.cells.back();
    query.q = q.data();
    query.n_query_heads = kHeads;
    query.scale = 0.125f;
    query.memory = &memory;
    Selection selection;
    policy.Select(query, selection);
    return selection;
  }

  const CodeIndex& codes(int stream = 0) { return cache_.Stream(stream).codes; }

 private:
  // q, out: [row][kHeads, kDim]; mask: [row][n_rows_]. All borrowed.
  AttentionNode Node(int stream, const std::vector<float>& q, const std::vector<uint16_t>& mask,
                     std::vector<float>& out) const {
    AttentionNode node;
    node.first_stream = stream;
    node.n_query_heads = kHeads;
    node.q = reinterpret_cast<const std::byte*>(q.data());
    node.q_head = sizeof(float) * kDim;
    node.q_row = node.q_stream = sizeof(float) * kDim * kHeads;
    node.kv = View(stream);
    node.k_stream = node.v_stream = StreamBytes();
    node.mask = reinterpret_cast<const std::byte*>(mask.data());
    node.mask_row = node.mask_stream = node.mask_head = 2 * static_cast<size_t>(n_rows_);
    node.scale = 0.125f;
    node.out = out.data();
    return node;
  }
  size_t StreamBytes() const { return static_cast<size_t>(n_rows_) * kKvHeads * kDim * 2; }

  int n_rows_, n_streams_;
  std::vector<uint16_t> k_, v_;
  LayerCache cache_;
  std::function<void(std::span<const Observation>)> observer_;
};

// Equal to the last bit.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

// A sparse step and what was observed of its heads.
struct Observed {
  StepResult step;
  std::vector<Observation> heads;
};

// A step behind 3,000 rows. The observer compares what the step returned with what a dense one
// does.
inline Observed ObservedStep(const Policy& policy, const Policy& dense) {
  Host host(3072);
  Sequence sequence;
  host.Prefill(sequence, {0, 3000}, 7);
  host.Append(sequence, 3000, 8);
  Observed observed;
  host.Observe(
      [&](std::span<const Observation> all) { observed.heads.assign(all.begin(), all.end()); });
  observed.step = host.Step(sequence, policy);
  host.Observe(nullptr);
  const StepResult full = host.Step(sequence, dense);
  EXPECT_TRUE(observed.step.count.sparse);
  EXPECT_EQ(observed.heads.size(), static_cast<size_t>(kHeads));
  for (const Observation& o : observed.heads) {
    double error = 0;
    for (int c = o.query_head * kDim; c < (o.query_head + 1) * kDim; ++c)
      error += (full.out[c] - observed.step.out[c]) * (full.out[c] - observed.step.out[c]);
    EXPECT_GT(error, 0);
    EXPECT_NEAR(o.output_error, std::sqrt(error), 1e-5);
    EXPECT_LT(o.identity_error, 1e-5);
    EXPECT_GT(o.omitted_mass, 0);
  }
  return observed;
}

}  // namespace condense
