#include "select/evicting_policy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/top.h"
#include "select/row_keys.h"
#include "select/row_shares.h"

namespace condense {
namespace {

constexpr float kProtected = -1.0f;  // below any share

// Of the calling thread; the team works on it.
struct StepScratch {
  std::vector<int32_t> fresh;         // rows visible now that the last step did not see
  int stride = 0;                     // rows a set may have
  std::vector<int> counts;            // [n_sets]
  std::vector<int32_t> rows;          // [n_sets, stride] ascending
  std::vector<float> scores, prompt;  // [n_sets, stride] of steps; of the prompt (kSum)
  std::vector<float> sums;            // [n_units, stride] what a round of queries gave
  std::vector<float> worth;           // [stride]
  std::vector<int32_t> keys;          // [stride]
  std::vector<int> best;              // [stride]
};

// One step of one layer.
class EvictionStep {
 public:
  EvictionStep(const EvictionOptions& options, const LayerQuery& query, Evictions& evictions,
               StepScratch& scratch)
      : options_(options),
        query_(query),
        evictions_(evictions),
        last_(evictions.last()),
        s_(scratch),
        group_(query.group()) {
    n_units_ = options.sets == RowSets::kPerHead ? query.n_query_heads : query.kv->n_kv_heads;
    n_sets_ = options.sets == RowSets::kLayer ? 1 : n_units_;
    record_ = query.prompts != nullptr ? query.prompts->Find(*query.kv, query.visible) : nullptr;
  }

  void Run(Selection& selection) {
    const int prompt_row = record_ != nullptr ? record_->newest_row : -1;
    const bool new_prompt =
        prompt_row >= 0 && (last_ == nullptr || last_->prompt_row != prompt_row);
    n_since_ = new_prompt ? RowsSincePrompt() : 0;
    // What follows the votes is read beside the rows that they keep.
    const int n_beside = options_.worth == RowWorth::kVotes ? std::max(0, n_since_ - 1) : 0;
    const int n_rows = RowsOf(query_.n_visible - n_beside) + n_beside;
    n_recent_ =
        std::max(options_.recent_rows, static_cast<int>(std::ceil(options_.recent_share * n_rows)));
    n_recent_ += n_beside;
    // Rows that no step was there to drop have no shares: they come before those that have.
    if (options_.worth == RowWorth::kCurrent)
      n_recent_ = std::max(n_recent_, std::min(n_since_, n_rows));
    if (n_rows < n_recent_) {
      selection.reason = Fallback::kBudget;
      return;
    }
    ListRows();
    if (new_prompt && !TakePrompt(selection)) return NotANumber(selection);
    // Votes are cast once a prompt; what follows it stays.
    const bool may_evict = options_.worth != RowWorth::kVotes || last_ == nullptr || new_prompt;
    bool evicted = false;
    for (int set = 0; may_evict && set < n_sets_; ++set) {
      if (s_.counts[set] <= n_rows) continue;
      evicted = true;
      if (!Evict(set, n_rows)) return NotANumber(selection);
    }
    if (follows_steps() && !TakeStep()) return NotANumber(selection);
    if (follows_steps() || (may_evict && (new_prompt || evicted)))
      Remember(new_prompt || last_ == nullptr ? prompt_row : last_->prompt_row);
    Fill(selection);
  }

 private:
  bool follows_steps() const { return options_.worth != RowWorth::kVotes; }

  // Bytes of a set's state that a step reads for each row: its number, and its one or two scores.
  int StateBytes() const { return options_.worth == RowWorth::kSum ? 12 : 8; }

  int RowsOf(int n_visible) const {
    if (!options_.byte_share) return options_.tokens;
    const KvView& kv = *query_.kv;
    const double row = static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) * kv.n_kv_heads;
    const double state = follows_steps() ? StateBytes() * n_sets_ : 0;
    return static_cast<int>(std::floor(*options_.byte_share * n_visible * row / (row + state)));
  }

  // Visible rows that the prompt's last query did not see, where queries of it vote.
  int RowsSincePrompt() const {
    if (options_.worth == RowWorth::kSum || record_->n_last == 0) return 0;
    const SeenPrompt::Query& last = record_->LastQuery(record_->n_last - 1);
    return query_.n_visible - CountCommonRows(last.visible, query_.visible);
  }

