// `unique`: a block is worth its mean logit plus what its keys' spread may add (UNIQUE, arXiv
// 2605.27740: page mean as the representative, standard deviation as an offset).
//   form=rms: scale (q·µ + λ ‖q‖ s), s the root of the mean variance over channels, 2 bytes a block
//   form=abs: scale Σ_i (q_i µ_i + |q_i| std_i), which takes as many bytes as Quest's bounds
// The original scores pages of its engine, and may train with the score as a mask; here blocks of
// 16 rows, training-free. How it makes one number of the standard deviations (here their root mean
// square) could not be checked against its code.
#include <cmath>
#include <vector>

#include "kernels/summary.h"
#include "select/block_mass.h"
#include "select/frame.h"

namespace condense {
namespace {

class RmsScorer final : public BlockScorer {
 public:
  explicit RmsScorer(double lambda) : lambda_(static_cast<float>(lambda)) {}
  // Like an upper bound, what some head wants is wanted: ‖q‖ is of one head.
  ScoreKind kind() const override { return ScoreKind::kBound; }
  SummarySet needs() const override { return kMeanKey | kVarianceMean; }
  bool by_block() const override { return true; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> variance;
    const LayerQuery& layer = *query.layer;
    MeanLogits(query, per_block);
    variance.resize(per_block.size());
    const float one = 1.0f;
    ScoreMean(layer.index->Tiles(Column::kVarianceMean, query.kv_head, query.first_block),
              static_cast<int>(per_block.size()) / kTileBlocks, 1, &one, 1.0f, variance.data());
    float squares = 0;
    for (int c = 0; c < layer.kv->k_dim; ++c) squares += query.q[c] * query.q[c];
    const float weight = layer.scale * lambda_ * std::sqrt(squares);
    for (size_t b = 0; b < per_block.size(); ++b) per_block[b] += weight * std::sqrt(variance[b]);
  }

 private:
  const float lambda_;
};

class AbsScorer final : public BlockScorer {
 public:
  ScoreKind kind() const override { return ScoreKind::kBound; }
  SummarySet needs() const override { return kMeanKey | kKeyStd; }
  bool by_block() const override { return true; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> offset, weights;
    const LayerQuery& layer = *query.layer;
    MeanLogits(query, per_block);
    weights.resize(layer.kv->k_dim);
    for (size_t c = 0; c < weights.size(); ++c) weights[c] = std::fabs(query.q[c]);
    offset.resize(per_block.size());
    ScoreMean(layer.index->Tiles(Column::kStdKey, query.kv_head, query.first_block),
              static_cast<int>(per_block.size()) / kTileBlocks, layer.kv->k_dim, weights.data(),
              layer.scale, offset.data());
    for (size_t b = 0; b < per_block.size(); ++b) per_block[b] += offset[b];
  }
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  std::unique_ptr<BlockScorer> scorer;
  if (reader.Choice("form", {"rms", "abs"}) == 0) {
    scorer = std::make_unique<RmsScorer>(reader.Number("lambda", 0, 100));
  } else {
    scorer = std::make_unique<AbsScorer>();
    if (reader.Given("lambda")) reader.Fail("lambda is read only with form=rms");
  }
  return std::make_unique<FramePolicy>(ReadFrame(reader), std::move(scorer));
}

CONDENSE_REGISTER_POLICY(
    unique,
    PolicyInfo{.name = "unique",
               .summary = "blocks by the query's product with their mean key, and an offset for "
                          "their keys' standard deviation",
               .source = "UNIQUE, arXiv 2605.27740",
               .label = "16-row blocks, not the engine's pages; the root mean square of the "
                        "standard deviations stands for the original's scalar",
               .keys = FrameKeys({}, {{"form", "rms",
                                       "rms: lambda times the query's norm times the root mean "
                                       "variance; abs: channel by channel"},
                                      {"lambda", "0.5",
                                       "form=rms: weight of the offset; 0 to "
                                       "100"}}),
               .make = Make});

}  // namespace
}  // namespace condense
