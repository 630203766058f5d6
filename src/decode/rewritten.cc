#include "decode/rewritten.h"

namespace condense {

Result<Logits> RewrittenSteps::Step(Token token) {
  const int position = session_.position();
  const Result<Logits> logits = session_.Step(token);
  if (!logits.ok()) return logits;
  // The session's own are overwritten by the next call.
  logits_.assign(logits->begin(), logits->end());
  Status status = session_.CutBack(position);
  if (!status.ok()) return Error{status.error()};
  const Token twice[] = {token, token};
  const Result<std::vector<Logits>> rows = session_.StepRows(twice);
  if (!rows.ok()) return Error{rows.error()};
  status = session_.CutBack(position + 1);
  if (!status.ok()) return Error{status.error()};
  return Logits(logits_);
}

}  // namespace condense
