#include "select/frame.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "select/choose.h"

namespace condense {
namespace {

constexpr size_t kMaxChoices = 8;  // remembered per sequence and layer

// Fills always, gain, whole and candidates.
void FindCandidates(const LayerQuery& query, const FrameOptions& options, ChoiceScratch& s) {
  const std::span<const uint16_t> visible = query.visible;
  const int n_blocks = static_cast<int>(visible.size());
  s.always.resize(n_blocks);
  s.gain.resize(n_blocks);
  s.whole.resize(n_blocks);
  for (int b = 0; b < n_blocks; ++b) {
    s.always[b] = static_cast<uint16_t>(visible[b] == 0xFFFF ? 0 : visible[b]);
  }
  int left = options.anchor;
  for (int b = 0; b < n_blocks && left > 0; ++b) {
    uint32_t word = visible[b];
    for (; word != 0 && left > 0; --left) {
      const uint32_t lowest = word & (~word + 1u);
      s.always[b] = static_cast<uint16_t>(s.always[b] | lowest);
      word ^= lowest;
    }
  }
  left = options.window;
  for (int b = n_blocks; b-- > 0 && left > 0;) {
    uint32_t word = visible[b];
    for (; word != 0 && left > 0; --left) {
      const uint32_t highest = std::bit_floor(word);
      s.always[b] = static_cast<uint16_t>(s.always[b] | highest);
      word ^= highest;
    }
  }
  if (query.newest_row >= 0 && query.newest_row < n_blocks * kBlockRows &&
      HasRow(visible, query.newest_row)) {
    AddRow(s.always, query.newest_row);
  }
  s.candidates.clear();
  for (int b = 0; b < n_blocks; ++b) {
    const bool candidate = visible[b] == 0xFFFF && s.always[b] != 0xFFFF;
    s.gain[b] = static_cast<uint16_t>(candidate ? ~s.always[b] : 0);
    s.whole[b] = static_cast<uint16_t>(candidate ? 0xFFFF : 0);
    if (candidate) s.candidates.push_back(b);
  }
}

// What a step's budget buys.
struct Bought {
  int blocks = 0;  // -1: not even the rows always read
  bool tail = false;
};

// Of a byte budget. Blocks that are chosen need no mean value: their rows are read.
Bought BuyForBytes(const LayerQuery& query, const FrameOptions& options, const BlockScorer* scorer,
                   const ChoiceScratch& s) {
  const KvView& kv = *query.kv;
  const double row_bytes = static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) * kv.n_kv_heads;
  const double allowed = *options.byte_share * query.n_visible * row_bytes;
  const double rest = allowed - CountRows(s.always) * row_bytes;
  if (rest < 0) return {-1, false};
  const double n_summaries = static_cast<double>(s.candidates.size()) * kv.n_kv_heads;
  const SummarySet needs = scorer != nullptr && !scorer->reads_keys() ? scorer->needs() : 0;
  const auto tail_bytes = static_cast<double>(TailBytes(options.tail, needs, kv));
  double block_bytes = kBlockRows * row_bytes - tail_bytes * kv.n_kv_heads;
  const double to_choose =
      n_summaries *
      (static_cast<double>(BlockIndex::BytesPerBlock(needs, kv.k_dim, kv.v_dim)) + tail_bytes);
  if (scorer != nullptr && !scorer->reads_keys() && options.share == Share::kRerank) {
    block_bytes += static_cast<double>(options.shortlist - 1) * kBlockRows *
                   static_cast<double>(kv.KeyBytes()) * kv.n_kv_heads;
  }
  const double tail_alone = n_summaries * static_cast<double>(TailBytes(options.tail, 0, kv));
  return {static_cast<int>(std::max(0.0, std::floor((rest - to_choose) / block_bytes))),
          options.tail != Tail::kOff && rest >= tail_alone};
}

Bought Buy(const LayerQuery& query, const FrameOptions& options, const BlockScorer* scorer,
           const ChoiceScratch& s) {
  const bool tail = options.tail != Tail::kOff;
  if (!options.byte_share) return {options.blocks, tail};
  if (*options.byte_share >= 1) return {static_cast<int>(s.candidates.size()), tail};
  return BuyForBytes(query, options, scorer, s);
}

// Over all query heads of the layer; -2, below any threshold, where it is not defined.
double Cosine(const float* a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  const double cosine = dot / std::sqrt(aa * bb);
  return cosine == cosine ? cosine : -2.0;
}

// The remembered choice that holds in this step, or null. Forgets choices that rolled-back rows
// took part in.
const SequenceMemory::Choice* ChoiceInForce(const LayerQuery& query, const FrameOptions& options,
                                            int n_sets) {
  SequenceMemory& memory = *query.memory;
  const int n = query.n_visible;
  if (memory.first_sparse < 0 || n <= memory.first_sparse) memory.first_sparse = n;
  // A choice made with as many rows belongs to a row that has been taken back.
  while (!memory.choices.empty() && memory.choices.back().n_visible >= n) memory.choices.pop_back();
  if (memory.choices.empty()) return nullptr;
  int period_start = memory.first_sparse;
  if (options.reuse > 0) period_start += (n - period_start) / options.reuse * options.reuse;
  const SequenceMemory::Choice& choice = memory.choices.back();
  if (choice.n_visible < period_start ||
      choice.k_masks.size() != static_cast<size_t>(n_sets) * choice.n_blocks) {
    return nullptr;
  }
  if (options.reuse_cos) {
    const size_t n_values = static_cast<size_t>(query.n_query_heads) * query.kv->k_dim;
    if (choice.query.size() != n_values || Cosine(query.q, choice.query) < *options.reuse_cos) {
      return nullptr;
    }
  }
  return &choice;
}

void Remember(const LayerQuery& query, const FrameOptions& options, const ChoiceScratch& s) {
  std::vector<SequenceMemory::Choice>& choices = query.memory->choices;
  if (choices.size() < kMaxChoices) {
    choices.emplace_back();
  } else {  // the oldest one's buffers are taken over
    std::rotate(choices.begin(), choices.begin() + 1, choices.end());
  }
  SequenceMemory::Choice& choice = choices.back();
  choice.n_visible = query.n_visible;
  choice.n_blocks = static_cast<int>(query.visible.size());
  choice.k_masks = s.chosen;
  choice.query.clear();
  if (options.reuse_cos) {
    const size_t n_values = static_cast<size_t>(query.n_query_heads) * query.kv->k_dim;
    choice.query.assign(query.q, query.q + n_values);
  }
}

// Bytes of the visible rows that are in no set of their KV head: K, and V where it was read too.
uint64_t UnreadBytes(const LayerQuery& query, const Selection& selection, bool values) {
  uint64_t rows = 0;
  const int sets_per_kv_head = selection.per_query_head ? query.group() : 1;
  for (int g = 0; g < query.kv->n_kv_heads; ++g) {
    for (int b = 0; b < selection.n_blocks; ++b) {
      uint32_t read = 0;
      for (int i = 0; i < sets_per_kv_head; ++i)
        read |= selection.KMask(g * sets_per_kv_head + i)[b];
      rows += CountBits(query.visible[b] & ~read);
    }
  }
  return rows * (query.kv->KeyBytes() + (values ? query.kv->ValueBytes() : 0));
}

}  // namespace

