// `strided`: the decode row of the strided pattern of Sparse Transformers (arXiv 1904.10509): the
// last l positions and every l-th one before, counted from the newest. A budget of S rows is shared
// evenly between the two, which is the original's pattern where S is about 2 √n: a stride s that
// gives at most S / 2 rows, and the last rows up to S. Training-free here: the original's models
// were trained with the pattern, and divide its two parts between heads or layers.
#include "select/registry.h"
#include "select/row_pattern.h"

namespace condense {
namespace {

class Strided final : public RowPattern {
 public:
  explicit Strided(int l) : l_(l) {}

  bool Fill(std::optional<int> rows, std::span<uint8_t> read) const override {
    const int n = static_cast<int>(read.size());
    int window = l_, stride = l_;
    if (rows) {
      const int far = *rows / 2;
      stride = far > 0 ? (n + far - 1) / far : n;
      window = WindowFor(*rows, n, stride);
    }
    for (int distance = 0; distance < n; ++distance) {
      if (distance < window || distance % stride == 0) read[n - 1 - distance] = 1;
    }
    return true;
  }

 private:
  // The widest window that with the multiples of the stride beyond it makes `rows` rows.
  static int WindowFor(int rows, int n, int stride) {
    int window = 1;
    const auto beyond = [&](int w) { return (n - 1) / stride - (w - 1) / stride; };
    while (window < n && window + 1 + beyond(window + 1) <= rows) ++window;
    return window;
  }

  const int l_;
};

CONDENSE_REGISTER_POLICY(
    strided,
    PolicyInfo{.name = "strided",
               .summary = "the last l rows and every l-th one before",
               .source = "Sparse Transformers, arXiv 1904.10509",
               .label = "pattern only: its models were trained with it; both parts in every head",
               .keys = PatternKeys({{"l", "",
                                     "rows of the window, and the stride: the original's "
                                     "pattern, instead of tokens; 1 to 1000000",
                                     true}}),
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 const PatternOptions options = ReadPattern(reader, "l");
                 const bool sized = reader.Given("l");
                 const int l = sized ? static_cast<int>(reader.Int("l", 1, 1'000'000)) : 1;
                 return std::make_unique<PatternPolicy>(options, std::make_unique<Strided>(l));
               }});

}  // namespace
}  // namespace condense