  HeadRange HeadsOf(int unit) const {
    if (options_.sets == RowSets::kPerHead) return {unit / group_, unit, 1};
    return {unit, unit * group_, group_};
  }
  int SetOf(int unit) const { return n_sets_ == 1 ? 0 : unit; }

  template <class T>
  std::span<T> Of(std::vector<T>& values, int set) const {
    return {values.data() + static_cast<size_t>(set) * s_.stride,
            static_cast<size_t>(s_.counts[set])};
  }

  // Rows that each set has kept and that are still visible, and those that are new.
  void ListRows() {
    const std::span<const uint16_t> visible = query_.visible;
    s_.fresh.clear();
    for (size_t b = 0; b < visible.size(); ++b) {
      uint32_t word = visible[b];
      if (last_ != nullptr && b < last_->seen.size()) word &= ~uint32_t{last_->seen[b]};
      for (; word != 0; word &= word - 1)
        s_.fresh.push_back(static_cast<int32_t>(b) * kBlockRows + std::countr_zero(word));
    }
    s_.stride = static_cast<int>(s_.fresh.size()) + (last_ != nullptr ? last_->stride : 0);
    const size_t n = static_cast<size_t>(n_sets_) * s_.stride;
    s_.counts.assign(n_sets_, 0);
    s_.rows.resize(n);
    s_.scores.resize(n);
    s_.prompt.resize(n);
    for (int set = 0; set < n_sets_; ++set) MergeRows(set);
  }

  void MergeRows(int set) {
    int& n = s_.counts[set];
    const size_t first = static_cast<size_t>(set) * s_.stride;
    const auto add = [&](int32_t row, float score, float prompt) {
      s_.rows[first + n] = row;
      s_.scores[first + n] = score;
      s_.prompt[first + n++] = prompt;
    };
    size_t next = 0;
    if (last_ != nullptr) {
      const std::span<const int32_t> kept = last_->Rows(set);
      const std::span<const float> scores = last_->Scores(set), prompt = last_->Prompt(set);
      for (size_t i = 0; i < kept.size(); ++i) {
        while (next < s_.fresh.size() && s_.fresh[next] < kept[i]) add(s_.fresh[next++], 0, 0);
        const bool visible = static_cast<size_t>(kept[i]) / kBlockRows < query_.visible.size() &&
                             HasRow(query_.visible, kept[i]);
        if (visible) add(kept[i], scores[i], prompt[i]);
      }
    }
    while (next < s_.fresh.size()) add(s_.fresh[next++], 0, 0);
  }

  // What a prompt that is new to the sets says of their rows; false where it is no number.
  bool TakePrompt(Selection& selection) {
    if (options_.worth == RowWorth::kSum) {
      const SeenPrompt::Sums* sums = record_->SumsOf(0);
      if (sums == nullptr) return true;
      for (int set = 0; set < n_sets_; ++set) {
        const HeadRange heads = HeadsOf(set);
        const std::span<const int32_t> rows = Of(s_.rows, set);
        const std::span<float> prompt = Of(s_.prompt, set);
        for (size_t i = 0; i < rows.size(); ++i) {
          prompt[i] = 0;
          for (int h = heads.first_head; h < heads.first_head + heads.n_heads; ++h)
            prompt[i] += SeenPrompt::Sum(*sums, h, rows[i]);
        }
        selection.summary_bytes += rows.size() * heads.n_heads * sizeof(float);
      }
      return true;
    }
    const int n_voters = std::min(options_.voters, record_->n_last);
    if (n_voters == 0) return true;
    voted_ = true;
    s_.sums.assign(static_cast<size_t>(n_units_) * s_.stride, 0.0f);
    for (int i = record_->n_last - n_voters; i < record_->n_last; ++i) {
      const SeenPrompt::Query& voter = record_->LastQuery(i);
      if (!AddShares(voter.q.data(), voter.visible)) return false;
    }
    for (int set = 0; set < n_sets_; ++set) {
      SumUnits(set);
      if (options_.worth == RowWorth::kVotes) Pool(set);
    }
    return true;
  }

