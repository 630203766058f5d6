// `test_split`: a policy that only this test program has. It chooses rows, not blocks: per KV head
// the rows outside anchor and window with the most exact mass over the group read K; the better
// half of them, anchor and window read V too; the mass of the others takes the head's mean value.
// It shows that the seam carries what a policy with exact keys for a shortlist and values for its
// best half needs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attend.h"
#include "kernels/half.h"
#include "select/key_reader.h"
#include "select/registry.h"

namespace condense {
namespace {

class Split final : public Policy {
 public:
  Split(int tokens, int anchor, int window) : tokens_(tokens), anchor_(anchor), window_(window) {}

  void Select(const LayerQuery& query, Selection& selection) const override {
    const KvView& kv = *query.kv;
    const int n_blocks = static_cast<int>(query.visible.size());
    selection = Selection();
    if (query.n_visible <= tokens_) {
      selection.reason = Fallback::kShort;
      return;
    }
    selection.dense = false;
    selection.n_blocks = n_blocks;
    RowMask always = LastRows(query.visible, window_);
    const RowMask first = FirstRows(query.visible, anchor_);
    for (int b = 0; b < n_blocks; ++b) always[b] = static_cast<uint16_t>(always[b] | first[b]);
    if (query.newest_row >= 0) AddRow(always, query.newest_row);
    const int group = query.group();
    for (int g = 0; g < kv.n_kv_heads; ++g) {
      const std::vector<double> mass = Mass(query, g);
      std::vector<int> rows;
      for (int row = 0; row < n_blocks * kBlockRows; ++row) {
        if (HasRow(query.visible, row) && !HasRow(always, row)) rows.push_back(row);
      }
      std::stable_sort(rows.begin(), rows.end(), [&](int a, int b) { return mass[a] > mass[b]; });
      rows.resize(tokens_ - CountRows(always));
      RowMask k = always, v = always;
      for (size_t i = 0; i < rows.size(); ++i) {
        AddRow(k, rows[i]);
        if (i < rows.size() / 2) AddRow(v, rows[i]);
      }
      selection.k_masks.insert(selection.k_masks.end(), k.begin(), k.end());
      selection.v_masks.insert(selection.v_masks.end(), v.begin(), v.end());
      selection.summary_bytes += (query.n_visible - CountRows(k)) * kv.KeyBytes();
      const std::vector<float> mean = MeanValue(query, g);
      for (int h = 0; h < group; ++h) {
        selection.rest_value.insert(selection.rest_value.end(), mean.begin(), mean.end());
      }
    }
  }

 private:
  // Per row: the sum over the group of each head's softmax over all visible rows.
  static std::vector<double> Mass(const LayerQuery& query, int kv_head) {
    const KvView& kv = *query.kv;
    const int n_blocks = static_cast<int>(query.visible.size());
    const int group = query.group();
    std::vector<double> mass(static_cast<size_t>(n_blocks) * kBlockRows, 0.0);
    std::vector<float> logits(mass.size());
    for (int h = 0; h < group; ++h) {
      AttendArgs args;
      args.k_stride = kv.k_row;
      args.k_type = kv.k_type;
      args.k_dim = kv.k_dim;
      args.n_queries = 1;
      args.q = query.q + static_cast<size_t>(kv_head * group + h) * kv.k_dim;
      args.scale = query.scale;
      args.softcap = query.softcap;
      for (int b = 0; b < n_blocks; b += kChunkBlocks) {
        const uint16_t* mask = query.visible.data() + b;
        args.k = kv.KeyRow(kv_head, b * kBlockRows);
        args.n_blocks = std::min(kChunkBlocks, n_blocks - b);
        args.masks = &mask;
        RowLogits(args, logits.data() + static_cast<size_t>(b) * kBlockRows);
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (float z : logits) sum += std::exp(z - max);
      for (size_t i = 0; i < mass.size(); ++i) mass[i] += std::exp(logits[i] - max) / sum;
    }
    return mass;
  }

  // The host of these tests keeps values in f16.
  static std::vector<float> MeanValue(const LayerQuery& query, int kv_head) {
    const KvView& kv = *query.kv;
    std::vector<float> mean(kv.v_dim, 0.0f);
    for (int row = 0; row < kv.n_rows; ++row) {
      if (!HasRow(query.visible, row)) continue;
      const auto* value = reinterpret_cast<const uint16_t*>(kv.ValueRow(kv_head, row));
      for (int c = 0; c < kv.v_dim; ++c) mean[c] += F32FromF16(value[c]);
    }
    for (float& value : mean) value /= static_cast<float>(query.n_visible);
    return mean;
  }

  int tokens_, anchor_, window_;
};

CONDENSE_REGISTER_POLICY(split,
                         PolicyInfo{.name = "test_split",
                                    .summary = "rows by exact mass; values for the better half",
                                    .source = "",
                                    .label = "",
                                    .keys = {{"tokens", "193", "rows whose K is read", true},
                                             {"anchor", "1", "rows"},
                                             {"window", "64", "rows"}},
                                    .make = [](KeyReader& reader) -> std::unique_ptr<Policy> {
                                      return std::make_unique<Split>(
                                          static_cast<int>(reader.Int("tokens", 100, 32'000'000)),
                                          static_cast<int>(reader.Int("anchor", 0, 32)),
                                          static_cast<int>(reader.Int("window", 1, 64)));
                                    }});

}  // namespace
}  // namespace condense
