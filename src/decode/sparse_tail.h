// The newest rows of a session as far as sparse steps wrote them, and their replacement: the rows
// are removed and their tokens decoded dense, in one call of the host. Wherever the host's matmuls
// do not depend on the number of rows (docs/GUARD.md), the new rows have the bits that dense
// one-token steps would have given them on the same cache.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"

namespace condense {

class SparseTail {
 public:
  // Both outlive it. The policy in force is the sparse one.
  SparseTail(Session& session, const Plugin& plugin) : session_(session), plugin_(plugin) {}

  // One sparse step; its row joins the tail.
  Result<Logits> StepSparse(Token token);
  // Replaces the tail's rows and appends `more` (at least one token), all dense; gives the logits
  // after each of `more`. The tail is empty then; after a failure its rows are `owed`.
  Result<std::vector<Logits>> StepDense(std::span<const Token> more);
  // Removes the session's last row and, where it is the tail's, its token.
  Status RemoveLast();

  int n_rows() const { return static_cast<int>(tokens_.size()); }
  // The tail's rows are missing, since their replacement failed: the next step must be StepDense.
  bool owed() const { return owed_; }
  // Its rows stay as they are, for good.
  void Clear();

 private:
  Session& session_;
  const Plugin& plugin_;
  std::vector<Token> tokens_;
  bool owed_ = false;
};

}  // namespace condense
