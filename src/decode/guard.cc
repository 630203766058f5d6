#include "decode/guard.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/top_two.h"

namespace condense {

GuardedStepper::GuardedStepper(Session& session, const Plugin& plugin, const GuardOptions& options)
    : session_(session), options_(options), tail_(session, plugin) {
  CONDENSE_CHECK(options.threshold >= 0 && options.rewrite_rows >= 1);
}

Status GuardedStepper::DropAhead() {
  const int row = std::exchange(ahead_row_, -1);
  // The session's owner may have removed it with others.
  if (row < 0 || session_.position() <= row) return Status();
  return session_.CutBack(row);
}

Status GuardedStepper::Reset() {
  tail_.Clear();
  return DropAhead();
}

Result<Logits> GuardedStepper::StepDense(Token token, Token guess) {
  const int n_replaced = tail_.n_rows();
  const std::array<Token, 2> more = {token, guess};
  const bool takes_along = guess >= 0 && n_replaced + 2 <= session_.n_batch() &&
                           session_.position() + 2 <= session_.n_context();
  const Clock::time_point start = Clock::now();
  const Result<std::vector<Logits>> rows =
      tail_.StepDense(std::span(more).first(takes_along ? 2 : 1));
  (n_replaced > 0 ? counts_.rewrite_ns : counts_.dense_ns) += NsSince(start);
  if (!rows.ok()) return Error{rows.error()};
  counts_.n_rewritten += n_replaced;
  last_was_dense_ = true;
  if (takes_along) {
    ahead_row_ = session_.position() - 1;
    ahead_token_ = guess;
    ahead_ = rows.value()[1];
    if (GreedyToken(rows.value()[0]) != guess) {
      const Status dropped = DropAhead();
      if (!dropped.ok()) return Error{dropped.error()};
    }
  }
  return rows.value()[0];
}

Result<Logits> GuardedStepper::Step(Token token) {
  if (ahead_row_ >= 0 && token == ahead_token_) {
    ahead_row_ = -1;
    ++counts_.n_ahead;
    last_was_dense_ = true;
    return ahead_;
  }
  const Status dropped = DropAhead();
  if (!dropped.ok()) return Error{dropped.error()};
  if (tail_.owed() || (options_.rewrite && tail_.n_rows() + 1 >= options_.rewrite_rows)) {
    Result<Logits> logits = StepDense(token, -1);
    counts_.n_due += logits.ok();
    return logits;
  }
  const Clock::time_point start = Clock::now();
  Result<Logits> logits = tail_.StepSparse(token);
  counts_.sparse_ns += NsSince(start);
  if (!logits.ok()) return logits;
  const TopTwo sparse = FindTopTwo(logits.value());
  last_was_dense_ = false;
  if (sparse.margin >= options_.threshold) {
    if (!options_.rewrite) tail_.Clear();
    ++counts_.n_taken;
    return logits;
  }
  const Status removed = tail_.RemoveLast();
  if (!removed.ok()) return Error{removed.error()};
  logits = StepDense(token, options_.look_ahead ? sparse.token : -1);
  if (!logits.ok()) return logits;
  ++counts_.n_fallbacks;
  counts_.n_changed += GreedyToken(logits.value()) != sparse.token;
  return logits;
}

}  // namespace condense
