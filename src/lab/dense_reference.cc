#include "lab/dense_reference.h"

#include "base/clock.h"
#include "base/top_two.h"
#include "lab/runs.h"

namespace condense {
namespace {

Status CheckKeptTokens(GroupRun& run, const std::string& dense_cell,
                       const std::vector<Token>& tokens) {
  const FinishedCell* dense = run.Kept(dense_cell);
  if (dense == nullptr) return Status();
  for (const Json& line : dense->lines) {
    if (line["record"] != "prompt" || line["dense_tokens"] == Json(tokens)) continue;
    return Error{
        "dense attention gives other tokens than this folder's records say: decoding is not "
        "repeatable between that run and this one; begin anew with another --out"};
  }
  return Status();
}

}  // namespace

Result<DenseReference> DecodeReference(GroupRun& run, Session& session, const LabPrefix& prefix,
                                       const ReferenceSpec& spec) {
  const Plugin& plugin = run.plugin();
  const Result<DensePrefillResult> prefill = DensePrefill(
      session, plugin, prefix.prompt, spec.policies,
      [&](int n_done, int n_total) { run.Preparing("dense prefill", n_done, n_total); });
  if (!prefill.ok()) return Error{prefill.error()};
  run.Spent("prefill", prefill->seconds);
  if (plugin.Counters().process.nodes == 0)
    return Error{"the plug-in saw no attention of this model: there is nothing to measure"};
  DenseReference reference;
  reference.logits.assign(prefill->logits.begin(), prefill->logits.end());
  reference.tokens = {GreedyToken(prefill->logits)};
  const Status begun = BeginRun(session, plugin, "dense");
  if (!begun.ok()) return Error{begun.error()};
  const Model& model = session.model();
  while (static_cast<int>(reference.tokens.size()) < spec.n_tokens &&
         !(spec.to_end && model.IsEndOfGeneration(reference.tokens.back()))) {
    const Result<Logits> logits = session.Step(reference.tokens.back());
    if (!logits.ok()) return Error{logits.error()};
    const TopTwo top = FindTopTwo(logits.value());
    reference.tokens.push_back(top.token);
    reference.margins.push_back(top.margin);
    if (spec.keep_logits) {
      reference.decision_logits.insert(reference.decision_logits.end(), logits->begin(),
                                       logits->end());
    }
    run.Preparing("dense continuation", static_cast<int64_t>(reference.tokens.size()),
                  spec.n_tokens);
  }
  PromptRecord& prompt = reference.prompt;
  prompt.n_prompt = static_cast<int>(prefix.prompt.size());
  prompt.prefill_seconds = prefill->seconds;
  prompt.dense_tokens = reference.tokens;
  prompt.dense_text = model.Pieces(reference.tokens);
  prompt.first_token = reference.first();
  prompt.first_token_text = model.Pieces({reference.first()})[0];
  const Status same = CheckKeptTokens(run, spec.dense_cell, reference.tokens);
  if (!same.ok()) return Error{same.error()};
  return reference;
}

Result<double> TimedGreedy(const StepFunction& step, Token first_token, int n_decisions) {
  CONDENSE_CHECK(n_decisions >= 2);
  Clock::time_point start;
  const Result<std::vector<Token>> tokens =
      GreedyRun(step, first_token, n_decisions, [&](int decision, Logits) {
        if (decision == 1) start = Clock::now();
      });
  if (!tokens.ok()) return Error{tokens.error()};
  return SecondsSince(start);
}

}  // namespace condense
