// Policies that read the same positions whatever the query and the keys: fixed patterns over the
// distance to the newest row. A row's position is its place among the visible rows in the cache's
// order, the newest one last.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "select/key_reader.h"
#include "select/policy.h"

namespace condense {

class RowPattern {
 public:
  virtual ~RowPattern() = default;
  // Sets read[p] = 1 at the positions that the newest row, at read.size() - 1, reads; it is one of
  // them. read is all 0. rows: exactly as many of them where the policy has a budget (less than
  // there are positions), else nullopt. False where the budget is too small.
  virtual bool Fill(std::optional<int> rows, std::span<uint8_t> read) const = 0;
};

struct PatternOptions {
  // Rows read in all, a share of the rows (which is one of the bytes: K and V of the same rows are
  // read, and nothing else), or as the pattern's own keys say.
  std::optional<int> tokens;
  std::optional<double> byte_share;
  LayerRange dense_layers;
};

// `tokens`, `budget`, the pattern's own, `dense_layers`.
std::vector<PolicyKey> PatternKeys(std::vector<PolicyKey> own);
// own_size: the pattern's key that takes the place of a budget.
PatternOptions ReadPattern(KeyReader& reader, const std::string& own_size);

class PatternPolicy final : public Policy {
 public:
  PatternPolicy(const PatternOptions& options, std::unique_ptr<const RowPattern> pattern)
      : options_(options), pattern_(std::move(pattern)) {}
  void Select(const LayerQuery& query, Selection& selection) const override;

 private:
  const PatternOptions options_;
  const std::unique_ptr<const RowPattern> pattern_;
};

}  // namespace condense
