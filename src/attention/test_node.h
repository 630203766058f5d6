// For tests: attention nodes on made caches, and what their outputs must be, in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/layer_attention.h"
#include "select/test_choice.h"

namespace condense {

inline constexpr uint16_t kHalfNegInf = 0xFC00;

// F32 cache and queries of one layer; [stream][row][head][dim].
struct Made {
  int n_streams, n_rows, n_cache, n_heads, n_kv_heads, dim;
  std::vector<float> q, k, v, out, sinks;
  std::vector<uint16_t> mask;  // [stream][row][n_cache]

  Made(int streams, int rows, int cache, int heads, int kv_heads, int d, unsigned seed = 1)
      : n_streams(streams),
        n_rows(rows),
        n_cache(cache),
        n_heads(heads),
        n_kv_heads(kv_heads),
        dim(d) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(streams * rows * heads * d);
    k.resize(streams * cache * kv_heads * d);
    v.resize(k.size());
    out.assign(q.size(), -1.0f);
    for (float& x : q) x = 2.0f * normal(random);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    mask.assign(streams * rows * cache, 0);
    Causal();
  }
  // The last n_rows cache rows are the query rows' own.
  void Causal() {
    for (int s = 0; s < n_streams; ++s) {
      for (int r = 0; r < n_rows; ++r) {
        for (int j = 0; j < n_cache; ++j)
          Mask(s, r)[j] = j <= n_cache - n_rows + r ? 0 : kHalfNegInf;
      }
    }
  }
  uint16_t* Mask(int s, int r) { return mask.data() + (s * n_rows + r) * n_cache; }

  AttentionNode Node(int first_row = 0, int rows = -1) {
    AttentionNode node;
    node.layer = 3;
    node.n_streams = n_streams;
    node.n_rows = rows < 0 ? n_rows : rows;
    node.n_query_heads = n_heads;
    node.q = reinterpret_cast<const std::byte*>(q.data() + first_row * n_heads * dim);
    node.q_head = sizeof(float) * dim;
    node.q_row = node.q_head * n_heads;
    node.q_stream = node.q_row * n_rows;
    KvView& kv = node.kv;
    kv.k_type = kv.v_type = KvType::kF32;
    kv.k = reinterpret_cast<const std::byte*>(k.data());
    kv.v = reinterpret_cast<const std::byte*>(v.data());
    kv.k_head = kv.v_head = sizeof(float) * dim;
    kv.k_row = kv.v_row = kv.k_head * n_kv_heads;
    kv.n_rows = n_cache;
    kv.n_kv_heads = n_kv_heads;
    kv.k_dim = kv.v_dim = dim;
    node.k_stream = node.v_stream = kv.k_row * n_cache;
    node.mask = reinterpret_cast<const std::byte*>(mask.data() + first_row * n_cache);
    node.mask_row = sizeof(uint16_t) * n_cache;
    node.mask_stream = node.mask_row * n_rows;
    node.mask_streams = n_streams;
    node.sinks = sinks.empty() ? nullptr : sinks.data();
    node.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    node.out = out.data();
    return node;
  }

  // One query row and head in double.
  std::vector<double> Reference(int s, int r, int h, float softcap = 0.0f) {
    const int g = h / (n_heads / n_kv_heads);
    const float* query = q.data() + ((s * n_rows + r) * n_heads + h) * dim;
    std::vector<double> logits(n_cache, -INFINITY), o(dim, 0.0);
    double max = sinks.empty() ? -INFINITY : sinks[h];
    for (int j = 0; j < n_cache; ++j) {
      if (Mask(s, r)[j] == kHalfNegInf) continue;
      double z = 0;
      for (int c = 0; c < dim; ++c)
        z += double(query[c]) * k[((s * n_cache + j) * n_kv_heads + g) * dim + c];
      z /= std::sqrt(double(dim));
      if (softcap > 0) z = softcap * std::tanh(z / softcap);
      logits[j] = z;
      max = std::max(max, z);
    }
    double sum = sinks.empty() ? 0.0 : std::exp(sinks[h] - max);
    for (int j = 0; j < n_cache; ++j) {
      const double p = std::exp(logits[j] - max);
      sum += p;
      for (int c = 0; c < dim; ++c) o[c] += p * v[((s * n_cache + j) * n_kv_heads + g) * dim + c];
    }
    for (double& x : o) x /= sum;
    return o;
  }
};

inline void Attend(const AttentionNode& node, const char* spec, int n_threads,
                   LayerCache* cache = nullptr, std::vector<StepCount>* steps = nullptr) {
  LayerCache own;
  if (cache == nullptr) {
    cache = &own;
    for (int s = 0; s < node.n_streams; ++s) cache->Stream(s).MarkWritten(node.kv.n_rows - 1);
  }
  AttentionSink sink;
  if (steps) sink.on_step = [&](const StepCount& step) { steps->push_back(step); };
  const std::unique_ptr<Policy> policy = Make(spec);
  ComputeAttention(node, *cache, *policy, n_threads, sink);
}

inline bool SameBits(const float* a, const float* b, size_t n) {
  return std::equal(a, a + n, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

inline void ExpectReference(Made& made, float softcap = 0.0f, double error = 2e-5) {
  for (int s = 0; s < made.n_streams; ++s) {
    for (int r = 0; r < made.n_rows; ++r) {
      for (int h = 0; h < made.n_heads; ++h) {
        const std::vector<double> o = made.Reference(s, r, h, softcap);
        const float* out = made.out.data() + ((s * made.n_rows + r) * made.n_heads + h) * made.dim;
        for (int c = 0; c < made.dim; ++c)
          ASSERT_NEAR(out[c], o[c], error) << s << ' ' << r << ' ' << h;
      }
    }
  }
}

}  // namespace condense
