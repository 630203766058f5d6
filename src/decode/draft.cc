#include "decode/draft.h"

#include "base/text.h"
#include "decode/lookup.h"

namespace condense {
namespace {

constexpr const char* kLookup = "lookup";
constexpr const char* kLookupAnd = "lookup+";

}  // namespace

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

std::string PolicyOfDraft(const std::string& text) {
  if (text == kLookup) return "";
  return text.starts_with(kLookupAnd) ? text.substr(std::string(kLookupAnd).size()) : text;
}

Result<std::vector<std::unique_ptr<DraftSource>>> ParseDraft(const std::string& text,
                                                             PolicySwitch& policies) {
  const std::string policy = PolicyOfDraft(text);
  const bool looks_up = text == kLookup || text.starts_with(kLookupAnd);
  if (policy.empty() && text != kLookup) {
    return Error{"draft " + Quote(text) +
                 " names no policy: write lookup, a policy, or lookup+POLICY as in "
                 "lookup+condense:budget=8%"};
  }
  std::vector<std::unique_ptr<DraftSource>> sources;
  if (looks_up) sources.push_back(std::make_unique<LookupDraft>());
  if (!policy.empty()) sources.push_back(std::make_unique<PolicyDraft>(policies, policy));
  return sources;
}

}  // namespace condense
