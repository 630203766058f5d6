// What the last call of several rows made of the rows of one stream: the softmax shares that they
// got from its last queries, per KV head. For `pillar`, whose calls are verifications; before the
// first of them, the prompt's last piece. attention/prompt_pass.h fills it; a policy reads it.
//
// A call is known by the row of the first query that counts: who sees that row goes on from there,
// also where rows of the call behind it were rejected and written again. A verification takes the
// place of the one before; the prompt's last piece is kept beside it, and counts again once the
// verification's rows are taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "cache/key_words.h"
#include "cache/kv_view.h"

namespace condense {

// Rows of a verification at most: a draft of 16 tokens and the token before it. Calls of more rows
// are a prompt's.
inline constexpr int kMostVerifiedRows = 17;

struct SeenCall {
  int first_row = -1;                     // of the first query that counts; -1: none
  bool of_prompt = false;                 // a piece of a prompt
  int n_base = 0;                         // rows that the first query saw, its own included
  int n_seen = 0;                         // rows that the last one saw: whose keys were read
  KeyWords base;                          // the former, but for those written since
  std::vector<std::vector<float>> heads;  // [n_kv_heads][rows, whole blocks] shares
  bool unchecked = false;  // the cache may have been written behind the graph's back since
  uint64_t last_used = 0;

  // The best rows of `base` when they were ranked, best first; of equal ones the lower row.
  // [n_kv_heads]
  std::vector<std::vector<int32_t>> ranking;
  int n_ranked = 0;  // so many, or all that there were

  // Ranks n rows at least, or all of them; false where a share is no number.
  bool Rank(int n);
  void Clear();
  size_t bytes() const;
};

class CallAttention {
 public:
  // A row whose content was just written: nothing is known of it any more.
  void MarkWritten(int row);
  // The cache may have been written behind the graph's back: records are compared with the stored
  // keys before they are used again.
  void Forget();

  // Begins a node: records taken in from here on are not given up before the next Begin.
  void Begin() { ++clock_; }
  // A call of which queries count that see `first` to `last` of the rows; first_row: the former's
  // own. The record's shares are 0, for the caller to add to.
  SeenCall& Take(const KvView& view, int first_row, std::span<const uint16_t> first,
                 std::span<const uint16_t> last, bool of_prompt);

  // The last call that a query which sees `visible` follows; null where there was none, or it does
  // not hold any more.
  SeenCall* Find(const KvView& view, std::span<const uint16_t> visible);

  // Memory.
  size_t bytes() const;

 private:
  SeenCall& New();

  std::list<SeenCall> records_;
  uint64_t clock_ = 1;
};

}  // namespace condense
