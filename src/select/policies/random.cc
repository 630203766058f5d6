// `random`: distant blocks drawn without regard to the query, seeded: the control that every
// selection rule has to beat. The draw is a hash of seed, layer, KV head (query head with
// share=per_head or head_union) and the number of visible rows, so a step repeated draws the same.
#include "select/frame.h"
#include "select/registry.h"
#include "select/scorers.h"

namespace condense {
namespace {

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
