#include "select/row_pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "select/row_keys.h"

namespace condense {
namespace {

// Calls function(position, row) for every visible row.
template <class Function>
void ForPositions(const LayerQuery& query, const Function& function) {
  const int newest = query.newest_row >= 0 ? query.newest_row : -1;
  int position = 0, last = -1;
  for (size_t b = 0; b < query.visible.size(); ++b) {
    for (uint32_t word = query.visible[b]; word != 0; word &= word - 1) {
      const int row = static_cast<int>(b) * kBlockRows + std::countr_zero(word);
      if (row == newest) {
        last = row;
      } else {
        function(position++, row);
      }
    }
  }
  if (last >= 0) function(position, last);
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
  static thread_local std::vector<uint8_t> read;
  selection.Reset();
  if (options_.dense_layers.Contains(query.layer)) {
    selection.reason = Fallback::kLayer;
    return;
  }
  const int n = query.n_visible;
  std::optional<int> rows = options_.tokens;
  if (options_.byte_share) rows = static_cast<int>(std::floor(*options_.byte_share * n));
  read.assign(n, 0);
  if (rows && *rows < n && (*rows < 1 || !pattern_->Fill(rows, read))) {
    selection.reason = Fallback::kBudget;
    return;
  }
  if (!rows) pattern_->Fill(rows, read);
  if ((rows && *rows >= n) || std::find(read.begin(), read.end(), 0) == read.end()) {
    selection.reason = Fallback::kShort;
    return;
  }
  const size_t n_blocks = query.visible.size();
  selection.dense = false;
  selection.n_blocks = static_cast<int>(n_blocks);
  selection.k_masks.assign(query.kv->n_kv_heads * n_blocks, 0);
  const std::span<uint16_t> mask(selection.k_masks.data(), n_blocks);
  ForPositions(query, [&](int position, int row) {
    if (read[position]) AddRow(mask, row);
  });
  for (int g = 1; g < query.kv->n_kv_heads; ++g)
    std::copy(mask.begin(), mask.end(), selection.KMask(g));
}

}  // namespace condense
