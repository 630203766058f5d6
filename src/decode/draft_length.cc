#include "decode/draft_length.h"

#include <algorithm>

#include "base/result.h"

namespace condense {
namespace {

constexpr double kNewest = 0.25;  // weight of the newest cost
// A token's weight among those that acceptance is counted over halves in 22 tokens.
constexpr double kFade = 0.97;
// Of dense's time: what trials of drafts that do not pay may cost. With it, decoding takes at most
// 1 / 0.95 of dense's time.
constexpr double kAllowedLoss = 0.04;
constexpr double kGraceSteps = 64;  // dense steps that count as taken before the first

}  // namespace

void RowCosts::Note(int n_rows, double seconds) {
  CONDENSE_CHECK(n_rows > 0);
  if (n_rows > kMostRows) return;
  double& known = seconds_[n_rows];
  known = known == 0 ? seconds : known + kNewest * (seconds - known);
}

double RowCosts::Of(int n_rows) const {
  int below = 0, above = 0;
  for (int n = 1; n <= kMostRows; ++n) {
    if (seconds_[n] == 0) continue;
    if (n <= n_rows) below = n;
    if (n >= n_rows && above == 0) above = n;
  }
  if (below == 0 || above == 0) return seconds_[std::max(below, above)];
  if (below == above) return seconds_[below];
  const double share = static_cast<double>(n_rows - below) / (above - below);
  return seconds_[below] + share * (seconds_[above] - seconds_[below]);
}

double DraftLength::Pace(int n_drafts, const RowCosts& costs) const {
  double tokens = 1, power = 1;
  for (int i = 0; i < n_drafts; ++i) tokens += power *= acceptance();
  const double seconds = n_drafts * token_seconds_ + costs.Of(n_drafts + 1);
  return seconds > 0 ? tokens / seconds : 0;
}

int DraftLength::Best(const RowCosts& costs) const {
  int best = 0;
  double best_pace = 0;
  for (int n = 0; n <= std::min(most_, most_now_); ++n) {
    const double pace = Pace(n, costs);
    if (pace <= best_pace) continue;
    best_pace = pace;
    best = n;
  }
  return best;
}

double DraftLength::AllowedLoss(const RowCosts& costs) const {
  return kAllowedLoss * (dense_seconds_ + kGraceSteps * costs.Of(1));
}

int DraftLength::Next(const RowCosts& costs) const {
  if (fixed_ > 0) return std::min(fixed_, most_);
  if (n_rest_ > 0) return 0;
  return std::max(1, Best(costs));
}

void DraftLength::NoteDraft(int n_drafted, double seconds) {
  if (n_drafted == 0) return;
  const double each = seconds / n_drafted;
  token_seconds_ = token_seconds_ == 0 ? each : token_seconds_ + kNewest * (each - token_seconds_);
}

void DraftLength::NoteVerified(int n_drafted, int n_accepted, double seconds,
                               const RowCosts& costs) {
  for (int i = 0; i < std::min(n_drafted, n_accepted + 1); ++i) {
    confirmed_ = kFade * confirmed_ + (i < n_accepted ? 1 : 0);
    tried_ = kFade * tried_ + 1;
  }
  if (n_accepted == n_drafted && n_drafted >= most_now_) most_now_ = std::min(2 * most_now_, most_);
  const double dense = (n_accepted + 1) * costs.Of(1);
  dense_seconds_ += dense;
  lost_seconds_ += seconds - dense;
  if (fixed_ > 0) return;
  if (Best(costs) > 0 && lost_seconds_ <= AllowedLoss(costs)) {
    next_rest_ = n_accepted > 0 ? kFirstRest : next_rest_;
    return;
  }
  n_rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
}

void DraftLength::NoteUndrafted(const RowCosts& costs) {
  dense_seconds_ += costs.Of(1);
  if (n_rest_ == 0) return;
  if (n_rest_ > 1) {
    --n_rest_;
    return;
  }
  // Tried again where a trial is paid for, with two tokens and as if little were known.
  const double trial = kFirstMost * token_seconds_ + costs.Of(kFirstMost + 1) - costs.Of(1);
  if (lost_seconds_ + trial > AllowedLoss(costs)) return;
  n_rest_ = 0;
  most_now_ = kFirstMost;
  confirmed_ = kGuessConfirmed;
  tried_ = kGuessTried;
}

}  // namespace condense
