// Exact decoding: draft sources propose k tokens (draft.h), the drafted rows are removed from the
// cache, one dense call of k + 1 rows verifies them and writes their K and V anew, and the longest
// prefix that agrees is kept, with the dense token behind it. The text is that of dense decoding,
// token for token: the tokens come from dense logits, asked for in dense decoding's order, so one
// sampler with one random stream serves at any temperature. Self-speculation with sparse attention,
// as in MagicDec (arXiv 2408.11049), TriForce (2404.11912) and SparseSpec; here nothing is accepted
// by probability, only where it is equal.
//
// It rests on the host computing k + 1 rows to the bits of single steps: identity.h. A policy that
// drafts stays in force, with what it remembers: verification is dense in spite of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "decode/draft.h"
#include "decode/draft_length.h"
#include "decode/identity.h"
#include "decode/session.h"

namespace condense {

struct ExactOptions {
  static constexpr int kMostDrafted = 16;
  // Rows of a call that verifies the longest draft of `draft_tokens`, as below: where the length is
  // chosen, long ones pay where they are free.
  static int RowsOf(const DraftText& draft, int draft_tokens);
  // As a probe allows. `n_rows`: what a call is to verify where no number of several rows is
  // identical to single ones; near ties are counted then.
  static ExactOptions Of(const IdentityProbe& probe, int n_rows, int draft_tokens);

  int draft_tokens = 0;              // 1 .. kMostDrafted; 0: chosen by cost and acceptance
  int most_rows = kMostDrafted + 1;  // rows a call may verify, at least 2
  // Dense top-1 minus top-2 logit below which a token is counted as a near tie; 0: none is looked
  // at.
  float tie_margin = 0;
};

struct ExactCounters {
  struct Source {
    std::string name;
    bool takes_steps = false;
    int64_t drafted = 0, accepted = 0, verifications = 0;
    int64_t rests = 0;  // times that drafting did not pay and was left off for a while
  };
  std::vector<Source> sources;
  // Tokens handed out; those of them that a dense call of one row gave; near ties among them.
  int64_t tokens = 0, undrafted = 0, near_ties = 0;
  int64_t verifications = 0, verified_rows = 0;
  double draft_seconds = 0, verify_seconds = 0, dense_seconds = 0;  // steps, wall time

  int64_t drafted() const;
  int64_t accepted() const;
};

// The token of logits; asked once a token, in order.
using ChooseToken = std::function<Token(Logits logits)>;
// A token of the text; false: the text ends with it.
using OnToken = std::function<bool(Token token)>;

class ExactDecoder {
 public:
  // Session, plug-in and what the sources need outlive it. Fails where options and session do not
  // fit, and where the rows of drafts cannot be removed from the model's cache.
  static Result<std::unique_ptr<ExactDecoder>> Make(
      Session& session, const Plugin& plugin, std::vector<std::unique_ptr<DraftSource>> sources,
      const ExactOptions& options);

  // What a probe measured, for the choice of lengths; and what sparse steps cost, from two of each
  // source behind the cache's rows, which are removed. What a policy sets up at its first step is
  // set up then. The context must have room for two rows.
  Status Calibrate(const IdentityProbe& probe, std::span<const Token> history);

  // Goes on from `history`, whose tokens are all in the session's cache, and from `logits`, dense
  // ones, after its last: up to n_tokens, each appended to `history` and given to `on_token`. At
  // the end, also after a failure or a stop in the middle of a verification, the cache holds all of
  // `history` but the last token that was given out: as dense decoding leaves it. Fails where a
  // step does; tokens given out before stand.
  Status Run(std::vector<Token>& history, Logits logits, int n_tokens, const ChooseToken& choose,
             const OnToken& on_token);

  const ExactCounters& counters() const { return counters_; }

 private:
  // What a round feeds: the newest token and what follows it by a source.
  struct Round {
    int source = -1;            // -1: no draft
    std::vector<Token> tokens;  // the newest, then the draft
    double draft_seconds = 0;
  };

  ExactDecoder(Session& session, const Plugin& plugin,
               std::vector<std::unique_ptr<DraftSource>> sources, const ExactOptions& options);
  Result<Round> Propose(std::span<const Token> history, int most);
  Result<std::vector<Logits>> Verify(const Round& round, double* seconds);
  Token Choose(Logits logits, const ChooseToken& choose);
  void Count(const Round& round, int n_accepted, double verify_seconds);

  Session& session_;
  const Plugin& plugin_;
  const std::vector<std::unique_ptr<DraftSource>> sources_;
  const ExactOptions options_;
  std::vector<DraftLength> lengths_;  // by source
  RowCosts costs_;
  ExactCounters counters_;
};

}  // namespace condense
