#include "select/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/attend.h"
#include "kernels/summary.h"
#include "kernels/token_codes.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Of one thread, for the set that it chooses.
struct SetScratch {
  std::vector<float> mean_query;                         // [k_dim]
  std::vector<float> per_block;                          // whole tiles
  std::vector<float> scores, head_scores, union_scores;  // [n_candidates]
  std::vector<float> logits, block_lse, mass;            // rerank
  std::vector<const uint16_t*> masks;                    // rerank, [group]
  std::vector<int32_t> keys;
  std::vector<int> best, shortlist;  // positions in `candidates`, ascending
};

SetScratch& ThreadSetScratch() {
  static thread_local SetScratch scratch;
  return scratch;
}

// Summaries of this size take as long to read as waking the team (measured: about 2 microseconds).
constexpr size_t kParallelBytes = 96 * 1024;

// best = positions of the n best scores. False, with none, where a score is NaN.
bool BestScores(std::span<const float> scores, int n, std::vector<int32_t>& keys,
                std::vector<int>& best) {
  keys.resize(scores.size());
  best.resize(std::min(scores.size(), static_cast<size_t>(std::max(n, 0))));
  const int n_best =
      TopScores(scores.data(), static_cast<int>(scores.size()), n, keys.data(), best.data());
  if (n_best < 0) best.clear();
  return n_best >= 0;
}

// Tiles of summaries up to the last candidate.
int TilesOf(const std::vector<int>& candidates) { return candidates.back() / kTileBlocks + 1; }

// One set's choice among a step's candidates.
class SetChooser {
 public:
  SetChooser(const LayerQuery& query, const FrameOptions& options, const BlockScorer& scorer,
             ChoiceScratch& step, SetScratch& scratch)
      : query_(query), options_(options), scorer_(scorer), step_(step), s_(scratch) {}

  // Marks the set's `r` blocks in step.chosen; false where a score was NaN.
  bool Choose(int set, int r, uint64_t& bytes) {
    s_.per_block.resize(static_cast<size_t>(TilesOf(step_.candidates)) * kTileBlocks);
    const int n_heads = query_.n_query_heads;
    const int group = query_.group();
    bool ranked = true;
    switch (options_.share) {
      case Share::kShared:
        ScoreHeads(0, n_heads, /*comparable=*/false, s_.scores);
        ranked = BestScores(s_.scores, r, s_.keys, s_.best);
        break;
      case Share::kKvGroup:
        if (step_.scored.empty()) {
          ScoreHeads(set * group, (set + 1) * group, false, s_.scores);
        } else {
          const size_t n = step_.scored.size() / query_.kv->n_kv_heads;
          TakeCandidates(step_.scored.data() + set * n, s_.scores);
        }
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
    uint16_t* chosen = step_.chosen.data() + static_cast<size_t>(set) * query_.visible.size();
    for (int position : s_.best) chosen[step_.candidates[position]] = 0xFFFF;
    return true;
  }

  // One choice per KV group, of linear scores or bounds: the group's scores of the blocks of `out`,
  // from `first_block` on.
  void ScoreRun(int set, int first_block, std::span<float> out) {
    const int group = query_.group();
    ScoreQuery query{.layer = &query_,
                     .q = nullptr,
                     .kv_head = set,
                     .query_head = -1,
                     .rows = step_.gain,
                     .first_block = first_block};
    if (scorer_.kind() == ScoreKind::kLinear) {
      query.q = MeanQuery(set * group, group);
      if (group == 1) query.query_head = set;
      scorer_.Score(query, out);
      return;
    }
    for (int h = 0; h < group; ++h) {
      query.query_head = set * group + h;
      query.q = query_.q + static_cast<size_t>(query.query_head) * query_.kv->k_dim;
      s_.per_block.resize(out.size());
      scorer_.Score(query, h == 0 ? out : std::span<float>(s_.per_block));
      if (h == 0) continue;
      for (size_t i = 0; i < out.size(); ++i) out[i] = LargerOrNan(out[i], s_.per_block[i]);
    }
  }

 private:
  // Of n heads from `first` on; in the scratch where n > 1.
  const float* MeanQuery(int first, int n) {
    const int dim = query_.kv->k_dim;
    const float* q = query_.q + static_cast<size_t>(first) * dim;
    if (n == 1) return q;
    s_.mean_query.assign(q, q + dim);
    for (int h = 1; h < n; ++h) {
      for (int c = 0; c < dim; ++c) s_.mean_query[c] += q[static_cast<size_t>(h) * dim + c];
    }
    for (float& value : s_.mean_query) value /= static_cast<float>(n);
    return s_.mean_query.data();
  }

  int SaturatedShortlist(int r) const {
    return static_cast<int>(
        std::min<int64_t>(int64_t{options_.shortlist} * r, std::numeric_limits<int>::max()));
  }

  // out[i] = score of candidate i for one query.
  void Score(const float* q, int kv_head, int query_head, std::vector<float>& out) {
    scorer_.Score({.layer = &query_,
                   .q = q,
                   .kv_head = kv_head,
                   .query_head = query_head,
                   .rows = step_.gain,
                   .first_block = 0},
                  s_.per_block);
    TakeCandidates(s_.per_block.data(), out);
  }

  void TakeCandidates(const float* per_block, std::vector<float>& out) const {
    const std::vector<int>& blocks = step_.candidates;
    out.resize(blocks.size());
    if (blocks.back() - blocks.front() + 1 == static_cast<int>(blocks.size())) {  // neighbours
      std::copy_n(per_block + blocks.front(), blocks.size(), out.begin());
    } else {
      for (size_t i = 0; i < out.size(); ++i) out[i] = per_block[blocks[i]];
    }
  }

  // Scores of the query heads [first, last) as one. comparable: scores of different heads will be
  // compared, so a single head's masses are normalised too.
  void ScoreHeads(int first, int last, bool comparable, std::vector<float>& out) {
    const int dim = query_.kv->k_dim;
    const int group = query_.group();
    const int n = last - first;
    if (scorer_.kind() == ScoreKind::kLinear) {
      const float* q = MeanQuery(first, n);
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
        out[i] = mass ? out[i] + scores[i] : LargerOrNan(out[i], scores[i]);
      }
    }
  }