  // What one query's heads give the sets' rows, added to s_.sums.
  bool AddShares(const float* q, std::span<const uint16_t> visible) {
    bool finite = true;
#pragma omp parallel for num_threads(query_.n_threads) if (query_.n_threads > 1) \
    schedule(static) reduction(&& : finite)
    for (int unit = 0; unit < n_units_; ++unit) {
      finite = AddListShares(query_, HeadsOf(unit), q, Of(s_.rows, SetOf(unit)), visible,
                             s_.sums.data() + static_cast<size_t>(unit) * s_.stride) &&
               finite;
    }
    return finite;
  }

  // The set's scores are what its units gave.
  void SumUnits(int set) {
    const std::span<float> scores = Of(s_.scores, set);
    for (size_t i = 0; i < scores.size(); ++i) {
      float sum = 0;
      for (int unit = n_sets_ == 1 ? 0 : set; unit < (n_sets_ == 1 ? n_units_ : set + 1); ++unit)
        sum += s_.sums[static_cast<size_t>(unit) * s_.stride + i];
      scores[i] = sum;
    }
  }

  // Each row before the last ones takes the largest or the mean vote of its neighbours.
  void Pool(int set) {
    const std::span<float> scores = Of(s_.scores, set);
    const int n = static_cast<int>(scores.size()) - n_recent_;
    if (options_.pool == 1 || n <= 0) return;
    s_.worth.resize(n);
    PoolAround(scores.first(n), options_.pool, options_.pool_average, s_.worth);
    std::copy_n(s_.worth.begin(), n, scores.begin());
  }

  // Leaves n_rows rows of a set, which has more: the last ones, the newest, the best of the others.
  // False where a score is no number.
  bool Evict(int set, int n_rows) {
    const std::span<int32_t> rows = Of(s_.rows, set);
    const std::span<float> scores = Of(s_.scores, set), prompt = Of(s_.prompt, set);
    const size_t n = rows.size();
    s_.worth.resize(n);
    s_.keys.resize(n);
    s_.best.resize(n);
    int n_protected = 0;
    for (size_t i = 0; i < n; ++i) {
      const bool stays = i + n_recent_ >= n || rows[i] == query_.newest_row;
      s_.worth[i] = stays ? kProtected : scores[i] + prompt[i];
      n_protected += stays;
    }
    const int n_best = std::max(0, n_rows - n_protected);
    const int n_found = n_best == 0 ? 0
                                    : TopScores(s_.worth.data(), static_cast<int>(n), n_best,
                                                s_.keys.data(), s_.best.data());
    if (n_found < 0) return false;
    int kept = 0, next = 0;
    for (size_t i = 0; i < n; ++i) {
      const bool is_best = next < n_found && s_.best[next] == static_cast<int>(i);
      next += is_best;
      if (!is_best && s_.worth[i] != kProtected) continue;
      rows[kept] = rows[i];
      scores[kept] = scores[i];
      prompt[kept++] = prompt[i];
    }
    n_left_out_ += n - kept;
    s_.counts[set] = kept;
    return true;
  }

  // The shares of this step's query over the rows that it reads.
  bool TakeStep() {
    s_.sums.assign(static_cast<size_t>(n_units_) * s_.stride, 0.0f);
    if (!AddShares(query_.q, {})) return false;
    for (int set = 0; set < n_sets_; ++set) {
      if (options_.worth == RowWorth::kCurrent) {
        SumUnits(set);
        continue;
      }
      const std::span<float> scores = Of(s_.scores, set);
      for (size_t i = 0; i < scores.size(); ++i)
        scores[i] += s_.sums[static_cast<size_t>(set) * s_.stride + i];
    }
    return true;
  }

