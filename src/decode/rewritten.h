// Steps whose rows do not stay as they were decoded: once a step has given its logits its row is
// removed and its token decoded again dense, so that no later step reads what a sparse one wrote.
// What then parts a run from dense is each step's own error, none that it inherits. A measurement,
// no way to decode faster: every step costs a dense one beside.
#pragma once

#include <vector>

#include "base/result.h"
#include "decode/session.h"

namespace condense {

class RewrittenSteps {
 public:
  // The session outlives it.
  explicit RewrittenSteps(Session& session) : session_(session) {}

  // As Session::Step, under the policy in force. Two rows are decoded where one is left, so that
  // they are dense whatever the policy: the cache needs room for one row more. Fails also where the
  // model's rows cannot be removed.
  Result<Logits> Step(Token token);

 private:
  Session& session_;
  std::vector<float> logits_;
};

}  // namespace condense
