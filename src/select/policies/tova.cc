// `tova`: token omission via attention (TOVA, arXiv 2401.06104). Each step reads the rows that are
// kept and then drops those that its own query attended to least, the heads of the layer averaged,
// so that the next step has room for its row. The rows of the first step are those that the
// prompt's last query attended to most; it reads the keys to find them, which that step's counters
// show. Without a prompt nothing is known: the first rows stay. One choice for all heads of a
// layer, as in the original.
#include <memory>

#include "select/evicting_policy.h"
#include "select/registry.h"

namespace condense {
namespace {

std::unique_ptr<Policy> Make(KeyReader& reader) {
  EvictionOptions options;
  options.worth = RowWorth::kCurrent;
  options.sets = RowSets::kLayer;
  options.voters = 1;
  ReadEviction(reader, 1, "the newest row", options);
  return std::make_unique<EvictingPolicy>(options);
}

CONDENSE_REGISTER_POLICY(
    tova, PolicyInfo{.name = "tova",
                     .summary = "each step drops the row that it attended to least; evicted rows "
                                "never return",
                     .source = "TOVA, arXiv 2401.06104",
                     .label = "the prompt is computed dense and evicted from at the first step",
                     .keys = EvictionKeys("193",
                                          "budget: rows read per KV head, the newest among them; 1 "
                                          "to 32000000"),
                     .make = Make});

}  // namespace
}  // namespace condense
