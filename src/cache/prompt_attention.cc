#include "cache/prompt_attention.h"

#include <algorithm>

#include "base/bytes_of.h"
#include "base/row_mask.h"

namespace condense {
namespace {

constexpr size_t kMaxRecords = 8;

}  // namespace

void PromptWants::Add(const PromptWants& other) {
  for (int window : other.windows) {
    const auto at = std::lower_bound(windows.begin(), windows.end(), window);
    if (at == windows.end() || *at != window) windows.insert(at, window);
  }
  last_queries = std::max(last_queries, other.last_queries);
  last_call = last_call || other.last_call;
}

const SeenPrompt::Sums* SeenPrompt::SumsOf(int window) const {
  for (const Sums& of_window : sums) {
    if (of_window.window == window) return &of_window;
  }
  return nullptr;
}

SeenPrompt::Query& SeenPrompt::NextQuery() {
  Query& query = ring[next];
  next = (next + 1) % static_cast<int>(ring.size());
  n_last = std::min(n_last + 1, static_cast<int>(ring.size()));
  return query;
}

void SeenPrompt::Clear() {
  newest_row = -1;
  n_queries = n_last = next = 0;
  unchecked = answered = false;
  own.Clear();
  for (Sums& of_window : sums) {
    for (std::vector<float>& of_head : of_window.heads)
      std::fill(of_head.begin(), of_head.end(), 0.0f);
  }
}

size_t SeenPrompt::bytes() const {
  size_t n = sizeof(*this) + own.bytes() + BytesOf(sums) + BytesOf(ring);
  for (const Sums& of_window : sums) {
    n += BytesOf(of_window.heads);
    for (const std::vector<float>& of_head : of_window.heads) n += BytesOf(of_head);
  }
  for (const Query& query : ring) n += BytesOf(query.q) + BytesOf(query.visible);
  return n;
}

void PromptAttention::MarkWritten(int row) {
  for (SeenPrompt& record : records_) {
    if (record.newest_row < 0) continue;
    if (record.newest_row == row) {
      record.Clear();
      continue;
    }
    record.own.Drop(row);
    for (SeenPrompt::Sums& of_window : record.sums) {
      for (std::vector<float>& of_head : of_window.heads) {
        if (static_cast<size_t>(row) < of_head.size()) of_head[row] = 0.0f;
      }
    }
  }
}

void PromptAttention::Forget() {
  for (SeenPrompt& record : records_) record.unchecked = true;
}

void PromptAttention::NoteStep(std::span<const uint16_t> visible) {
  for (SeenPrompt& record : records_) {
    const int row = record.newest_row;
    if (row < 0 || static_cast<size_t>(row) / kBlockRows >= visible.size()) continue;
    record.answered = record.answered || HasRow(visible, row);
  }
}

bool PromptAttention::FollowsSteps(const KvView& view, std::span<const uint16_t> visible) {
  const SeenPrompt* found = Match(view, visible);
  return found != nullptr && found->answered;
}

SeenPrompt* PromptAttention::Match(const KvView& view, std::span<const uint16_t> visible) {
  SeenPrompt* best = nullptr;
  for (SeenPrompt& record : records_) {
    const int row = record.newest_row;
    if (row < 0 || static_cast<size_t>(row) / kBlockRows >= visible.size()) continue;
    if (!HasRow(visible, row)) continue;
    if (record.unchecked && !record.own.Same(view)) {
      record.Clear();
      continue;
    }
    record.unchecked = false;
    if (best == nullptr || record.n_queries > best->n_queries) best = &record;
  }
  if (best != nullptr) best->last_used = clock_;
  return best;
}

// A record without queries, or else the one that was not used for longest, if not in this node.
SeenPrompt& PromptAttention::New() {
  SeenPrompt* oldest = nullptr;
  for (SeenPrompt& record : records_) {
    if (record.newest_row < 0) {
      record.last_used = clock_;
      return record;
    }
    if (oldest == nullptr || record.last_used < oldest->last_used) oldest = &record;
  }
  if (records_.size() < kMaxRecords || oldest->last_used == clock_) {
    records_.emplace_back();
    oldest = &records_.back();
  } else {
    oldest->Clear();
  }
  oldest->last_used = clock_;
  return *oldest;
}

SeenPrompt& PromptAttention::Take(const KvView& view, const PromptWants& wants, int n_query_heads,
                                  int row, std::span<const uint16_t> visible) {
  SeenPrompt* found = Match(view, visible);
  SeenPrompt& record = found != nullptr ? *found : New();
  const size_t n_rows = visible.size() * kBlockRows;
  for (int window : wants.windows) {
    if (record.SumsOf(window) == nullptr) record.sums.push_back({window, {}});
  }
  for (SeenPrompt::Sums& of_window : record.sums) {
    of_window.heads.resize(n_query_heads);
    for (std::vector<float>& of_head : of_window.heads) {
      if (of_head.size() < n_rows) of_head.resize(n_rows, 0.0f);
    }
  }
  if (record.ring.size() != static_cast<size_t>(wants.last_queries)) {
    record.ring.assign(wants.last_queries, {});
    record.next = record.n_last = 0;
  }
  record.own.Reserve(visible.size());
  record.own.Note(view, row);
  record.answered = false;
  record.newest_row = row;
  ++record.n_queries;
  return record;
}

const SeenPrompt* PromptAttention::Find(const KvView& view, std::span<const uint16_t> visible) {
  return Match(view, visible);
}

size_t PromptAttention::bytes() const {
  size_t n = 0;
  for (const SeenPrompt& record : records_) n += record.bytes();
  return n;
}

}  // namespace condense
