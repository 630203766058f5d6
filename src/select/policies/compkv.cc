// `compkv`: CompKV (arXiv 2609.26300) reads exactly the blocks that a mean would stand for worst,
// and lets the others take part in the softmax as one pseudo-row each. What a block's mean leaves
// wrong grows with its share of the mass and with the variance of its logits: rank by Σ over the
// group of p̂_b v_b, p̂ = softmax over blocks of log n_b + scale q·µ_b + v_b / 2, v as in `mass`
// (4 groups of channels, as in the original). Pseudo-rows: log n_b + scale q·µ_b. The first block
// and the newest two are always read: 16 and 32 rows. p̂ is over the candidate blocks, not over
// those always read. The original keeps K and V in the host's memory and streams what a GPU reads;
// its speeds are of that.
#include <cmath>
#include <limits>
#include <vector>

#include "select/block_mass.h"
#include "select/frame.h"

namespace condense {
namespace {

class CompkvScorer final : public BlockScorer {
 public:
  explicit CompkvScorer(VarianceForm form) : form_(form) {}
  ScoreKind kind() const override { return ScoreKind::kMass; }
  bool normalised() const override { return true; }  // log(p̂ v), whose sum is over heads
  SummarySet needs() const override { return kMeanKey | NeededFor(form_); }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> v;
    v.resize(per_block.size());
    MassScores(query, form_, v, per_block);
    const float log_sum = LogSum(query, per_block);
    for (size_t b = 0; b < per_block.size(); ++b)
      per_block[b] = per_block[b] - log_sum + std::log(v[b]);
  }

 private:
  // log Σ exp over the candidates; NaN where one is.
  static float LogSum(const ScoreQuery& query, std::span<const float> scores) {
    float max = -std::numeric_limits<float>::infinity();
    const size_t n = std::min(scores.size(), query.rows.size());
    for (size_t b = 0; b < n; ++b) {
      if (query.rows[b] != 0 && (scores[b] > max || scores[b] != scores[b])) max = scores[b];
    }
    float sum = 0;
    for (size_t b = 0; b < n; ++b) {
      if (query.rows[b] != 0) sum += std::exp(scores[b] - max);
    }
    return max + std::log(sum);
  }

  const VarianceForm form_;
};

CONDENSE_REGISTER_POLICY(
    compkv,
    PolicyInfo{.name = "compkv",
               .summary = "blocks by estimated mass times variance of logits; the others as one "
                          "pseudo-row each",
               .source = "CompKV, arXiv 2609.26300",
               .label = "no offloading: K and V are read in place; shares are of candidate blocks",
               .keys = FrameKeys({.anchor = 16, .window = 32, .tail = "on"}, {VarianceGroupsKey()}),
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 const VarianceForm form = ReadVarianceForm(reader);
                 return std::make_unique<FramePolicy>(ReadFrame(reader),
                                                      std::make_unique<CompkvScorer>(form));
               }});

}  // namespace
}  // namespace condense
