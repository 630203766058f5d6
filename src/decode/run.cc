#include "decode/run.h"

#include "base/clock.h"

namespace condense {
namespace {

StepFunction StepsOf(Session& session) {
  return [&session](Token token) { return session.Step(token); };
}

}  // namespace

Result<std::vector<Token>> GreedyRun(const StepFunction& step, Token first_token, int n_decisions,
                                     const OnDecision& on_decision) {
  std::vector<Token> tokens;
  Token token = first_token;
  for (int decision = 1; decision <= n_decisions; ++decision) {
    const Result<Logits> logits = step(token);
    if (!logits.ok()) return Error{logits.error()};
    token = GreedyToken(logits.value());
    tokens.push_back(token);
    if (on_decision) on_decision(decision, logits.value());
  }
  return tokens;
}

Result<std::vector<Token>> GreedyRun(Session& session, Token first_token, int n_decisions,
                                     const OnDecision& on_decision) {
  return GreedyRun(StepsOf(session), first_token, n_decisions, on_decision);
}

std::vector<Token> FedTokens(Token first_token, const std::vector<Token>& decided) {
  std::vector<Token> fed = {first_token};
  fed.insert(fed.end(), decided.begin(), decided.end() - 1);
  return fed;
}

Status TeacherForcedRun(Session& session, std::span<const Token> history,
                        const OnDecision& on_decision) {
  return TeacherForcedRun(StepsOf(session), history, on_decision);
}

Status TeacherForcedRun(const StepFunction& step, std::span<const Token> history,
                        const OnDecision& on_decision) {
  int decision = 0;
  for (Token token : history) {
    const Result<Logits> logits = step(token);
    if (!logits.ok()) return Error{logits.error()};
    on_decision(++decision, logits.value());
  }
  return Status();
}

Result<double> TimedSteps(Session& session, std::span<const Token> tokens, int n_warm_up,
                          int n_timed) {
  CONDENSE_CHECK(!tokens.empty());
  Clock::time_point start;
  for (int i = 0; i < n_warm_up + n_timed; ++i) {
    if (i == n_warm_up) start = Clock::now();
    const Result<Logits> logits = session.Step(tokens[i % tokens.size()]);
    if (!logits.ok()) return Error{logits.error()};
  }
  return SecondsSince(start);
}

}  // namespace condense
