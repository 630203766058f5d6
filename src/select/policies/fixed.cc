// `fixed`: the decode row of the fixed pattern of Sparse Transformers (arXiv 1904.10509): the
// newest row's own l-block of positions and the last c of every earlier one. A budget of S rows
// gives the own block what it holds and shares the rest evenly among the earlier ones, the newest
// taking one more where it does not come out even. Training-free here: the original's models were
// trained with the pattern.
#include <algorithm>

#include "select/registry.h"
#include "select/row_pattern.h"

namespace condense {
namespace {

class Fixed final : public RowPattern {
 public:
  Fixed(int l, int c) : l_(l), c_(c) {}

  bool Fill(std::optional<int> rows, std::span<uint8_t> read) const override {
    const int n = static_cast<int>(read.size());
    const int n_before = (n - 1) / l_;  // l-blocks before the own one
    const int own = n - n_before * l_;
    int each = c_, one_more = 0;
    if (rows) {
      if (*rows < own) return false;
      each = n_before > 0 ? (*rows - own) / n_before : 0;
      one_more = n_before > 0 ? (*rows - own) % n_before : 0;
    }
    std::fill(read.end() - own, read.end(), 1);
    for (int i = 0; i < n_before; ++i) {
      const int last = (i + 1) * l_;
      const int taken = std::min(l_, each + (i >= n_before - one_more));
      std::fill(read.begin() + last - taken, read.begin() + last, 1);
    }
    return true;
  }

 private:
  const int l_, c_;
};

std::unique_ptr<Policy> Make(KeyReader& reader) {
  const PatternOptions options = ReadPattern(reader, "c");
  const int l = static_cast<int>(reader.Int("l", 1, 1'000'000));
  const int c = reader.Given("c") ? static_cast<int>(reader.Int("c", 1, 1'000'000)) : 0;
  if (c > l)
    reader.Fail("c=" + std::to_string(c) + " is more than the l=" + std::to_string(l) +
                " rows of a block");
  if (options.tokens && *options.tokens < l) {
    reader.Fail("tokens=" + std::to_string(*options.tokens) + " is less than the l=" +
                std::to_string(l) + " rows that the newest row's own block may have");
  }
  return std::make_unique<PatternPolicy>(options, std::make_unique<Fixed>(l, c));
}

CONDENSE_REGISTER_POLICY(
    fixed, PolicyInfo{.name = "fixed",
                      .summary = "the newest row's own l-block and the last c rows of every other",
                      .source = "Sparse Transformers, arXiv 1904.10509",
                      .label = "pattern only: its models were trained with it",
                      .keys = PatternKeys({{"l", "128", "rows of a block; 1 to 1000000"},
                                           {"c", "",
                                            "rows read of every earlier block: the original's "
                                            "pattern, instead of tokens; 1 to l",
                                            true}}),
                      .make = Make});

}  // namespace
}  // namespace condense
