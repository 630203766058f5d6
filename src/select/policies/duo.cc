// `duo` (DuoAttention, arXiv 2410.10819): a KV head either is read whole, since it looks things up
// anywhere, or streams: its first rows and its last. Which, a profile says, in the form that the
// authors publish for their models; what they optimised over heads by distillation is not repeated
// here. Without a profile every head streams. No choice depends on the query.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "select/head_profile.h"
#include "select/key_reader.h"
#include "select/registry.h"
#include "select/row_parts.h"

namespace condense {
namespace {

struct Options {
  int sink = 64, window = 256;
  LayerRange dense_layers;
  int n_layers = 0, n_kv_heads = 0;  // of the profile; 0: none
  std::vector<bool> whole;           // [n_layers, n_kv_heads]
};

class DuoPolicy final : public Policy {
 public:
  explicit DuoPolicy(Options options) : options_(std::move(options)) {}

  void Select(const LayerQuery& query, Selection& selection) const override {
    static thread_local RowParts parts;
    selection.Reset();
    if (KeepsDense(query)) {
      selection.reason = Fallback::kLayer;
      return;
    }
    FindRowParts(query, options_.sink, options_.window, parts);
    if (parts.n_always == query.n_visible) {
      selection.reason = Fallback::kShort;
      return;
    }
    const size_t n_blocks = query.visible.size();
    selection.dense = false;
    selection.n_blocks = static_cast<int>(n_blocks);
    selection.k_masks.resize(query.kv->n_kv_heads * n_blocks);
    for (int g = 0; g < query.kv->n_kv_heads; ++g) {
      if (IsWhole(query.layer, g)) {
        std::copy(query.visible.begin(), query.visible.end(), selection.KMask(g));
      } else {
        std::copy(parts.always.begin(), parts.always.end(), selection.KMask(g));
      }
    }
  }

 private:
  bool IsWhole(int layer, int kv_head) const {
    return options_.n_layers > 0 && options_.whole[layer * options_.n_kv_heads + kv_head];
  }

  // By its number, since all its heads are read whole, or since the profile does not know it: a
  // profile of another model says nothing.
  bool KeepsDense(const LayerQuery& query) const {
    const int n_kv_heads = query.kv->n_kv_heads;
    if (options_.dense_layers.Contains(query.layer)) return true;
    if (options_.n_layers == 0) return false;
    if (query.layer >= options_.n_layers || n_kv_heads != options_.n_kv_heads) return true;
    for (int g = 0; g < n_kv_heads; ++g) {
      if (!IsWhole(query.layer, g)) return false;
    }
    return true;
  }

  const Options options_;
};

// Which heads are read whole, by the keys that a profile brings.
void ReadProfile(KeyReader& reader, Options& options) {
  const bool by_sparsity = reader.Given("sparsity");
  if (by_sparsity && reader.Given("threshold"))
    reader.Fail("threshold and sparsity exclude each other: give one of them");
  const double limit =
      by_sparsity ? reader.Percent("sparsity", 0, 100) / 100 : reader.Number("threshold", 0, 1);
  const Result<HeadProfile> profile = ReadHeadProfile(reader.String("profile"));
  if (!profile.ok()) return reader.Fail(profile.error());
  options.n_layers = profile->n_layers;
  options.n_kv_heads = profile->n_kv_heads;
  options.whole =
      by_sparsity ? HeadsButLeast(profile.value(), limit) : HeadsFrom(profile.value(), limit);
}

std::unique_ptr<Policy> Make(KeyReader& reader) {
  Options options;
  options.window = static_cast<int>(reader.Int("window", 1, 1'000'000));
  options.sink = static_cast<int>(reader.Int("sink", 0, 1'000'000));
  options.dense_layers = reader.Layers("dense_layers");
  if (reader.Given("profile")) ReadProfile(reader, options);
  return std::make_unique<DuoPolicy>(std::move(options));
}

CONDENSE_REGISTER_POLICY(
    duo,
    PolicyInfo{
        .name = "duo",
        .summary = "KV heads read whole, or their first and last rows alone, as a profile says",
        .source = "DuoAttention, arXiv 2410.10819",
        .label = "without profile= every head streams; prompts are attended to densely",
        .keys =
            {{"window", "256", "rows: the last visible ones, of heads that stream; 1 to 1000000",
              true},
             {"sink", "64", "rows: the first visible ones, of heads that stream; 0 to 1000000"},
             {"profile", "",
              "file: a line a layer, its KV heads' numbers from 0 (streams) to 1 (whole)"},
             {"threshold", "0.5", "of the profile: heads from this number on are whole; 0 to 1"},
             {"sparsity", "",
              "of the profile: share of all KV heads that stream, those with the least numbers, "
              "such as 50%; instead of threshold"},
             DenseLayersKey()},
        .make = Make});

}  // namespace
}  // namespace condense
