// Draft sources of exact decoding: whoever proposes tokens that a dense verification then confirms
// or not (exact.h). What a source proposes decides how fast the decoding is and nothing of its
// text. Sources: `lookup`, the context's own continuation (lookup.h), and any policy, by sparse
// steps.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"

namespace condense {

// The plug-in's policy, changed only where it differs: a change drops what policies remember.
class PolicySwitch {
 public:
  explicit PolicySwitch(const Plugin& plugin) : plugin_(plugin) {}
  // Fails where the spec is none.
  Status Set(const std::string& spec);

 private:
  const Plugin& plugin_;
  std::string current_;  // as it was asked for; "": not known
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // As ReadDraft reads it.
  virtual std::string name() const = 0;
  // Takes steps of the model to propose; else its proposals are free.
  virtual bool takes_steps() const = 0;
  // Up to `n` tokens to follow `history`, the last of which is not in the session's cache yet, all
  // others being there; fewer or none where there is nothing to propose. Rows that it adds to the
  // cache, at most n, are left to the caller. Fails where a step does.
  virtual Result<std::vector<Token>> Propose(Session& session, std::span<const Token> history,
                                             int n) = 0;
};

// Sparse greedy steps of a policy. `policies` outlives it.
class PolicyDraft final : public DraftSource {
 public:
  PolicyDraft(PolicySwitch& policies, std::string spec)
      : policies_(policies), spec_(std::move(spec)) {}
  std::string name() const override { return spec_; }
  bool takes_steps() const override { return true; }
  Result<std::vector<Token>> Propose(Session& session, std::span<const Token> history,
                                     int n) override;

 private:
  PolicySwitch& policies_;
  const std::string spec_;
};

// What drafts, lookup first; one of them at least.
struct DraftText {
  bool looks_up = false;
  std::string policy;  // a spec or @FILE, not checked; "": none
};
// "lookup", a policy's spec (or @FILE), or "lookup+SPEC".
Result<DraftText> ReadDraft(const std::string& text);

// In the order in which they are asked. The policy is put in force when it first drafts.
std::vector<std::unique_ptr<DraftSource>> MakeDrafts(const DraftText& draft,
                                                     PolicySwitch& policies);

}  // namespace condense
