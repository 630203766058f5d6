// `oracle`: a block is worth its true attention mass Σ_j p_j over the rows that choosing it adds,
// p the softmax over all visible rows. With by=value, Σ_j p_j ‖v_j − o‖, o the full output: how far
// leaving its rows out would move the output at most, which tells whether the directions of the
// values matter beside the mass. It reads every key (and value) to choose, so it is an upper line
// for block selection at a given support and never a speed. A byte budget buys rows alone; the
// counters still show what was read.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/summary.h"
#include "kernels/token_codes.h"
#include "select/frame.h"
#include "select/registry.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// exp(logit - the largest) of every row for one query head, 0 where a row is not visible, to p
// ([16 n_blocks]); returns their sum.
double Exponentials(const ScoreQuery& query, std::vector<float>& p) {
  const LayerQuery& layer = *query.layer;
  const int n_blocks = static_cast<int>(layer.visible.size());
  const HeadRange head{.kv_head = query.kv_head, .first_head = query.query_head, .n_heads = 1};
  p.resize(static_cast<size_t>(n_blocks) * kBlockRows);
  for (int b = 0; b < n_blocks; b += kChunkBlocks) {
    BlockLogits(layer, *layer.kv, head, b, std::min(kChunkBlocks, n_blocks - b),
                layer.visible.data() + b, p.data() + static_cast<size_t>(b) * kBlockRows);
  }
  const float max = LargestOf(p.data(), static_cast<int>(p.size()));
  double sum = 0;
  for (float& z : p) {
    z = std::exp(z - max);
    sum += z;
  }
  return sum;
}

// Turns every row's share into its share times the distance of its value to the full output.
void WeighByValue(const ScoreQuery& query, double sum, std::vector<float>& p) {
  static thread_local std::vector<float> values;  // [16 n_blocks, v_dim]
  static thread_local std::vector<double> output;
  const LayerQuery& layer = *query.layer;
  const KvView& kv = *layer.kv;
  values.resize(p.size() * kv.v_dim);
  output.assign(kv.v_dim, 0.0);
  for (size_t row = 0; row < p.size(); ++row) {
    if (!HasRow(layer.visible, static_cast<int>(row))) continue;
    float* value = values.data() + row * kv.v_dim;
    BlockStats stats;
    stats.mean = value;
    SummarizeRows(kv.ValueRow(query.kv_head, static_cast<int>(row)), kv.v_row, kv.v_type, 1,
                  kv.v_dim, stats);
    for (int c = 0; c < kv.v_dim; ++c) output[c] += p[row] / sum * value[c];
  }
  for (size_t row = 0; row < p.size(); ++row) {
    if (!HasRow(layer.visible, static_cast<int>(row))) continue;
    double squares = 0;
    for (int c = 0; c < kv.v_dim; ++c) {
      const double off = values[row * kv.v_dim + c] - output[c];
      squares += off * off;
    }
    p[row] = static_cast<float>(p[row] * std::sqrt(squares));
  }
}

class OracleScorer final : public BlockScorer {
 public:
  explicit OracleScorer(bool by_value) : by_value_(by_value) {}
  ScoreKind kind() const override { return ScoreKind::kMass; }
  bool reads_keys() const override { return true; }
  bool reads_values() const override { return by_value_; }
  bool normalised() const override { return true; }

  void Score(const ScoreQuery& query, std::span<float> per_block) const override {
    static thread_local std::vector<float> p;
    const double sum = Exponentials(query, p);
    if (by_value_) WeighByValue(query, sum, p);
    for (size_t b = 0; b < per_block.size(); ++b) {
      double worth = 0;
      for (int i = 0; b < query.rows.size() && i < kBlockRows; ++i) {
        if ((query.rows[b] >> i) & 1) worth += p[b * kBlockRows + i];
      }
      per_block[b] = static_cast<float>(std::log(worth / sum));
    }
  }

 private:
  const bool by_value_;
};

CONDENSE_REGISTER_POLICY(
    oracle,
    PolicyInfo{.name = "oracle",
               .summary = "blocks by their true attention mass, or by what it moves the output: an "
                          "upper line that reads every key to choose",
               .source = "exact attention probabilities",
               .label = "no speed: every key (by=value: and value) is read; a byte budget counts "
                        "rows alone",
               .keys = FrameKeys({}, {{"by", "mass",
                                       "mass: a block's attention; value: its rows' attention "
                                       "times the distance of their values to the output"}}),
               .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                 const bool by_value = reader.Choice("by", {"mass", "value"}) == 1;
                 return std::make_unique<FramePolicy>(ReadFrame(reader),
                                                      std::make_unique<OracleScorer>(by_value));
               }});

}  // namespace
}  // namespace condense
