#include "select/frame.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/attend.h"
#include "kernels/summary.h"
#include "select/ranking.h"

namespace condense {
namespace {

constexpr size_t kMaxChoices = 8;  // remembered per sequence and layer
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Scratch {
  std::vector<uint16_t> always;   // [n_blocks] rows always read
  std::vector<uint16_t> gain;     // [n_blocks] rows that choosing a candidate adds; 0 for others
  std::vector<uint16_t> whole;    // [n_blocks] 0xFFFF for candidates, else 0
  std::vector<int> candidates;    // blocks, ascending
  std::vector<uint16_t> chosen;   // [n_sets, n_blocks] 0xFFFF for chosen blocks
  std::vector<float> mean_query;  // [k_dim]
  std::vector<float> per_block;   // whole tiles
  std::vector<float> scores, head_scores, union_scores;  // [n_candidates]
  std::vector<float> logits, block_lse, mass;            // rerank
  std::vector<const uint16_t*> masks;                    // rerank, [group]
  std::vector<uint64_t> keys;
  std::vector<int> best, shortlist;  // positions in `candidates`
};

// Fills always, gain, whole and candidates.
void FindCandidates(const LayerQuery& query, const FrameOptions& options, Scratch& s) {
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

// Distant blocks that the byte budget buys in this step; -1 where it does not cover the rows always
// read.
int BlocksForBytes(const LayerQuery& query, const FrameOptions& options, const BlockScorer* scorer,
                   const Scratch& s) {
  const KvView& kv = *query.kv;
  const double row_bytes = static_cast<double>(kv.KeyBytes() + kv.ValueBytes()) * kv.n_kv_heads;
  const double allowed = *options.byte_share * query.n_visible * row_bytes;
  const double rest = allowed - CountRows(s.always) * row_bytes;
  if (rest < 0) return -1;
  double block_bytes = kBlockRows * row_bytes;
  double to_choose = 0;
  if (scorer != nullptr && !scorer->reads_keys()) {
    to_choose = static_cast<double>(s.candidates.size()) * kv.n_kv_heads *
                static_cast<double>(BlockIndex::BytesPerBlock(scorer->needs(), kv.k_dim, kv.v_dim));
    if (options.share == Share::kRerank) {
      block_bytes += static_cast<double>(options.shortlist - 1) * kBlockRows *
                     static_cast<double>(kv.KeyBytes()) * kv.n_kv_heads;
    }
  }
  return static_cast<int>(std::max(0.0, std::floor((rest - to_choose) / block_bytes)));
}

// One step's choice among s.candidates.
class Chooser {
 public:
  Chooser(const LayerQuery& query, const FrameOptions& options, const BlockScorer& scorer,
          Scratch& scratch)
      : query_(query), options_(options), scorer_(scorer), s_(scratch) {}

  // Fills s.chosen with `r` blocks a set; false where a score was NaN. Bytes of rows that were read
  // to choose but not chosen are added to `bytes`.
  bool Choose(int r, uint64_t& bytes) {
    const KvView& kv = *query_.kv;
    if (scorer_.needs() != 0) query_.index->Refresh(kv, scorer_.needs(), s_.whole);
    s_.per_block.resize((s_.candidates.back() / kTileBlocks + 1) * kTileBlocks);
    const int n_heads = query_.n_query_heads;
    const int group = query_.group();
    const int n_blocks = static_cast<int>(query_.visible.size());
    const int n_sets = options_.share == Share::kPerHead ? n_heads : kv.n_kv_heads;
    s_.chosen.assign(static_cast<size_t>(n_sets) * n_blocks, 0);
    for (int set = 0; set < n_sets; ++set) {
      bool ranked = true;
      switch (options_.share) {
        case Share::kShared:
          if (set == 0) {
            ScoreHeads(0, n_heads, /*comparable=*/false, s_.scores);
            ranked = BestScores(s_.scores, r, s_.keys, s_.best);
          }
          break;
        case Share::kKvGroup:
          ScoreHeads(set * group, (set + 1) * group, false, s_.scores);
          ranked = BestScores(s_.scores, r, s_.keys, s_.best);
          break;
        case Share::kHeadUnion:
          ScoreUnion(set * group, (set + 1) * group);
          ranked = BestScores(s_.union_scores, r, s_.keys, s_.best);
          break;
        case Share::kRerank:
          ScoreHeads(set * group, (set + 1) * group, false, s_.scores);
          ranked = BestScores(s_.scores, SaturatedShortlist(r), s_.keys, s_.shortlist) &&
                   Rerank(set, r, bytes);
          break;
        case Share::kPerHead:
          ScoreHeads(set, set + 1, false, s_.scores);
          ranked = BestScores(s_.scores, r, s_.keys, s_.best);
          break;
      }
      if (!ranked) return false;
      uint16_t* chosen = s_.chosen.data() + static_cast<size_t>(set) * n_blocks;
      for (int position : s_.best) chosen[s_.candidates[position]] = 0xFFFF;
    }
    return true;
  }

 private:
  int SaturatedShortlist(int r) const {
    return static_cast<int>(
        std::min<int64_t>(int64_t{options_.shortlist} * r, std::numeric_limits<int>::max()));
  }

  // out[i] = score of candidate i for one query.
  void Score(const float* q, int kv_head, int query_head, std::vector<float>& out) {
    scorer_.Score(
        {.layer = &query_, .q = q, .kv_head = kv_head, .query_head = query_head, .rows = s_.gain},
        s_.per_block);
    out.resize(s_.candidates.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = s_.per_block[s_.candidates[i]];
  }

  // Scores of the query heads [first, last) as one. comparable: scores of different heads will be
  // compared, so a single head's masses are normalised too.
  void ScoreHeads(int first, int last, bool comparable, std::vector<float>& out) {
    const int dim = query_.kv->k_dim;
    const int group = query_.group();
    const int n = last - first;
    if (scorer_.kind() == ScoreKind::kLinear) {
      const float* q = query_.q + static_cast<size_t>(first) * dim;
      if (n > 1) {
        s_.mean_query.assign(q, q + dim);
        for (int h = 1; h < n; ++h) {
          for (int c = 0; c < dim; ++c) s_.mean_query[c] += q[static_cast<size_t>(h) * dim + c];
        }
        for (float& value : s_.mean_query) value /= static_cast<float>(n);
        q = s_.mean_query.data();
      }
      const int first_kv = first / group;
      const int n_kv = (last - 1) / group - first_kv + 1;
      Score(q, first_kv, n == 1 ? first : -1, out);
      for (int g = 1; g < n_kv; ++g) {
        Score(q, first_kv + g, -1, s_.head_scores);
        for (size_t i = 0; i < out.size(); ++i) out[i] += s_.head_scores[i];
      }
      if (n_kv > 1) {
        for (float& value : out) value /= static_cast<float>(n_kv);
      }
      return;
    }
    const bool mass = scorer_.kind() == ScoreKind::kMass;
    for (int h = first; h < last; ++h) {
      std::vector<float>& scores = h == first ? out : s_.head_scores;
      Score(query_.q + static_cast<size_t>(h) * dim, h / group, h, scores);
      if (mass && (n > 1 || comparable)) ToMass(scores);
      if (h == first) continue;
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = mass ? out[i] + scores[i] : Greater(out[i], scores[i]);
      }
    }
  }

  void ScoreUnion(int first, int last) {
    for (int h = first; h < last; ++h) {
      std::vector<float>& scores = h == first ? s_.union_scores : s_.scores;
      ScoreHeads(h, h + 1, true, scores);
      if (h == first) continue;
      for (size_t i = 0; i < scores.size(); ++i) {
        s_.union_scores[i] = Greater(s_.union_scores[i], scores[i]);
      }
    }
  }

  // Maximum that keeps NaN.
  static float Greater(float a, float b) { return b > a || b != b ? b : a; }

  // Log-masses to shares: softmax over the candidates, or plain exponentials where they are shares
  // already.
  void ToMass(std::vector<float>& scores) const {
    float max = 0;
    if (!scorer_.normalised()) max = *std::max_element(scores.begin(), scores.end());
    float sum = 0;
    for (float& score : scores) {
      score = score == kMinusInf ? 0.0f : std::exp(score - max);
      sum += score;
    }
    if (scorer_.normalised() || sum == 0.0f) return;
    for (float& score : scores) score /= sum;
  }

  // s.best = the r of s.shortlist with the most mass over the group's heads, a head's mass being
  // its softmax over the rows of the shortlist.
  bool Rerank(int kv_head, int r, uint64_t& bytes) {
    const KvView& kv = *query_.kv;
    const int group = query_.group();
    std::sort(s_.shortlist.begin(), s_.shortlist.end());
    const size_t n = s_.shortlist.size();
    s_.logits.resize(static_cast<size_t>(group) * kBlockRows);
    s_.block_lse.resize(n * group);
    s_.masks.resize(group);
    AttendArgs args;
    args.k_stride = kv.k_row;
    args.k_type = kv.k_type;
    args.k_dim = kv.k_dim;
    args.n_blocks = 1;
    args.n_queries = group;
    args.q = query_.q + static_cast<size_t>(kv_head) * group * kv.k_dim;
    args.masks = s_.masks.data();
    args.scale = query_.scale;
    args.softcap = query_.softcap;
    for (size_t i = 0; i < n; ++i) {
      const int block = s_.candidates[s_.shortlist[i]];
      std::fill(s_.masks.begin(), s_.masks.end(), &s_.gain[block]);
      args.k = kv.KeyRow(kv_head, block * kBlockRows);
      RowLogits(args, s_.logits.data());
      for (int h = 0; h < group; ++h) {
        s_.block_lse[h * n + i] = LogSumExp({s_.logits.data() + h * kBlockRows, kBlockRows});
      }
    }
    s_.mass.assign(n, 0.0f);
    for (int h = 0; h < group; ++h) {
      const std::span<const float> lse(s_.block_lse.data() + h * n, n);
      const float total = LogSumExp(lse);
      for (size_t i = 0; i < n; ++i) {
        if (lse[i] != kMinusInf) s_.mass[i] += std::exp(lse[i] - total);
      }
    }
    if (!BestScores(s_.mass, r, s_.keys, s_.best)) return false;
    int unread = 0;
    for (int position : s_.shortlist) unread += std::popcount(s_.gain[s_.candidates[position]]);
    for (int& position : s_.best) {
      position = s_.shortlist[position];
      unread -= std::popcount(s_.gain[s_.candidates[position]]);
    }
    if (!scorer_.reads_keys()) bytes += unread * kv.KeyBytes();
    return true;
  }

  // -inf for nothing; NaN stays.
  static float LogSumExp(std::span<const float> values) {
    float max = kMinusInf;
    for (float value : values) max = Greater(max, value);
    if (max == kMinusInf) return max;
    float sum = 0;
    for (float value : values) sum += std::exp(value - max);
    return max + std::log(sum);
  }

  const LayerQuery& query_;
  const FrameOptions& options_;
  const BlockScorer& scorer_;
  Scratch& s_;
};

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

void Remember(const LayerQuery& query, const FrameOptions& options, const Scratch& s) {
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

// Bytes of the visible K rows that are in no set of their KV head.
uint64_t UnreadKeyBytes(const LayerQuery& query, const Selection& selection) {
  uint64_t rows = 0;
  const int sets_per_kv_head = selection.per_query_head ? query.group() : 1;
  for (int g = 0; g < query.kv->n_kv_heads; ++g) {
    for (int b = 0; b < selection.n_blocks; ++b) {
      uint32_t read = 0;
      for (int i = 0; i < sets_per_kv_head; ++i)
        read |= selection.KMask(g * sets_per_kv_head + i)[b];
      rows += std::popcount(query.visible[b] & ~read);
    }
  }
  return rows * query.kv->KeyBytes();
}

}  // namespace

FramePolicy::FramePolicy(const FrameOptions& options, std::unique_ptr<const BlockScorer> scorer)
    : options_(options), scorer_(std::move(scorer)) {
  CONDENSE_CHECK(scorer_ != nullptr || (options_.blocks == 0 && !options_.byte_share));
}

void FramePolicy::Select(const LayerQuery& query, Selection& selection) const {
  static thread_local Scratch scratch;
  Scratch& s = scratch;
  selection.dense = true;
  selection.reason = Fallback::kNone;
  selection.v_masks.clear();
  selection.rest_value.clear();
  selection.summary_bytes = 0;
  if (options_.dense_layers.Contains(query.layer)) {
    selection.reason = Fallback::kLayer;
    return;
  }
  FindCandidates(query, options_, s);
  int r = options_.blocks;
  if (options_.byte_share) {
    r = *options_.byte_share >= 1 ? static_cast<int>(s.candidates.size())
                                  : BlocksForBytes(query, options_, scorer_.get(), s);
    if (r < 0) {
      selection.reason = Fallback::kBudget;
      return;
    }
  }
  const int64_t support = int64_t{options_.anchor} + options_.window + int64_t{kBlockRows} * r;
  if (query.n_visible <= support || static_cast<int>(s.candidates.size()) <= r) {
    selection.reason = Fallback::kShort;
    return;
  }

  const int n_blocks = static_cast<int>(query.visible.size());
  const bool per_head = options_.share == Share::kPerHead && scorer_ != nullptr;
  const int n_sets = per_head ? query.n_query_heads : query.kv->n_kv_heads;
  const uint16_t* chosen = nullptr;
  int chosen_blocks = 0;
  bool fresh = false;
  if (r > 0) {
    const bool reuses = options_.reuse != 1 && query.memory != nullptr;
    const SequenceMemory::Choice* choice =
        reuses ? ChoiceInForce(query, options_, n_sets) : nullptr;
    if (choice != nullptr) {
      chosen = choice->k_masks.data();
      chosen_blocks = choice->n_blocks;
    } else {
      fresh = true;
      uint64_t row_bytes = 0;
      if (!Chooser(query, options_, *scorer_, s).Choose(r, row_bytes)) {
        selection.reason = Fallback::kNan;
        return;
      }
      chosen = s.chosen.data();
      chosen_blocks = n_blocks;
      if (reuses) Remember(query, options_, s);
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
  if (fresh && scorer_->reads_keys()) selection.summary_bytes += UnreadKeyBytes(query, selection);
}

}  // namespace condense
