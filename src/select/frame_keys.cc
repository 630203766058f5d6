#include <algorithm>

#include "select/frame.h"
#include "select/row_keys.h"

namespace condense {
namespace {

// Above any cache's rows, below overflow in row arithmetic.
constexpr int64_t kMaxRows = 16'000'000;
constexpr int64_t kMaxBlocks = kMaxRows / kBlockRows;

// In the order of enum Share.
const std::vector<std::string>& ShareNames() {
  static const std::vector<std::string> names = {"shared", "kv_group", "head_union", "rerank",
                                                 "per_head"};
  return names;
}

bool IsBudgetKey(std::string_view name) {
  return name == "blocks" || name == "tokens" || name == "budget" || name == "anchor" ||
         name == "window";
}

PolicyKey FrameWindowKey(int rows) {
  return {"window", std::to_string(rows),
          "rows: the last visible ones are always read; 1 to 16000000"};
}

}  // namespace

std::vector<PolicyKey> FrameKeys(const FrameDefaults& defaults, std::vector<PolicyKey> own) {
  std::vector<PolicyKey> keys = {
      {"blocks", std::to_string(defaults.blocks),
       "budget: distant 16-row blocks read per KV head (share=per_head: per query head); 0 to "
       "1000000",
       true},
      {"tokens", "",
       "budget: rows read in all, blocks = (tokens - anchor - window) / 16; instead of blocks",
       true},
      {"budget", "",
       "budget: share of the K + V bytes of dense attention, summaries counted, such as 5%; "
       "instead "
       "of blocks",
       true},
      {"anchor", std::to_string(defaults.anchor),
       "rows: the first visible ones are always read; 0 to 16000000"},
      FrameWindowKey(defaults.window),
      {"share", defaults.share,
       "which heads choose together: shared, kv_group, head_union, rerank, per_head"},
      {"shortlist", "4",
       "share=rerank: blocks ranked again, in multiples of the budget; 1 to 1024"},
      {"reuse", "1", "steps for which chosen blocks stay while the window moves; 1 to 1000000"},
      {"reuse_cos", "off",
       "choose again when the query's cosine to the one that chose falls below this; -1 to 1, or "
       "off"},
      {"tail", defaults.tail,
       "blocks left out as one pseudo-row each, with their mean key and mean value: off, on, or "
       "var "
       "(half the variance of their logits added)"},
      DenseLayersKey(),
  };
  for (PolicyKey& key : keys) key.per_layer = IsBudgetKey(key.name);
  std::move(own.begin(), own.end(), std::back_inserter(keys));
  return keys;
}

namespace {

// What may differ by layer, for the reader's layer.
void ReadBudget(KeyReader& reader, FrameOptions& options) {
  options.anchor = static_cast<int>(reader.Int("anchor", 0, kMaxRows));
  options.window = static_cast<int>(reader.Int("window", 1, kMaxRows));
  options.byte_share.reset();
  const std::string given = GivenOf(reader, {"blocks", "tokens", "budget"});
  if (given == "tokens") {
    const int64_t least = int64_t{options.anchor} + options.window;
    const int64_t tokens = reader.Int("tokens", 1, 2 * kMaxRows);
    CheckTokens(reader, tokens, least);
    options.blocks = static_cast<int>(std::max<int64_t>(tokens - least, 0) / kBlockRows);
  } else if (given == "budget") {
    options.byte_share = ReadByteShare(reader);
  } else {
    options.blocks = static_cast<int>(reader.Int("blocks", 0, kMaxBlocks));
  }
}

// options.by_layer, by `read` of each run of layers.
template <class Read>
void ReadByLayer(KeyReader& reader, FrameOptions& options, const Read& read) {
  std::vector<LayerFrame> frames;
  for (const LayerRange& layers : reader.LayerRuns()) {
    reader.AtLayer(layers.first);
    frames.push_back({layers, options});
    read(frames.back().options);
  }
  reader.AtEveryLayer();
  options.by_layer = std::move(frames);
}

}  // namespace

FrameOptions ReadFrame(KeyReader& reader) {
  FrameOptions options;
  ReadBudget(reader, options);
  options.dense_layers = reader.Layers("dense_layers");
  options.tail = static_cast<Tail>(reader.Choice("tail", {"off", "on", "var"}));
  options.share = static_cast<Share>(reader.Choice("share", ShareNames()));
  if (options.share == Share::kRerank) {
    options.shortlist = static_cast<int>(reader.Int("shortlist", 1, 1024));
  } else if (reader.Given("shortlist")) {
    reader.Fail("shortlist is read only with share=rerank");
  }
  options.reuse_cos = reader.NumberOrOff("reuse_cos", -1, 1);
  options.reuse = static_cast<int>(reader.Int("reuse", 1, 1'000'000));
  if (options.reuse_cos && options.reuse == 1) {
    // Choosing at every step leaves nothing to compare, so the default means "as long as reuse_cos
    // allows".
    if (reader.Given("reuse"))
      reader.Fail("reuse=1 chooses at every step: reuse_cos has no effect");
    options.reuse = 0;
  }
  ReadByLayer(reader, options, [&](FrameOptions& here) { ReadBudget(reader, here); });
  return options;
}

std::vector<PolicyKey> FixedRowsKeys(const std::string& anchor_key, int anchor, int window_rows) {
  PolicyKey window = FrameWindowKey(window_rows);
  window.always_printed = true;
  window.per_layer = true;
  PolicyKey first = {anchor_key, std::to_string(anchor),
                     "rows: the first visible ones are always read; 0 to 16000000"};
  first.per_layer = true;
  return {window, first, DenseLayersKey()};
}

FrameOptions ReadFixedRows(KeyReader& reader, const std::string& anchor_key) {
  FrameOptions options;
  options.blocks = 0;
  const auto read = [&](FrameOptions& here) {
    here.window = static_cast<int>(reader.Int("window", 1, kMaxRows));
    here.anchor = static_cast<int>(reader.Int(anchor_key, 0, kMaxRows));
  };
  read(options);
  options.dense_layers = reader.Layers("dense_layers");
  ReadByLayer(reader, options, read);
  return options;
}

}  // namespace condense
