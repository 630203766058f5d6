// `snapkv`: what the prompt's end looked at (SnapKV, arXiv 2404.14469). Once, at the first step
// after the prompt, its last `observe` queries vote: a row's votes are the attention probabilities
// that they give it, summed over queries and the heads of the KV group, and of each run of `pool`
// rows the largest (or the mean) counts for its middle. Kept are the rows with most votes, the
// observing ones themselves, and all that follows the prompt; the rest is gone for good. The
// original votes with repeated KV heads, one choice a query head, where ours chooses once a KV
// head. A later prompt votes on what is left. The vote reads the keys once, which that step's
// counters show. Without a prompt nobody votes: the first rows stay.
#include <memory>
#include <string>
#include <vector>

#include "select/evicting_policy.h"
#include "select/registry.h"

namespace condense {
namespace {

std::unique_ptr<Policy> Make(KeyReader& reader) {
  EvictionOptions options;
  options.worth = RowWorth::kVotes;
  options.sets = RowSets::kKvGroup;
  options.voters = static_cast<int>(reader.Int("observe", 1, 1024));
  options.recent_rows = options.voters + 1;  // and the row that is decoded
  options.pool = static_cast<int>(reader.Int("pool", 1, 255));
  if (options.pool % 2 == 0) {
    reader.Fail("pool=" + std::to_string(options.pool) +
                " has no middle row: give an odd number, such as " +
                std::to_string(options.pool + 1));
  }
  options.pool_average = reader.Choice("pooling", {"max", "average"}) == 1;
  ReadEviction(reader, options.recent_rows, "the observing rows and the newest one", options);
  return std::make_unique<EvictingPolicy>(options);
}

std::vector<PolicyKey> Keys() {
  std::vector<PolicyKey> keys = EvictionKeys(
      "193",
      "budget: rows kept per KV head at the first step after the prompt, the observing ones among "
      "them; what follows is read beside them; 1 to 32000000");
  keys.push_back({"observe", "32", "the prompt's last queries, which vote; 1 to 1024"});
  keys.push_back({"pool", "7", "neighbouring rows that share a vote, an odd number; 1 to 255"});
  keys.push_back({"pooling", "max", "what they share: max or average"});
  return keys;
}

CONDENSE_REGISTER_POLICY(
    snapkv, PolicyInfo{.name = "snapkv",
                       .summary = "rows that the prompt's last queries attended to, and all that "
                                  "follows the prompt; evicted rows never return",
                       .source = "SnapKV, arXiv 2404.14469",
                       .label = "one choice a KV head; the budget is the prompt's: what is decoded "
                                "is read beside it",
                       .keys = Keys(),
                       .make = Make});

}  // namespace
}  // namespace condense
