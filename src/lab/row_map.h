// Which rows of the cache a policy read over time, as a small picture: positions by decisions,
// thinned out to at most 128 columns and 64 lines. A character says how much of its rows, over all
// layers and query heads, was read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decode/plugin.h"
#include "lab/records.h"

namespace condense {

class RowMap {
 public:
  // Cache rows are positions: one sequence that was never reordered.
  RowMap(int n_prompt, int n_decisions);

  // One query head of one layer of the decision under way.
  void Take(const condense_observation& seen);
  void EndDecision();

  // '.': every step of these decisions ran dense; ' ': no row is visible yet; '0': none is read;
  // '1' to '9': the square root of the share read, in ninths, rounded up.
  std::vector<std::string> Lines() const;
  RowsRecord Record(const std::string& policy, const std::string& teacher) const;

 private:
  static constexpr int kColumns = 128, kLines = 64;

  int n_prompt_, n_decisions_, n_positions_;
  int positions_a_column_, decisions_a_line_, n_columns_;
  int decision_ = 0;                      // ended so far
  uint64_t n_heads_ = 0;                  // observed at the decision under way
  std::vector<uint64_t> read_, visible_;  // [lines, n_columns] rows times heads
};

}  // namespace condense
