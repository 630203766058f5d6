// `random`: distant blocks drawn without regard to the query, seeded: the control that every
// selection rule has to beat. The draw is a hash of seed, layer, KV head (query head with
// share=per_head or head_union) and the number of visible rows, so a step repeated draws the same.
#include "select/frame.h"
#include "select/registry.h"

namespace condense {
namespace {

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class RandomScorer final : public BlockScorer {
 public:
  explicit RandomScorer(uint64_t seed) : seed_(seed) {}
  ScoreKind kind() const override { return ScoreKind::kLinear; }
  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    const auto head = static_cast<uint64_t>(
        query.query_head >= 0 ? (int64_t{1} << 32) + query.query_head : query.kv_head);
    uint64_t state = Mix(seed_);
    state = Mix(state ^ static_cast<uint64_t>(query.layer->layer));
    state = Mix(state ^ head);
    state = Mix(state ^ static_cast<uint64_t>(query.layer->n_visible));
    for (size_t b = 0; b < per_block.size(); ++b) {
      per_block[b] = static_cast<float>(Mix(state ^ b) >> 40) * 0x1p-24f;
    }
  }

 private:
  uint64_t seed_;
};

CONDENSE_REGISTER_POLICY(
    random, PolicyInfo{.name = "random",
                       .summary = "blocks at random: the control",
                       .source = "",
                       .label = "",
                       .keys = FrameKeys({}, {{"seed", "1", "of the draw; 0 to 2147483647"}}),
                       .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                         const auto seed = static_cast<uint64_t>(reader.Int("seed", 0, 2147483647));
                         return std::make_unique<FramePolicy>(ReadFrame(reader),
                                                              std::make_unique<RandomScorer>(seed));
                       }});

}  // namespace
}  // namespace condense
