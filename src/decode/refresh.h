// Refreshed decoding, after Rectified Sparse Attention (arXiv 2506.04108): sparse steps, and every
// R-th step is a dense call of R rows that decides its token and rewrites K and V of the R - 1
// sparse steps before it. So no sparse row outlives R steps: what is left of the error is each
// sparse step's own, over a cache that is dense but for the last rows. No token is taken back.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/sparse_tail.h"
#include "decode/stepper.h"

namespace condense {

struct RefreshOptions {
  // R: 1 is dense decoding. 0: chosen from measured costs, see ChooseRefresh.
  int every = 0;
};

// The most rows that are left sparse where R is chosen: within every policy's default window, so
// that rewriting drops no summary of a distant block.
inline constexpr int kMaxRefresh = 32;

// Seconds of a sparse step, and of a dense call of n rows as call + n * row.
struct StepCosts {
  double sparse = 0, call = 0, row = 0;
  // Of one token where every R-th step refreshes.
  double PerToken(int every) const;
};
// The least R whose tokens cost at most a tenth more than those of the cheapest R up to
// kMaxRefresh: the costs fall with R and level off, while drift grows.
int ChooseRefresh(const StepCosts& costs);

struct RefreshCounts {
  int64_t n_sparse = 0, n_calls = 0;  // steps of either kind
  int64_t n_rewritten = 0;            // rows of sparse steps that dense ones replaced
  uint64_t sparse_ns = 0, dense_ns = 0;
  int every = 0;  // R in force
  int64_t n_steps() const { return n_sparse + n_calls; }
};

class RefreshedStepper : public Stepper {
 public:
  // As GuardedStepper. `every` is at most the session's n_batch.
  RefreshedStepper(Session& session, const Plugin& plugin, const RefreshOptions& options);
  Result<Logits> Step(Token token) override;
  Status Reset() override;
  const RefreshCounts& counts() const { return counts_; }

 private:
  // A dense call that is counted already.
  void NoteCall(int n_rows, double seconds);

  const bool automatic_;
  SparseTail tail_;
  RefreshCounts counts_;
  double sparse_seconds_ = 0;  // of the steps behind those that set summaries up
  // Sums over dense calls, beside those of counts_, for a line through (rows, seconds).
  double seconds_ = 0, rows_rows_ = 0, rows_seconds_ = 0;
};

}  // namespace condense
