// How many tokens to draft, from what steps cost on this machine and from how many drafts dense
// verification confirmed of late. Pure arithmetic: takes times, measures none. The expected pace of
// k drafts is (1 + a + ... + a^k) tokens in k draft steps and one verification of k + 1 rows, a the
// running acceptance of one token (Leviathan et al., arXiv 2211.17192, section 3.5).
#pragma once

#include <array>
#include <cstdint>

namespace condense {

// Seconds of one dense call by its number of rows: the newest figures, a running mean; between the
// numbers that were seen, straight lines.
class RowCosts {
 public:
  static constexpr int kMostRows = 64;  // of one call, as far as costs are kept

  void Note(int n_rows, double seconds);
  // 0 where nothing is known.
  double Of(int n_rows) const;

 private:
  std::array<double, kMostRows + 1> seconds_ = {};  // by rows; 0: not seen
};

// Of one draft source.
class DraftLength {
 public:
  // `fixed`: always so many; 0: chosen, at most `most`.
  DraftLength(int fixed, int most) : fixed_(fixed), most_(most) {}

  // Tokens to draft next, 0 .. most; 0: drafting does not pay and rests.
  int Next(const RowCosts& costs) const;

  // The wall time of a draft of n tokens, and what became of it.
  void NoteDraft(int n_drafted, double seconds);
  void NoteVerified(int n_drafted, int n_accepted, double seconds, const RowCosts& costs);
  // A token that was decoded without a draft of this source.
  void NoteUndrafted(const RowCosts& costs);

  // Of one token, of late.
  double acceptance() const { return confirmed_ / tried_; }
  bool resting() const { return n_rest_ > 0; }

 private:
  double Pace(int n_drafts, const RowCosts& costs) const;
  int Best(const RowCosts& costs) const;
  double AllowedLoss(const RowCosts& costs) const;  // seconds

  const int fixed_, most_;
  static constexpr double kGuessConfirmed = 1.6, kGuessTried = 2;
  static constexpr int kFirstMost = 2;
  static constexpr int kFirstRest = 64, kLongestRest = 1024;

  // Decaying counts of single tokens; they begin with a guess.
  double confirmed_ = kGuessConfirmed, tried_ = kGuessTried;
  double token_seconds_ = 0;   // of one drafted token
  int most_now_ = kFirstMost;  // lengths grow as drafts are confirmed whole
  int n_rest_ = 0;             // tokens until drafting is tried again
  int next_rest_ = kFirstRest;
  double lost_seconds_ = 0;   // against dense steps, less what was gained
  double dense_seconds_ = 0;  // that dense decoding would have taken so far
};

}  // namespace condense
