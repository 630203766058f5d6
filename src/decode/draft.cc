#include "decode/draft.h"

#include "base/text.h"
#include "decode/lookup.h"

namespace condense {
Status PolicySwitch::Set(const std::string& spec) {
  if (spec == current_) return Status();
  const Result<std::string> set = plugin_.SetPolicy(spec);
  if (!set.ok()) return Error{set.error()};
  current_ = spec;
  return Status();
}

Result<std::vector<Token>> PolicyDraft::Propose(Session& session, std::span<const Token> history,
                                                int n) {
  const Status set = policies_.Set(spec_);
  if (!set.ok()) return Error{set.error()};
  std::vector<Token> tokens;
  Token token = history.back();
  while (static_cast<int>(tokens.size()) < n) {
    const Result<Logits> logits = session.Step(token);
    if (!logits.ok()) return Error{logits.error()};
    token = GreedyToken(logits.value());
    tokens.push_back(token);
    if (session.model().IsEndOfGeneration(token)) break;
  }
  return tokens;
}

Result<DraftText> ReadDraft(const std::string& text) {
  const std::string lookup_and = "lookup+";
  if (text == "lookup") return DraftText{true, ""};
  DraftText draft{text.starts_with(lookup_and), text};
  if (draft.looks_up) draft.policy.erase(0, lookup_and.size());
  if (!draft.policy.empty()) return draft;
  return Error{"draft " + Quote(text) +
               " names no policy: write lookup, a policy, or lookup+POLICY as in "
               "lookup+condense:budget=8%"};
}

std::vector<std::unique_ptr<DraftSource>> MakeDrafts(const DraftText& draft,
                                                     PolicySwitch& policies) {
  std::vector<std::unique_ptr<DraftSource>> sources;
  if (draft.looks_up) sources.push_back(std::make_unique<LookupDraft>());
  if (!draft.policy.empty())
    sources.push_back(std::make_unique<PolicyDraft>(policies, draft.policy));
  return sources;
}

}  // namespace condense
