// One KV head's choice of rows by their codes, for one query row (TOKEN_CODES; docs/POLICIES.md,
// `condense`): estimated logits of every coded row, exact ones of the rows always read; the rows
// with the most estimated mass over the group get exact logits; of those, the rows with the most
// exact mass are also worth their values.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/code_index.h"
#include "select/policy.h"
#include "select/row_parts.h"

namespace condense {

// How many rows of one KV head a step may read besides those that it reads always.
struct RowBudget {
  int n_keys = 0;    // coded rows whose K is read
  int n_values = 0;  // of those and the loose ones: V too
};

// Begin, then the steps in the order in which they stand here, each for all its parts before the
// next one's first. Parts of a step may run on several threads; the choice does not depend on how
// many there are. Buffers grow to the cache's size and stay.
class RowChooser {
 public:
  // The codes of parts.segments are current. budget: n_keys below parts.n_coded or, with all of
  // them read, equal. k_mask and v_mask [n_blocks] are filled by the steps. All is borrowed.
  void Begin(const LayerQuery& query, const RowParts& parts, int kv_head, const RowBudget& budget,
             int n_parts, uint16_t* k_mask, uint16_t* v_mask);

  void Estimate(int part);      // of coded rows; and the logits of rows read in any case
  void Exponentiate(int part);  // with the greatest of them as the maximum
  void Weigh(int part);         // mass over the group
  bool ShortList();             // false where a logit or an estimate is not finite
  void ReadKeys(int part);      // of the short list
  // False where a logit is not finite. What is known of the rows goes to `logits`, whose buffers
  // are taken over.
  bool ChooseValues(Selection::KeyLogits& logits);

 private:
  struct Run {  // half-open
    int begin, end;
  };
  Run SegmentsOf(int part) const;
  void EndRows();
  void Logits(int part, int first_entry);
  bool MaxOfParts(float* max) const;
  void ExactShares(const float* max);
  float ExactSum(int head) const;
  bool Best(const float* worth, int n_rows, int n);

  const LayerQuery* query_ = nullptr;
  const RowParts* parts_ = nullptr;
  RowBudget budget_;
  int kv_head_ = 0, group_ = 0, n_parts_ = 1;
  uint16_t *k_mask_ = nullptr, *v_mask_ = nullptr;
  const float* q_ = nullptr;  // [group, k_dim]
  bool scans_ = false;        // else every key is read
  int first_ = 0, last_ = 0;  // segments that are scanned
  size_t stride_ = 0;         // of estimates
  int n_fixed_ = 0;           // entries of 16 rows that are read in any case
  size_t exact_stride_ = 0;   // of exact logits: whole segments of 64

  std::vector<QueryTable> tables_;  // [n_parts, group]
  std::vector<float> part_max_;     // [n_parts, group]
  std::vector<float> bases_;        // [group, segments]
  std::vector<float> estimates_;    // [group, stride], then shares of mass
  std::vector<float> sums_;         // [group, segments]
  std::vector<float> worth_;        // [rows]
  std::vector<int32_t> keys_;       // for TopScores
  std::vector<int> best_;           // positions, ascending
  // Rows with exact logits, in entries of 16: those read in any case, then the short list. The last
  // entry of each may have lanes left.
  std::vector<int32_t> rows_;      // [16 entries]
  std::vector<uint16_t> lanes_;    // [entries]
  std::vector<float> logits_;      // [group, exact_stride]; -inf in lanes left
  std::vector<float> exact_;       // the same: their exponentials
  std::vector<float> exact_sums_;  // [group, segments of 64 of them]
  std::vector<float> share_;       // [group]
};

}  // namespace condense
