// `h2o`: heavy hitters and recent rows (H2O, arXiv 2306.14048, NeurIPS 2023). A row's worth is the
// sum of the attention probabilities that all queries so far gave it, the prompt's and every
// step's; half of the budget goes to the rows of most worth, half to the last ones, and a row once
// left out is gone for good. As in the original the sums are causal: a query's share is among the
// rows that were there to it. Unlike it, the prompt is computed dense and evicted from in one go at
// the first step, not row by row, and heads of a KV group can keep rows of their own
// (`share=per_head`), as the original's, which has no groups, do: then the union that the KV head
// reads may exceed `tokens`.
#include <memory>
#include <string>
#include <vector>

#include "select/evicting_policy.h"
#include "select/registry.h"

namespace condense {
namespace {

std::unique_ptr<Policy> Make(KeyReader& reader) {
  EvictionOptions options;
  options.worth = RowWorth::kSum;
  ReadEviction(reader, 1, "the newest row", options);
  options.recent_share = reader.Percent("recent", 0, 100) / 100;
  const std::vector<std::string> names = {"kv_group", "per_head"};
  options.sets = RowSets::kPerHead;
  if (!options.byte_share) {
    if (reader.Choice("share", names) == 0) options.sets = RowSets::kKvGroup;
  } else {
    // Bytes are those of a KV head's rows, whoever of its group reads them.
    options.sets = RowSets::kKvGroup;
    if (reader.Given("share") && reader.Choice("share", names) == 1) {
      reader.Fail(
          "share=per_head takes tokens: budget counts the bytes of a KV head, and rows that each "
          "query head chooses for itself may be any of them; or share=kv_group");
    }
  }
  return std::make_unique<EvictingPolicy>(options);
}

std::vector<PolicyKey> Keys() {
  std::vector<PolicyKey> keys = EvictionKeys(
      "97",
      "budget: rows kept by each query head (share=kv_group: by each KV head); 1 to 32000000");
  keys.push_back({"recent", "50%", "share of them that are the last visible ones; 0% to 100%"});
  keys.push_back({"share", "per_head",
                  "which heads keep the same rows: per_head (with tokens), or kv_group by the sum "
                  "over the group (always with budget)"});
  return keys;
}

CONDENSE_REGISTER_POLICY(
    h2o, PolicyInfo{.name = "h2o",
                    .summary = "rows that got most attention so far, and the last ones; evicted "
                               "rows never return",
                    .source = "H2O, arXiv 2306.14048",
                    .label = "the prompt is computed dense and evicted from at the first step",
                    .keys = Keys(),
                    .make = Make});

}  // namespace
}  // namespace condense
