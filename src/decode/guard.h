// Guarded decoding: a step is decoded sparse, and its token is taken where the margin of the sparse
// logits (top-1 minus top-2) reaches a threshold; else its row is removed and the step is decoded
// dense, so that its K and V are dense as well. A dense step may take the sparse choice along as a
// second row: where dense confirms it, the step after it is done too. What a threshold promises is
// found by lab/calibrate.h and said in docs/GUARD.md; nothing is promised here.
#pragma once

#include <cstdint>

#include "decode/sparse_tail.h"
#include "decode/stepper.h"

namespace condense {

struct GuardOptions {
  // Logits; 0: every sparse step is taken, infinity: none is.
  double threshold = 0;
  // A dense step also replaces the rows of the sparse steps since the last one, in the same call,
  // and no more than rewrite_rows - 1 of them ever stay.
  bool rewrite = false;
  int rewrite_rows = 16;
  bool look_ahead = true;
};

// Since the start. Every step is one of taken, fallback, ahead, rewritten.
struct GuardCounts {
  int64_t n_taken = 0;      // sparse, margin at the threshold or above
  int64_t n_fallbacks = 0;  // sparse, then dense
  int64_t n_ahead = 0;      // dense, as the second row of a fallback
  int64_t n_due = 0;        // dense, since rewrite_rows were due
  int64_t n_changed = 0;    // fallbacks whose dense token is another
  int64_t n_rewritten = 0;  // rows of taken steps that dense ones replaced
  uint64_t sparse_ns = 0;   // sparse steps
  uint64_t dense_ns = 0;    // dense calls that replace no taken step's row
  uint64_t rewrite_ns = 0;  // dense calls that do
  int64_t n_steps() const { return n_taken + n_fallbacks + n_ahead + n_due; }
};

class GuardedStepper : public Stepper {
 public:
  // Both outlive it. The policy in force is the sparse one, and rows of the model's cache can be
  // removed (CheckRowsCanBeRemoved).
  GuardedStepper(Session& session, const Plugin& plugin, const GuardOptions& options);
  Result<Logits> Step(Token token) override;
  Status Reset() override;
  // Whether the last step's logits are dense.
  bool last_was_dense() const { return last_was_dense_; }
  const GuardCounts& counts() const { return counts_; }

 private:
  Status DropAhead();
  // Decodes `token` dense, with the tail; `guess` behind it, if it is one (-1: none).
  Result<Logits> StepDense(Token token, Token guess);

  Session& session_;
  const GuardOptions options_;
  SparseTail tail_;
  // The session's last row, of ahead_token_, which was not asked for yet; -1: there is none.
  int ahead_row_ = -1;
  Token ahead_token_ = 0;
  Logits ahead_;
  bool last_was_dense_ = false;
  GuardCounts counts_;
};

}  // namespace condense
