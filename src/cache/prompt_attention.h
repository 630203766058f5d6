// What a prompt's queries made of the rows of one stream: for policies that ask for it (H2O,
// SnapKV, TOVA, InfLLM). Column sums, that is the softmax shares that each row got from the
// prompt's queries, and the queries of its last rows. attention/prompt_pass.h fills it; a policy
// reads it.
//
// A prompt is known by the row of its newest query: whoever sees that row goes on from there. Rows
// taken back take the whole prompt with them, since their queries' shares can't be told apart any
// more. Rows that change unseen are found by eight bytes of each stored key. Verifications are no
// prompts: cache/call_attention.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "cache/key_words.h"
#include "cache/kv_view.h"

namespace condense {

// What policies want kept of prompts. Costs: docs/POLICIES.md, "Attention of the prompt".
struct PromptWants {
  // Ascending. 0: sums over all queries; w: over those queries that see the row among the last w.
  std::vector<int> windows;
  int last_queries = 0;    // so many of the last rows' queries
  bool last_call = false;  // shares of the last queries of each call of several rows

  void Add(const PromptWants& other);
  bool of_prompts() const { return !windows.empty() || last_queries > 0; }
  bool empty() const { return !of_prompts() && !last_call; }
  bool operator==(const PromptWants&) const = default;
};

struct SeenPrompt {
  // A query row of the prompt's end.
  struct Query {
    std::vector<float> q;           // [n_query_heads, k_dim]
    std::vector<uint16_t> visible;  // by block: the rows it saw
  };
  struct Sums {
    int window = 0;
    std::vector<std::vector<float>> heads;  // [n_query_heads][rows, whole blocks]
  };

  int newest_row = -1;  // of its queries; -1: none
  int n_queries = 0;
  std::vector<Sums> sums;
  std::vector<Query> ring;  // the last queries
  int next = 0;             // of the ring, to be overwritten
  int n_last = 0;           // valid ones, at most ring.size()
  KeyWords own;             // the queries' own rows
  bool unchecked = false;   // the cache may have been written behind the graph's back since
  bool answered = false;    // a decode step has followed
  uint64_t last_used = 0;

  // Null where these sums were not asked for.
  const Sums* SumsOf(int window) const;
  // What a row got of one query head; 0 for rows that no query saw.
  static float Sum(const Sums& sums, int head, int row) {
    const std::vector<float>& of_head = sums.heads[head];
    return static_cast<size_t>(row) < of_head.size() ? of_head[row] : 0.0f;
  }
  // The i-th of the last queries, oldest first, i < n_last.
  const Query& LastQuery(int i) const {
    return ring[(static_cast<size_t>(next) + ring.size() - n_last + i) % ring.size()];
  }
  // The slot of the next query, of a ring that is not empty.
  Query& NextQuery();
  void Clear();
  size_t bytes() const;
};

class PromptAttention {
 public:
  // A row whose content was just written: nothing is known of it any more.
  void MarkWritten(int row);
  // The cache may have been written behind the graph's back: records are compared with the stored
  // keys before they are used again.
  void Forget();

  // A decode step that sees `visible`: what follows the prompt in calls of a few rows is no prompt.
  void NoteStep(std::span<const uint16_t> visible);
  // Whether a call whose first query sees `visible` goes on behind the steps that follow a prompt.
  // Of few rows (kMostVerifiedRows) it is a verification then, and tells nothing of the prompt.
  bool FollowsSteps(const KvView& view, std::span<const uint16_t> visible);

  // Begins a node's rows: records in use from here on are not given up before the next Begin.
  void Begin() { ++clock_; }
  // A query of a prompt, in the order of the prompt's rows: `row` is its own, `visible` what it
  // sees. Returns the prompt's record, made where none goes on, with room for what is wanted; the
  // caller adds sums and query.
  SeenPrompt& Take(const KvView& view, const PromptWants& wants, int n_query_heads, int row,
                   std::span<const uint16_t> visible);

  // The record of the prompt that a query which sees `visible` follows; null where none was taken
  // in, or it does not hold any more.
  const SeenPrompt* Find(const KvView& view, std::span<const uint16_t> visible);

  // Memory.
  size_t bytes() const;

 private:
  SeenPrompt* Match(const KvView& view, std::span<const uint16_t> visible);
  SeenPrompt& New();

  std::list<SeenPrompt> records_;
  uint64_t clock_ = 1;
};

}  // namespace condense
