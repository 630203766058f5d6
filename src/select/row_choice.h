// One KV head's choice of rows by their codes, for one query row (TOKEN_CODES; docs/POLICIES.md,
// `condense`): estimated logits of every coded row, exact ones of the rows always read; the rows
// with the most estimated mass over the group get exact logits; of those, the rows with the most
// exact mass are also worth their values.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/code_index.h"
#include "kernels/top.h"
#include "select/policy.h"
#include "select/row_parts.h"

namespace condense {

// How many rows of one KV head a step may read besides those that it reads always.
struct RowBudget {
  int n_keys = 0;    // coded rows whose K is read
  int n_values = 0;  // of those and the loose ones: V too
  // Segments whose codes are read; with fewer than there are, those whose centroids have the most
  // mass over the group. Rows of others are left out.
  int n_scanned = 0;
  // Below 1: fewer rows, where these and those read in any case are estimated to have that share of
  // the mass; values then by `split`, n_values at most.
  double mass = 1, split = 1;
};

// Begin, then the steps in the order in which they stand here, each for all its parts before the
// next one's first. Parts of a step may run on several threads, best the same part always on the
// same one: its rows are then in that core's cache. The choice does not depend on how many parts
// there are. Buffers grow to the cache's size and stay.
class RowChooser {
 public:
  // The codes of parts.segments are current. budget: n_keys below parts.n_coded or, with all of
  // them read, equal; fewer where the segments that are scanned have fewer rows. k_mask and v_mask
  // [n_blocks] are filled by the steps. All is borrowed.
  void Begin(const LayerQuery& query, const RowParts& parts, int kv_head, const RowBudget& budget,
             int n_parts, uint16_t* k_mask, uint16_t* v_mask);

  void Scan(int part);  // the codes; and the logits of rows read in any case
  // The part's coded rows that are worth `least` or more.
  void Collect(int part, float least);
  // Whether the parts hold rows enough together; else Collect goes lower. False, too, where there
  // is nothing to rank (all keys are read, or something is not finite).
  bool TooFew() const;
  // The part's rows of the short list, its length too. guess: least_worth() of a step ago.
  void ShortList(int part, float guess);
  void ReadKeys(int part);  // of the short list
  // False where a logit or an estimate is not finite. What is known of the rows goes to `logits`,
  // whose buffers are taken over.
  bool ChooseValues(Selection::KeyLogits& logits);

  // About what the last row of the whole short list is worth; 0 without a ranking.
  float least_worth() const { return least_worth_; }
  // Spent on the logits of a part's rows that are read in any case.
  uint64_t logits_ns(int part) const { return part_[part].logits_ns; }

 private:
  struct Part {
    // Of the coded rows that are worth enough, ascending; room for all of the part.
    int begin = 0, n = 0;  // in worths_ and candidates_
    bool finite = true;    // all estimates, and all logits of rows read in any case
    // Where the budget goes by mass: that of the rows above, and what is wanted of coded rows.
    uint64_t mass = 0, wanted = 0;
    uint64_t logits_ns = 0;
  };
  struct Run {  // half-open
    int begin, end;
  };
  Run PartOf(int part, int first, int last) const;
  Run SegmentsOf(int part) const { return PartOf(part, first_, last_); }
  bool Worths(const float* logits, size_t stride, int n, float* exps, float* worths);
  void TakeBest(const ScoreList& list, int n);
  void ScanFewer();
  void ListFixed();
  Run EntriesOf(int part, bool listed) const;
  void FetchKeys(int part) const;
  void ScanPart(int part);
  void Logits(int part, bool listed);
  bool HeadShares(float* factors, float* share, double* fixed_mass) const;
  int CountListed(const std::vector<ScoreList>& lists) const;
  int n_entries() const;  // of rows with exact logits

  const LayerQuery* query_ = nullptr;
  const RowParts* parts_ = nullptr;
  RowBudget budget_;
  int kv_head_ = 0, group_ = 0, n_parts_ = 1;
  uint16_t *k_mask_ = nullptr, *v_mask_ = nullptr;
  const float* q_ = nullptr;  // [group, k_dim]
  bool scans_ = false;        // else every key is read
  bool by_mass_ = false;
  const uint16_t* coded_ = nullptr;  // [n_blocks] rows that are scanned
  bool has_bases_ = false;
  int first_ = 0, last_ = 0;  // segments that are scanned
  size_t stride_ = 0;         // of exponentials
  int n_fixed_ = 0;           // entries of 16 rows that are read in any case
  int n_listed_ = 0;          // rows of the short list
  size_t exact_stride_ = 0;   // of exact logits: all entries' rows
  float least_worth_ = 0;

  std::vector<Part> part_;
  std::vector<QueryTable> tables_;  // [n_parts, group]
  std::vector<float> bases_;        // [group, segments]
  std::vector<uint16_t> scanned_;   // coded_ where not all segments are scanned
  std::vector<uint16_t> p_;         // [group, stride]
  std::vector<float> references_;   // [group, segments]
  std::vector<float> sums_;         // [group, segments]
  std::vector<float> worths_;       // candidates': [rows], each part from its own row on
  std::vector<int32_t> candidates_;
  // Rows with exact logits, in entries of 16: those read in any case, then the short list. The last
  // entry of each may have lanes left.
  std::vector<int32_t> rows_;      // [16 entries]
  std::vector<uint16_t> lanes_;    // [entries]
  std::vector<uint16_t> v_lanes_;  // [entries]
  std::vector<float> logits_;      // [group, exact_stride]; -inf in lanes left
  std::vector<float> exact_;       // the same: their exponentials
  std::vector<float> share_;       // [group]
  std::vector<int32_t> best_;      // places in rows_, or segments
};

}  // namespace condense
