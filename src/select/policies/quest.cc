// `quest`: a block is worth scale Σ_i max(q_i min_i, q_i max_i), an upper bound of every logit in
// it (Quest, ICML 2024, arXiv 2406.10774). The original lets each query head choose and keeps
// layers 0 and 1 dense: quest:share=per_head,dense_layers=0-1. The default shares within the KV
// group, so that policies compare at equal rows; its anchor and window are the frame's, which the
// original does not have.
#include "kernels/summary.h"
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

class QuestScorer final : public BlockScorer {
 public:
  ScoreKind kind() const override { return ScoreKind::kBound; }
  SummarySet needs() const override { return kKeyMinMax; }
  bool by_block() const override { return true; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    const LayerQuery& layer = *query.layer;
    ScoreMinMax(layer.index->Tiles(Column::kMinKey, query.kv_head, query.first_block),
                layer.index->Tiles(Column::kMaxKey, query.kv_head, query.first_block),
                static_cast<int>(per_block.size()) / kTileBlocks, layer.kv->k_dim, query.q,
                layer.scale, per_block.data());
  }
};

CONDENSE_REGISTER_POLICY(
    quest,
    PolicyInfo{
        .name = "quest",
        .summary = "blocks by an upper bound of their logits, from each channel's least and "
                   "greatest key; faithful form: share=per_head,dense_layers=0-1",
        .source = "Quest, ICML 2024, arXiv 2406.10774",
        .label = "by default one choice per KV group and no dense layers, unlike the original",
        .keys = FrameKeys(),
        .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
          return std::make_unique<FramePolicy>(ReadFrame(reader), std::make_unique<QuestScorer>());
        }});

}  // namespace
}  // namespace condense
