// `seer` (SeerAttention-R, arXiv 2506.08889, and its authors' decoding code): a gate that was
// distilled from the model's own attention scores blocks of 64 rows. Of a block's keys as they were
// before RoPE the maximum, minimum and mean of each channel, in this order, go through a linear map
// of their KV head, an RMS norm and RoPE at the block's first position; the group's queries, before
// RoPE too, through one of theirs, summed, the norm and RoPE at the query's position. A block is
// worth the product over the root of the gate's size. The newest row's block is always read; of the
// others the best, by a budget or by their share of the softmax over blocks, in which a last block
// that is not whole has the logit 0, as in the authors' code.
//
// Not as there: keys and queries are rotated back from what the host rotated, keys after they were
// stored (f16); a block that fills while decoding is rotated by its first position, as in the
// prompt, where the authors take its last; no layer starts dense unless dense_layers= says so.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear.h"
#include "select/gate_policy.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr float kEpsilon = 1e-6f;

class SeerGate final : public Gate {
 public:
  explicit SeerGate(GateFile& file) {
    model_ = file.Model();
    block_rows_ = file.Int("block_size", 1, 4096, 64);
    dim_ = file.Int("gate_length", 2, 4096);
    ReadOwnRope(file);
    const int64_t n_kv = model_.n_kv_heads, d = model_.head_dim, group = model_.group();
    for (int layer = 0; layer < model_.n_layers && file.status().ok(); ++layer) {
      const auto name = [&](const std::string& what) { return GateFile::NameInLayer(layer, what); };
      Layer gate;
      gate.q = file.Take(name("seer_q"), {n_kv, group, d, dim_});
      gate.k = file.Take(name("seer_k"), {n_kv, 3 * d, dim_});
      const bool q_norm = file.Has(name("seer_q_norm")), k_norm = file.Has(name("seer_k_norm"));
      if (q_norm || k_norm) {
        gate.q_norm = file.Take(name("seer_q_norm"), {dim_});
        gate.k_norm = file.Take(name("seer_k_norm"), {dim_});
      }
      layers_.push_back(std::move(gate));
    }
  }

  int run_rows() const override { return block_rows_; }
  int run_stride() const override { return block_rows_; }
  int key_dim() const override { return dim_; }

  void MakeKey(int layer, int kv_head, float* rows, int first, const GateAngles& angles,
               float* key) const override {
    static thread_local std::vector<float> pooled;  // [3, head_dim]
    const Layer& gate = layers_[layer];
    const int d = model_.head_dim;
    pooled.assign(static_cast<size_t>(3) * d, 0.0f);
    float *max = pooled.data(), *min = max + d, *mean = min + d;
    std::copy_n(rows, d, max);
    std::copy_n(rows, d, min);
    for (int i = 0; i < block_rows_; ++i) {
      const float* row = rows + static_cast<size_t>(i) * d;
      for (int c = 0; c < d; ++c) {
        max[c] = std::max(max[c], row[c]);
        min[c] = std::min(min[c], row[c]);
        mean[c] += row[c];
      }
    }
    for (int c = 0; c < d; ++c) mean[c] /= static_cast<float>(block_rows_);
    std::fill_n(key, dim_, 0.0f);
    AddProduct(pooled.data(), 3 * d, gate.k.data() + static_cast<size_t>(kv_head) * 3 * d * dim_,
               dim_, key);
    Finish(gate.k_norm, first, angles, key);
  }

  float Score(const GateStep& step, int kv_head, std::span<float> per_block) const override {
    static thread_local std::vector<float> q, before;
    MakeQuery(step, kv_head, before, q);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim_));
    for (size_t b = 0; b < per_block.size(); ++b) {
      const float* key = step.keys->Key(static_cast<int>(b), kv_head);
      per_block[b] = DotInLanes(q.data(), key, dim_) * scale;
    }
    return 0.0f;
  }

 private:
  struct Layer {
    std::vector<float> q, k;  // [n_kv_heads, group, head_dim, dim], [n_kv_heads, 3 d, dim]
    std::vector<float> q_norm, k_norm;  // [dim], or none
  };

  // The gate's vectors pair their channels as the authors' code does, at the host's frequencies.
  void ReadOwnRope(GateFile& file) {
    if (file.Int("gate_rope", 0, 1, 1) == 0 || model_.rope.pairs == RopePairs::kNone) return;
    own_rope_ = model_.rope;
    own_rope_.pairs = RopePairs::kNeox;
    own_rope_.n_dims = dim_;
    if (dim_ % 2 != 0) file.Fail("value 'seer.gate_length' is odd: RoPE pairs channels");
    if (!model_.rope.factors.empty() && dim_ != model_.rope.n_dims) {
      file.Fail("tensor 'rope_freqs.weight' is for " + std::to_string(model_.rope.n_dims) +
                " channels, 'seer.gate_length' is " + std::to_string(dim_) +
                ": the gate's own factors are not known");
    }
  }

  void Finish(const std::vector<float>& norm, int position, const GateAngles& angles,
              float* values) const {
    if (!norm.empty()) RmsNorm(norm.data(), dim_, kEpsilon, values);
    if (own_rope_.pairs != RopePairs::kNone) Rotate(own_rope_, angles.own.At(position), values);
  }

  void MakeQuery(const GateStep& step, int kv_head, std::vector<float>& before,
                 std::vector<float>& q) const {
    const LayerQuery& query = *step.query;
    const Layer& gate = layers_[query.layer];
    const int d = model_.head_dim, group = model_.group(), position = query.n_visible - 1;
    q.assign(dim_, 0.0f);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const float* head = query.q + static_cast<size_t>(h) * d;
      before.assign(head, head + d);
      if (model_.rope.pairs != RopePairs::kNone)
        RotateBack(model_.rope, step.angles->host.At(position), before.data());
      AddProduct(before.data(), d, gate.q.data() + static_cast<size_t>(h) * d * dim_, dim_,
                 q.data());
    }
    Finish(gate.q_norm, position, *step.angles, q.data());
  }

  int dim_ = 0;
  std::vector<Layer> layers_;
};

constexpr GateDefaults kDefaults = {
    .tokens = 2048, .anchor = 0, .window = 64, .automatic = false, .has_threshold = true};

CONDENSE_REGISTER_POLICY(
    seer,
    PolicyInfo{
        .name = "seer",
        .summary = "blocks of 64 rows by a trained gate over pooled keys and the group's queries",
        .source = "SeerAttention-R, arXiv 2506.08889",
        .label = "needs trained gates (gates=); keys and queries are rotated back, keys after "
                 "rounding; a block is rotated by its first position while decoding too",
        .keys = GateKeys(kDefaults, "file: GGUF of the gates trained for the model in use"),
        .make = [](KeyReader& reader) {
          return MakeGatePolicy(reader, kDefaults, "seer",
                                "The authors publish gates for Qwen3-4B, -8B and -14B and for "
                                "DeepSeek-R1-Distill-Qwen-14B as SeerAttention-Decode-…-AttnGates "
                                "(huggingface.co/SeerAttention), to be converted",
                                [](GateFile& file) -> std::unique_ptr<Gate> {
                                  return std::make_unique<SeerGate>(file);
                                });
        }});

}  // namespace
}  // namespace condense