FramePolicy::FramePolicy(const FrameOptions& options, std::unique_ptr<const BlockScorer> scorer)
    : options_(options), scorer_(std::move(scorer)) {
  CONDENSE_CHECK(scorer_ != nullptr || (options_.blocks == 0 && !options_.byte_share));
}

const FrameOptions& FramePolicy::OptionsFor(int layer) const {
  for (const LayerFrame& frame : options_.by_layer) {
    if (frame.layers.Contains(layer)) return frame.options;
  }
  return options_;
}

void FramePolicy::Select(const LayerQuery& query, Selection& selection) const {
  const FrameOptions& options = OptionsFor(query.layer);
  static thread_local ChoiceScratch scratch;
  ChoiceScratch& s = scratch;
  selection.Reset();
  if (options.dense_layers.Contains(query.layer)) {
    selection.reason = Fallback::kLayer;
    return;
  }
  FindCandidates(query, options, s);
  const auto [r, tail] = Buy(query, options, scorer_.get(), s);
  if (r < 0) {
    selection.reason = Fallback::kBudget;
    return;
  }
  const int64_t support = int64_t{options.anchor} + options.window + int64_t{kBlockRows} * r;
  if (query.n_visible < options_.least_rows || query.n_visible <= support ||
      static_cast<int>(s.candidates.size()) <= r) {
    selection.reason = Fallback::kShort;
    return;
  }

  const int n_blocks = static_cast<int>(query.visible.size());
  const bool per_head = options.share == Share::kPerHead && scorer_ != nullptr;
  const int n_sets = per_head ? query.n_query_heads : query.kv->n_kv_heads;
  const uint16_t* chosen = nullptr;
  int chosen_blocks = 0;
  bool fresh = false;
  if (r > 0) {
    const bool reuses = options.reuse != 1 && query.memory != nullptr;
    const SequenceMemory::Choice* choice = reuses ? ChoiceInForce(query, options, n_sets) : nullptr;
    if (choice != nullptr) {
      chosen = choice->k_masks.data();
      chosen_blocks = choice->n_blocks;
    } else {
      fresh = true;
      uint64_t row_bytes = 0;
      if (!ChooseBlocks(query, options, *scorer_, r, s, row_bytes)) {
        selection.reason = Fallback::kNan;
        return;
      }
      chosen = s.chosen.data();
      chosen_blocks = n_blocks;
      if (reuses) Remember(query, options, s);
      selection.summary_bytes =
          row_bytes +
          s.candidates.size() * query.kv->n_kv_heads *
              BlockIndex::BytesPerBlock(scorer_->needs(), query.kv->k_dim, query.kv->v_dim);
    }
  }

  selection.dense = false;
  selection.per_query_head = per_head;
  selection.n_blocks = n_blocks;
  selection.k_masks.resize(static_cast<size_t>(n_sets) * n_blocks);
  for (int set = 0; set < n_sets; ++set) {
    uint16_t* mask = selection.KMask(set);
    std::copy(s.always.begin(), s.always.end(), mask);
    const uint16_t* blocks = chosen + static_cast<size_t>(set) * chosen_blocks;
    for (int b = 0; b < std::min(chosen_blocks, n_blocks); ++b) {
      mask[b] = static_cast<uint16_t>(mask[b] | (blocks[b] & query.visible[b]));
    }
  }
  if (fresh && scorer_->reads_keys())
    selection.summary_bytes += UnreadBytes(query, selection, scorer_->reads_values());
  const SummarySet read = fresh ? scorer_->needs() : 0;
  if (tail && !AddTail(query, options.tail, s.whole, read, selection)) {
    selection.Reset();
    selection.reason = Fallback::kNan;
  }
}

}  // namespace condense
