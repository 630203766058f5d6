#include "cache/call_attention.h"

#include <algorithm>

#include "base/bytes_of.h"
#include "base/row_mask.h"
#include "kernels/top.h"

namespace condense {
namespace {

constexpr size_t kMaxRecords = 8;
constexpr float kNoCandidate = -1.0f;  // below any share
// A share of a cache that grows is more rows from step to step.
constexpr int kRankedBeyond = 64;

bool Sees(std::span<const uint16_t> visible, int row) {
  return row >= 0 && static_cast<size_t>(row) / kBlockRows < visible.size() && HasRow(visible, row);
}

}  // namespace

bool SeenCall::Rank(int n) {
  if (n_ranked >= n) return true;
  const std::span<const uint16_t> rows = base.rows();
  const int n_rows = static_cast<int>(rows.size()) * kBlockRows;
  std::vector<float> worth(n_rows);
  std::vector<int32_t> keys(n_rows);
  ranking.resize(heads.size());
  n_ranked = n + kRankedBeyond;
  for (size_t g = 0; g < heads.size(); ++g) {
    for (int row = 0; row < n_rows; ++row)
      worth[row] = HasRow(rows, row) ? heads[g][row] : kNoCandidate;
    std::vector<int32_t>& best = ranking[g];
    best.resize(std::min(n_ranked, n_rows));
    if (TopScores(worth.data(), n_rows, static_cast<int>(best.size()), keys.data(), best.data()) <
        0) {
      n_ranked = 0;
      return false;
    }
    std::sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
      return worth[a] != worth[b] ? worth[a] > worth[b] : a < b;
    });
    while (!best.empty() && worth[best.back()] == kNoCandidate) best.pop_back();
  }
  return true;
}

void SeenCall::Clear() {
  first_row = -1;
  unchecked = false;
  base.Clear();
  n_ranked = 0;
}

size_t SeenCall::bytes() const {
  size_t n = sizeof(*this) + base.bytes() + BytesOf(heads) + BytesOf(ranking);
  for (const std::vector<float>& of_head : heads) n += BytesOf(of_head);
  for (const std::vector<int32_t>& of_head : ranking) n += BytesOf(of_head);
  return n;
}

void CallAttention::MarkWritten(int row) {
  for (SeenCall& record : records_) {
    if (record.first_row < 0) continue;
    if (record.first_row == row) {
      record.Clear();
    } else {
      record.base.Drop(row);
    }
  }
}

void CallAttention::Forget() {
  for (SeenCall& record : records_) record.unchecked = true;
}

// A record without queries, or else the one that was not used for longest, if not in this node.
SeenCall& CallAttention::New() {
  SeenCall* oldest = nullptr;
  for (SeenCall& record : records_) {
    if (record.first_row < 0) return record;
    if (oldest == nullptr || record.last_used < oldest->last_used) oldest = &record;
  }
  if (records_.size() < kMaxRecords || oldest->last_used == clock_) return records_.emplace_back();
  oldest->Clear();
  return *oldest;
}

SeenCall& CallAttention::Take(const KvView& view, int first_row, std::span<const uint16_t> first,
                              std::span<const uint16_t> last, bool of_prompt) {
  for (SeenCall& record : records_) {
    if (Sees(first, record.first_row) && (of_prompt || !record.of_prompt)) record.Clear();
  }
  SeenCall& record = New();
  record.first_row = first_row;
  record.of_prompt = of_prompt;
  record.n_base = CountRows(first);
  record.n_seen = CountRows(last);
  record.last_used = clock_;
  record.base.Reserve(first.size());
  for (int row = 0; row < static_cast<int>(first.size()) * kBlockRows; ++row) {
    if (HasRow(first, row)) record.base.Note(view, row);
  }
  record.heads.resize(view.n_kv_heads);
  for (std::vector<float>& of_head : record.heads)
    of_head.assign(record.base.rows().size() * kBlockRows, 0.0f);
  return record;
}

SeenCall* CallAttention::Find(const KvView& view, std::span<const uint16_t> visible) {
  SeenCall* best = nullptr;
  for (SeenCall& record : records_) {
    if (!Sees(visible, record.first_row)) continue;
    if (record.unchecked && !record.base.Same(view)) {
      record.Clear();
      continue;
    }
    record.unchecked = false;
    if (best == nullptr || record.n_base > best->n_base) best = &record;
  }
  if (best != nullptr) best->last_used = clock_;
  return best;
}

size_t CallAttention::bytes() const {
  size_t n = 0;
  for (const SeenCall& record : records_) n += record.bytes();
  return n;
}

}  // namespace condense
