// `mean`: a block is worth scale q·µ, µ the mean of its post-RoPE keys (arXiv 2602.06317:
// "mean-pool", M = 16, reference S = 97, sweep S = 97, 193, 385, 769, one choice per KV group). The
// original keeps means in the cache's precision and closes blocks at append time; here they are f16
// summaries of aligned cache blocks, recomputed when a row changes.
#include "select/frame.h"
#include "select/registry.h"
#include "select/scorers.h"

namespace condense {
namespace {

CONDENSE_REGISTER_POLICY(mean,
                         PolicyInfo{.name = "mean",
                                    .summary = "blocks by the query's product with their mean key",
                                    .source = "arXiv 2602.06317",
                                    .label = "",
                                    .keys = FrameKeys(),
                                    .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                                      return std::make_unique<FramePolicy>(
                                          ReadFrame(reader), std::make_unique<MeanScorer>());
                                    }});

}  // namespace
}  // namespace condense
