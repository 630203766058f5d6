#include "select/row_pattern.h"

#include <algorithm>
#include <cmath>

#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

// The visible rows by position: the newest one last.
void ListPositions(const LayerQuery& query, std::vector<int32_t>& rows) {
  ListRows(query.visible, rows);
  const auto newest = std::find(rows.begin(), rows.end(), query.newest_row);
  if (newest != rows.end()) std::rotate(newest, newest + 1, rows.end());
}

}  // namespace

std::vector<PolicyKey> PatternKeys(std::vector<PolicyKey> own) {
  std::vector<PolicyKey> keys = {{"tokens", "193", "budget: rows read in all; 1 to 32000000", true},
                                 BudgetKey("", "instead of tokens")};
  std::move(own.begin(), own.end(), std::back_inserter(keys));
  keys.push_back(DenseLayersKey());
  return keys;
}

PatternOptions ReadPattern(KeyReader& reader, const std::string& own_size) {
  PatternOptions options;
  const std::string given = GivenOf(reader, {"tokens", "budget", own_size});
  if (given == "budget") {
    options.byte_share = ReadByteShare(reader);
  } else if (given != own_size) {
    options.tokens = static_cast<int>(reader.Int("tokens", 1, kMostTokens));
  }
  options.dense_layers = reader.Layers("dense_layers");
  return options;
}

void PatternPolicy::Select(const LayerQuery& query, Selection& selection) const {
  static thread_local std::vector<uint8_t> read;       // by position
  static thread_local std::vector<int32_t> positions;  // rows
  selection.Reset();
  if (options_.dense_layers.Contains(query.layer)) {
    selection.reason = Fallback::kLayer;
    return;
  }
  const int n = query.n_visible;
  std::optional<int> rows = options_.tokens;
  if (options_.byte_share) rows = static_cast<int>(std::floor(*options_.byte_share * n));
  if (rows && *rows >= n) {
    selection.reason = Fallback::kShort;
    return;
  }
  read.assign(n, 0);
  if ((rows && *rows < 1) || !pattern_->Fill(rows, read)) {
    selection.reason = Fallback::kBudget;
    return;
  }
  if (std::find(read.begin(), read.end(), 0) == read.end()) {
    selection.reason = Fallback::kShort;
    return;
  }
  ListPositions(query, positions);
  const size_t n_blocks = query.visible.size();
  selection.dense = false;
  selection.n_blocks = static_cast<int>(n_blocks);
  selection.k_masks.assign(query.kv->n_kv_heads * n_blocks, 0);
  const std::span<uint16_t> mask(selection.k_masks.data(), n_blocks);
  for (int position = 0; position < n; ++position) {
    if (read[position]) AddRow(mask, positions[position]);
  }
  for (int g = 1; g < query.kv->n_kv_heads; ++g)
    std::copy(mask.begin(), mask.end(), selection.KMask(g));
}

}  // namespace condense
