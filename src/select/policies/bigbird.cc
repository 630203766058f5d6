// `bigbird`: window, global and random blocks (BigBird, arXiv 2007.14062), as a decoding query sees
// them. The draw is seeded by layer, KV head and number of visible rows, where the original draws
// once for all rows; its blocks have 64 rows, of which it reads 2 global, 3 of the window (own and
// one on each side, of which a decoding query sees no later one) and 3 random ones:
// bigbird:anchor=128,window=128,blocks=12. Window and blocks here are those of the other block
// policies by default.
#include "select/frame.h"
#include "select/registry.h"
#include "select/scorers.h"

namespace condense {
namespace {

CONDENSE_REGISTER_POLICY(
    bigbird, PolicyInfo{.name = "bigbird",
                        .summary = "a window, the first rows as global ones, and random blocks",
                        .source = "BigBird, arXiv 2007.14062",
                        .label = "pattern only: its models were trained with it; draws anew at "
                                 "every step; the original's sizes are anchor=128,window=128,"
                                 "blocks=12",
                        .keys = FrameKeys({.anchor = 32, .window = 64, .blocks = 8},
                                          {{"seed", "1", "of the draw; 0 to 2147483647"}}),
                        .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                          const auto seed =
                              static_cast<uint64_t>(reader.Int("seed", 0, 2147483647));
                          return std::make_unique<FramePolicy>(
                              ReadFrame(reader), std::make_unique<RandomScorer>(seed));
                        }});

}  // namespace
}  // namespace condense
