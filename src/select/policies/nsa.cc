// `nsa` (Native Sparse Attention, arXiv 2502.11089, equations 7 to 11): runs of 32 rows, one each
// 16, are compressed to one key by a trained linear map with a position embedding within the run;
// a block of 64 rows is worth the softmax shares of the runs over it, as often as their 16-row
// pieces are in it, summed over the group. The best blocks are read, the first block and the last
// rows always.
//
// A selector, not NSA: the original adds the outputs of three branches (compressed values, chosen
// blocks, window), each with a softmax and, by the paper, keys and values of its own, weighted by
// gates that see the layer's input. Attention nodes have one K, one V and no such input. Here one
// softmax runs over the union of blocks and window; compressed values are never read. A model that
// was trained with the three branches does not get its output from this.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear.h"
#include "select/gate_policy.h"
#include "select/registry.h"
#include "select/row_shares.h"

namespace condense {
namespace {

class NsaGate final : public Gate {
 public:
  explicit NsaGate(GateFile& file) {
    model_ = file.Model();
    own_rope_ = model_.rope;
    block_rows_ = file.Int("block_size", 1, 4096, 64);
    kernel_ = file.Int("kernel_size", 1, 4096, 32);
    stride_ = file.Int("kernel_stride", 1, 4096, 16);
    for (const auto& [name, value] :
         {std::pair("kernel_size", kernel_), std::pair("block_size", block_rows_)}) {
      if (value % stride_ != 0) {
        file.Fail("value 'nsa." + std::string(name) + "' is " + std::to_string(value) +
                  ", wanted a multiple of kernel_stride, " + std::to_string(stride_));
      }
    }
    const int64_t n_kv = model_.n_kv_heads, d = model_.head_dim;
    for (int layer = 0; layer < model_.n_layers && file.status().ok(); ++layer) {
      const auto name = [&](const std::string& what) { return GateFile::NameInLayer(layer, what); };
      Layer gate;
      gate.w = file.Take(name("nsa_k_compress"), {n_kv, kernel_ * d, d});
      if (file.Has(name("nsa_k_position")))
        gate.position = file.Take(name("nsa_k_position"), {n_kv, kernel_, d});
      layers_.push_back(std::move(gate));
    }
  }

  int run_rows() const override { return kernel_; }
  int run_stride() const override { return stride_; }
  int key_dim() const override { return model_.head_dim; }

  void MakeKey(int layer, int kv_head, float* rows, int first, const GateAngles& angles,
               float* key) const override {
    const Layer& gate = layers_[layer];
    const int d = model_.head_dim, n = kernel_ * d;
    if (!gate.position.empty()) {
      const float* position = gate.position.data() + static_cast<size_t>(kv_head) * n;
      for (int i = 0; i < n; ++i) rows[i] += position[i];
    }
    std::fill_n(key, d, 0.0f);
    AddProduct(rows, n, gate.w.data() + static_cast<size_t>(kv_head) * n * d, d, key);
    if (own_rope_.pairs != RopePairs::kNone) Rotate(own_rope_, angles.own.At(first), key);
  }

  float Score(const GateStep& step, int kv_head, std::span<float> per_block) const override {
    static thread_local std::vector<float> shares, sums;  // [n_runs]
    const LayerQuery& query = *step.query;
    const int d = model_.head_dim, n_runs = step.keys->n_runs(), group = model_.group();
    if (n_runs == 0) return 0;
    const size_t most = query.kv->n_rows / stride_ + 1;
    sums.reserve(most);
    shares.reserve(most);
    sums.assign(n_runs, 0.0f);
    shares.resize(n_runs);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const float* q = query.q + static_cast<size_t>(h) * d;
      for (int run = 0; run < n_runs; ++run)
        shares[run] = query.scale * DotInLanes(q, step.keys->Key(run, kv_head), d);
      const std::optional<double> one = ExpShares(shares);
      if (!one) {
        per_block[0] = std::numeric_limits<float>::quiet_NaN();
        return 0;
      }
      for (int run = 0; run < n_runs; ++run) sums[run] += static_cast<float>(shares[run] * *one);
    }
    for (size_t b = 0; b < per_block.size(); ++b)
      per_block[b] = BlockWorth(static_cast<int>(b), sums);
    return 0;
  }

 private:
  struct Layer {
    std::vector<float> w;         // [n_kv_heads, kernel · head_dim, head_dim]
    std::vector<float> position;  // [n_kv_heads, kernel, head_dim], or none
  };

  // The block's pieces of `stride` rows, each with the runs that hold it.
  float BlockWorth(int block, const std::vector<float>& sums) const {
    const int pieces = block_rows_ / stride_, of_run = kernel_ / stride_;
    float worth = 0;
    for (int piece = block * pieces; piece < (block + 1) * pieces; ++piece) {
      for (int run = piece - of_run + 1; run <= piece; ++run) {
        if (run >= 0 && run < static_cast<int>(sums.size())) worth += sums[run];
      }
    }
    return worth;
  }

  int kernel_ = 32, stride_ = 16;
  std::vector<Layer> layers_;
};

// 16 blocks, of which the paper reads the first and the two newest always, and a window of 512,
// which holds the newest two here.
constexpr GateDefaults kDefaults = {
    .tokens = 1408, .anchor = 64, .window = 512, .automatic = true, .has_threshold = false};
static_assert(kDefaults.tokens == 13 * 64 + kDefaults.anchor + kDefaults.window);

CONDENSE_REGISTER_POLICY(
    nsa,
    PolicyInfo{
        .name = "nsa",
        .summary = "blocks of 64 rows by the softmax over trained compressed keys, and a window",
        .source = "Native Sparse Attention, arXiv 2502.11089",
        .label = "needs trained tensors (gates=); the selection alone: one softmax over blocks and "
                 "window, not the gated sum of three branches that a model is trained with; "
                 "compressed values are not read",
        .keys = GateKeys(kDefaults, "file: GGUF of the compression trained with the model in use"),
        .make = [](KeyReader& reader) {
          return MakeGatePolicy(
              reader, kDefaults, "nsa",
              "A model must have been trained with them; the paper's authors publish none",
              [](GateFile& file) -> std::unique_ptr<Gate> {
                return std::make_unique<NsaGate>(file);
              });
        }});

}  // namespace
}  // namespace condense