  void Remember(int prompt_row) {
    const int stride = *std::max_element(s_.counts.begin(), s_.counts.end());
    // Votes are the prompt's whenever they are cast: what followed it is no part of them, and may
    // be taken back, all but its first row.
    const bool votes = options_.worth == RowWorth::kVotes && n_since_ > 0;
    Evictions::Step& step =
        evictions_.Push(query_.n_visible - (votes ? n_since_ - 1 : 0), n_sets_, stride);
    step.prompt_row = prompt_row;
    step.seen.assign(query_.visible.begin(), query_.visible.end());
    if (votes) {
      const RowMask& voter = record_->LastQuery(record_->n_last - 1).visible;
      for (size_t b = 0; b < step.seen.size(); ++b)
        step.seen[b] = static_cast<uint16_t>(step.seen[b] & (b < voter.size() ? voter[b] : 0));
    }
    for (int set = 0; set < n_sets_; ++set) {
      const std::span<const int32_t> rows = Of(s_.rows, set);
      const size_t first = static_cast<size_t>(set) * stride;
      int& n = step.counts[set];
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!HasRow(step.seen, rows[i])) continue;
        step.rows[first + n] = rows[i];
        step.scores[first + n] = Of(s_.scores, set)[i];
        step.prompt[first + n++] = Of(s_.prompt, set)[i];
      }
    }
  }

  void Fill(Selection& selection) {
    const bool all = std::all_of(s_.counts.begin(), s_.counts.end(),
                                 [&](int count) { return count == query_.n_visible; });
    if (all) {
      selection.reason = Fallback::kShort;
      selection.summary_bytes = 0;
      return;
    }
    const int n_blocks = static_cast<int>(query_.visible.size());
    selection.dense = false;
    selection.per_query_head = options_.sets == RowSets::kPerHead;
    selection.n_blocks = n_blocks;
    selection.k_masks.assign(static_cast<size_t>(n_units_) * n_blocks, 0);
    for (int unit = 0; unit < n_units_; ++unit) {
      const std::span<uint16_t> mask(selection.KMask(unit), static_cast<size_t>(n_blocks));
      for (int32_t row : Of(s_.rows, SetOf(unit))) AddRow(mask, row);
    }
    if (follows_steps()) {
      for (int count : s_.counts)
        selection.summary_bytes += static_cast<uint64_t>(count) * StateBytes();
    }
    // Keys that were read to vote and belong to rows that lost.
    if (voted_) {
      selection.summary_bytes += n_left_out_ * (n_units_ / n_sets_) * query_.kv->KeyBytes();
    }
  }

  static void NotANumber(Selection& selection) {
    selection.Reset();
    selection.reason = Fallback::kNan;
  }

  const EvictionOptions& options_;
  const LayerQuery& query_;
  Evictions& evictions_;
  const Evictions::Step* last_;
  StepScratch& s_;
  const int group_;
  const SeenPrompt* record_ = nullptr;
  int n_units_ = 0;  // KV heads, or query heads that keep rows of their own
  int n_sets_ = 0;
  int n_recent_ = 1;
  int n_since_ = 0;  // rows behind a prompt that votes now
  bool voted_ = false;
  uint64_t n_left_out_ = 0;  // rows of sets, in this step
};

}  // namespace

EvictingPolicy::EvictingPolicy(const EvictionOptions& options) : options_(options) {}

PromptWants EvictingPolicy::prompt_wants() const {
  if (options_.worth == RowWorth::kSum) return {.windows = {0}, .last_queries = 0};
  return {.windows = {}, .last_queries = options_.voters};
}

void EvictingPolicy::Select(const LayerQuery& query, Selection& selection) const {
  static thread_local StepScratch scratch;
  selection.Reset();
  if (options_.dense_layers.Contains(query.layer)) {
    selection.reason = Fallback::kLayer;
    return;
  }
  CONDENSE_CHECK(query.memory != nullptr);
  SequenceMemory& memory = *query.memory;
  const int n = query.n_visible;
  // A step that saw as many rows saw one that has been taken back.
  memory.evictions.TakeBack(n - 1);
  // So that rows which change unseen are noticed: eight bytes of each row's key.
  query.index->Refresh(*query.kv, kFingerprint, query.visible);
  EvictionStep(options_, query, memory.evictions, scratch).Run(selection);
}

void ReadEviction(KeyReader& reader, int least, const char* least_text, EvictionOptions& options) {
  options.dense_layers = reader.Layers("dense_layers");
  if (GivenOf(reader, {"tokens", "budget"}) == "budget") {
    options.byte_share = ReadByteShare(reader);
    return;
  }
  options.tokens = static_cast<int>(reader.Int("tokens", 1, kMostTokens));
  if (options.tokens < least) {
    reader.Fail("tokens=" + std::to_string(options.tokens) + " is less than " +
                std::to_string(least) + ", " + least_text);
  }
}

std::vector<PolicyKey> EvictionKeys(const char* tokens, const char* tokens_help) {
  return {
      {"tokens", tokens, tokens_help, true}, BudgetKey("", "instead of tokens"), DenseLayersKey()};
}

}  // namespace condense
