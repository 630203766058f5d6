// `mass`: a block is worth an estimate of its attention mass, n_b exp(scale q·µ_b + v/2), with v
// the variance of its logits as the variances of its keys give it: scale² Σ_t (Σ_{i∈t} q_i²) D_t,
// D_t the mean variance of channel group t. The second moment is what a block selector of
// CompKV (arXiv 2609.26300) ranks mass by. Covariances between channels are not seen. n_b: the rows
// that choosing the block adds; the moments are those of all its 16 rows.
#include <vector>

#include "select/block_mass.h"
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

class MassScorer final : public BlockScorer {
 public:
  explicit MassScorer(VarianceForm form) : form_(form) {}
  ScoreKind kind() const override { return ScoreKind::kMass; }
  SummarySet needs() const override { return kMeanKey | NeededFor(form_); }
  bool by_block() const override { return true; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> v;
    v.resize(per_block.size());
    MassScores(query, form_, v, per_block);
  }

 private:
  const VarianceForm form_;
};

CONDENSE_REGISTER_POLICY(
    mass, PolicyInfo{.name = "mass",
                     .summary = "blocks by the second-moment estimate of their attention mass",
                     .source = "cumulant expansion of a block's mass, as in arXiv 2609.26300",
                     .label = "variances per channel group: covariances are not seen",
                     .keys = FrameKeys({}, {VarianceGroupsKey()}),
                     .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                       const VarianceForm form = ReadVarianceForm(reader);
                       return std::make_unique<FramePolicy>(ReadFrame(reader),
                                                            std::make_unique<MassScorer>(form));
                     }});

}  // namespace
}  // namespace condense