  void ScoreUnion(int first, int last) {
    for (int h = first; h < last; ++h) {
      std::vector<float>& scores = h == first ? s_.union_scores : s_.scores;
      ScoreHeads(h, h + 1, true, scores);
      if (h == first) continue;
      for (size_t i = 0; i < scores.size(); ++i) {
        s_.union_scores[i] = LargerOrNan(s_.union_scores[i], scores[i]);
      }
    }
  }

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
      const int block = step_.candidates[s_.shortlist[i]];
      std::fill(s_.masks.begin(), s_.masks.end(), &step_.gain[block]);
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
    for (int position : s_.shortlist) unread += CountBits(step_.gain[step_.candidates[position]]);
    for (int& position : s_.best) {
      position = s_.shortlist[position];
      unread -= CountBits(step_.gain[step_.candidates[position]]);
    }
    if (!scorer_.reads_keys()) bytes += unread * kv.KeyBytes();
    return true;
  }

  // -inf for nothing; NaN stays.
  static float LogSumExp(std::span<const float> values) {
    const float max = LargestOf(values.data(), static_cast<int>(values.size()));
    if (max == kMinusInf) return max;
    float sum = 0;
    for (float value : values) sum += std::exp(value - max);
    return max + std::log(sum);
  }

  const LayerQuery& query_;
  const FrameOptions& options_;
  const BlockScorer& scorer_;
  ChoiceScratch& step_;
  SetScratch& s_;
};

}  // namespace

bool ChooseBlocks(const LayerQuery& query, const FrameOptions& options, const BlockScorer& scorer,
                  int r, ChoiceScratch& s, uint64_t& bytes) {
  const KvView& kv = *query.kv;
  if (scorer.needs() != 0) query.index->Refresh(kv, scorer.needs(), s.whole);
  const int n_blocks = static_cast<int>(query.visible.size());
  const int n_sets = options.share == Share::kPerHead ? query.n_query_heads : kv.n_kv_heads;
  s.chosen.assign(static_cast<size_t>(n_sets) * n_blocks, 0);
  if (options.share == Share::kShared) {
    SetChooser first(query, options, scorer, s, ThreadSetScratch());
    uint64_t none = 0;
    if (!first.Choose(0, r, none)) return false;
    for (int set = 1; set < n_sets; ++set) {
      std::copy_n(s.chosen.begin(), n_blocks,
                  s.chosen.begin() + static_cast<size_t>(set) * n_blocks);
    }
    return true;
  }
  const size_t to_score = static_cast<size_t>(n_sets) * s.candidates.size() *
                          BlockIndex::BytesPerBlock(scorer.needs(), kv.k_dim, kv.v_dim);
  const bool parallel =
      query.n_threads > 1 && n_sets > 1 && (to_score >= kParallelBytes || scorer.reads_keys());
  // Runs of tiles, several a set, so that threads have the same to read whatever the KV heads.
  const bool by_runs = parallel && options.share == Share::kKvGroup && scorer.by_block() &&
                       scorer.kind() != ScoreKind::kMass;
  const int n_tiles = TilesOf(s.candidates);
  const int run = (n_tiles + 4 * query.n_threads - 1) / (4 * query.n_threads) * 4;
  const int runs_a_set = (n_tiles + run - 1) / run;
  s.scored.resize(by_runs ? static_cast<size_t>(n_sets) * n_tiles * kTileBlocks : 0);
  bool ranked = true;
  uint64_t read = 0;
#pragma omp parallel num_threads(query.n_threads) if (parallel)
  {
    SetChooser chooser(query, options, scorer, s, ThreadSetScratch());
    if (by_runs) {
#pragma omp for schedule(static)
      for (int i = 0; i < n_sets * runs_a_set; ++i) {
        const int set = i / runs_a_set, first = i % runs_a_set * run;
        const std::span<float> to(s.scored.data() + (set * n_tiles + first) * kTileBlocks,
                                  std::min(run, n_tiles - first) * kTileBlocks);
        chooser.ScoreRun(set, first * kTileBlocks, to);
      }
    }
#pragma omp for schedule(static) reduction(&& : ranked) reduction(+ : read)
    for (int set = 0; set < n_sets; ++set) ranked = chooser.Choose(set, r, read) && ranked;
  }
  bytes += read;
  return ranked;
}

}  // namespace condense
