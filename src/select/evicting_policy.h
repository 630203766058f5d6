// Policies that evict: rows that a step leaves out never return (H2O, SnapKV, TOVA). They differ in
// what a row is worth and in which heads choose together; this file keeps the rows, step by step,
// in SequenceMemory::evictions. An evicted row's key and value are not read again, neither to
// attend nor to choose. Nodes of several rows (prefill, verification) stay dense and read
// everything.
#pragma once

#include <cstdint>
#include <optional>

#include "select/key_reader.h"
#include "select/policy.h"

namespace condense {

// What the rows that compete for their place are ranked by.
enum class RowWorth : uint8_t {
  kSum,      // shares summed over all queries so far, the prompt's included
  kCurrent,  // shares of the newest query, which it gives after it has read
  kVotes,    // shares of the prompt's last queries, once
};
// Heads that keep the same rows, as they give their shares together.
enum class RowSets : uint8_t { kLayer, kKvGroup, kPerHead };

struct EvictionOptions {
  RowWorth worth = RowWorth::kSum;
  RowSets sets = RowSets::kKvGroup;
  int tokens = 193;                  // rows kept a set, unless byte_share is set
  std::optional<double> byte_share;  // (0, 1] of the bytes that dense attention reads
  double recent_share = 0;           // of the kept rows: the last visible ones, rounded up
  int recent_rows = 1;               // at least so many of them
  // kVotes and kCurrent: so many of the prompt's last queries vote for the rows of the first step.
  int voters = 1;
  int pool = 1;               // kVotes: neighbours that share a vote; odd
  bool pool_average = false;  // else the largest
  LayerRange dense_layers;
};

// `tokens` and `budget`, one of them, and `dense_layers`. least: rows that are kept in any case.
void ReadEviction(KeyReader& reader, int least, const char* least_text, EvictionOptions& options);
// Their keys.
std::vector<PolicyKey> EvictionKeys(const char* tokens, const char* tokens_help);

class EvictingPolicy final : public Policy {
 public:
  explicit EvictingPolicy(const EvictionOptions& options);

  PromptWants prompt_wants() const override;
  bool evicts() const override { return true; }
  void Select(const LayerQuery& query, Selection& selection) const override;

 private:
  const EvictionOptions options_;
};

}  // namespace condense
