#include "lab/row_map.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace condense {
namespace {

constexpr int kWordRows = 16;

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

}  // namespace

RowMap::RowMap(int n_prompt, int n_decisions)
    : n_prompt_(n_prompt),
      n_decisions_(n_decisions),
      n_positions_(n_prompt + n_decisions),
      positions_a_column_(CeilDiv(n_positions_, kColumns)),
      decisions_a_line_(CeilDiv(n_decisions, kLines)),
      n_columns_(CeilDiv(n_positions_, positions_a_column_)) {
  CONDENSE_CHECK(n_prompt > 0 && n_decisions > 0);
  const size_t n = static_cast<size_t>(CeilDiv(n_decisions, decisions_a_line_)) * n_columns_;
  read_.assign(n, 0);
  visible_.assign(n, 0);
}

void RowMap::Take(const condense_observation& seen) {
  if (decision_ >= n_decisions_) return;
  ++n_heads_;
  uint64_t* line = &read_[static_cast<size_t>(decision_ / decisions_a_line_) * n_columns_];
  for (int w = 0; w < seen.n_row_words; ++w) {
    for (unsigned bits = seen.row_words[w]; bits != 0; bits &= bits - 1) {
      const int row = w * kWordRows + std::countr_zero(bits);
      if (row < n_positions_) ++line[row / positions_a_column_];
    }
  }
}

void RowMap::EndDecision() {
  if (decision_ >= n_decisions_) return;
  uint64_t* line = &visible_[static_cast<size_t>(decision_ / decisions_a_line_) * n_columns_];
  ++decision_;
  const int n_visible = n_prompt_ + decision_;
  for (int column = 0; column < n_columns_; ++column) {
    const int begin = column * positions_a_column_;
    line[column] += n_heads_ * std::clamp(n_visible - begin, 0, positions_a_column_);
  }
  n_heads_ = 0;
}

std::vector<std::string> RowMap::Lines() const {
  std::vector<std::string> lines;
  for (size_t at = 0; at < read_.size(); at += n_columns_) {
    const bool observed =
        std::any_of(&visible_[at], &visible_[at] + n_columns_, [](uint64_t n) { return n > 0; });
    std::string line;
    for (int column = 0; column < n_columns_; ++column) {
      const uint64_t read = read_[at + column], visible = visible_[at + column];
      if (visible == 0) {
        line += observed ? ' ' : '.';
        continue;
      }
      const double share = static_cast<double>(read) / static_cast<double>(visible);
      line += static_cast<char>(
          '0' + std::clamp(static_cast<int>(std::ceil(9 * std::sqrt(share))), 0, 9));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

RowsRecord RowMap::Record(const std::string& policy, const std::string& teacher) const {
  return {.policy = policy,
          .teacher = teacher,
          .n_positions = n_positions_,
          .n_decisions = n_decisions_,
          .positions_a_column = positions_a_column_,
          .decisions_a_line = decisions_a_line_,
          .map = Lines()};
}

}  // namespace condense
