// `oracle`: a block is worth its true attention mass Σ_j softmax(z)_j over the rows that choosing
// it adds, the softmax taken over all visible rows. It reads every key to choose, so it is an upper
// line for block selection at a given support and never a speed. A byte budget buys rows alone; the
// counters still show the keys. Ranking by output error is not offered.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attend.h"
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

class OracleScorer final : public BlockScorer {
 public:
  ScoreKind kind() const override { return ScoreKind::kMass; }
  bool reads_keys() const override { return true; }
  bool normalised() const override { return true; }

  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> logits;  // [16 n_blocks]
    const LayerQuery& layer = *query.layer;
    const KvView& kv = *layer.kv;
    const int n_blocks = static_cast<int>(layer.visible.size());
    logits.resize(static_cast<size_t>(n_blocks) * kBlockRows);
    AttendArgs args;
    args.k_stride = kv.k_row;
    args.k_type = kv.k_type;
    args.k_dim = kv.k_dim;
    args.n_queries = 1;
    args.q = query.q;
    args.scale = layer.scale;
    args.softcap = layer.softcap;
    for (int b = 0; b < n_blocks; b += kChunkBlocks) {
      const uint16_t* mask = layer.visible.data() + b;
      args.k = kv.KeyRow(query.kv_head, b * kBlockRows);
      args.n_blocks = std::min(kChunkBlocks, n_blocks - b);
      args.masks = &mask;
      RowLogits(args, logits.data() + static_cast<size_t>(b) * kBlockRows);
    }
    float max = kMinusInf;
    for (float z : logits) max = z > max || z != z ? z : max;  // keeps NaN
    double sum = 0;
    for (float& z : logits) {
      z = std::exp(z - max);
      sum += z;
    }
    for (size_t b = 0; b < per_block.size(); ++b) {
      double mass = 0;
      for (int i = 0; b < query.rows.size() && i < kBlockRows; ++i) {
        if ((query.rows[b] >> i) & 1) mass += logits[b * kBlockRows + i];
      }
      per_block[b] = static_cast<float>(std::log(mass / sum));
    }
  }
};

CONDENSE_REGISTER_POLICY(
    oracle, PolicyInfo{.name = "oracle",
                       .summary = "blocks by their true attention mass: an upper line that reads "
                                  "every key to choose",
                       .source = "exact attention probabilities",
                       .label = "no speed: every key is read; a byte budget counts rows alone",
                       .keys = FrameKeys(),
                       .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                         return std::make_unique<FramePolicy>(ReadFrame(reader),
                                                              std::make_unique<OracleScorer>());
                       }});

}  // namespace
}  // namespace condense
