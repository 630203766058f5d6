// `condense run --mode exact`: what must be right before work begins, a model and session that
// compute several rows to the bits of single ones, the decoding, its check against dense decoding,
// and what the closing line says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/arguments.h"
#include "base/result.h"
#include "decode/exact.h"
#include "decode/model.h"
#include "decode/plugin.h"
#include "decode/sampler.h"
#include "decode/session.h"

namespace condense {

// A model and the session that decodes it. The session goes first.
struct OpenModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Session> session;
};

class ExactMode {
 public:
  // Of `flags`, mode exact. `asked`: the policy asked for, "": the default. Errors: flags that do
  // not go together, a draft that is none.
  static Result<ExactMode> Read(const RunFlags& flags, const std::string& asked);

  // The policy that drafts, "" for `lookup` alone. `in_force`: the plug-in's, where none was named.
  const std::string& policy() const { return sources_.policy; }
  Status SetPolicyInForce(const std::string& in_force);
  const std::string& draft() const { return draft_; }

  // Probes the model on an empty cache. Where several rows differ from single ones, the model is
  // loaded again without repacked weights, if that helps. `open` makes a session of a model.
  using Open = std::function<Result<std::unique_ptr<Session>>(const Model& model)>;
  Status MakeIdentical(const std::string& path, const std::vector<Token>& prompt, const Open& open,
                       OpenModel& opened);

  // After the prefill of `prompt`, with dense in force: probes the cache at hand, sets the policy
  // up. The session and the plug-in outlive this.
  Status Begin(Session& session, const Plugin& plugin, const std::vector<Token>& prompt);
  double begin_seconds() const { return begin_seconds_; }

  // ExactDecoder::Run.
  Status Run(std::vector<Token>& history, Logits logits, const ChooseToken& choose,
             const OnToken& on_token) {
    return decoder_->Run(history, logits, n_generate_, choose, on_token);
  }

  // Decodes dense from the end of the prefill, `logits` after it, and compares `text`, the tokens
  // given out. The error names the first that differs. `progress`: n_done, n_total.
  Status CheckAgainstDense(Session& session, const Plugin& plugin, std::vector<float> logits,
                           const std::vector<Token>& text, const SamplerOptions& sampling,
                           const std::function<void(int, int)>& progress) const;

  // What identity rests on, in words: after Begin.
  std::string Promise() const;
  // What was drafted, accepted and verified, and where the time went.
  std::string Words() const;
  // Whether a policy drafted: none does where lookups alone serve, or where it does not pay.
  bool ran_sparse() const;

 private:
  ExactMode() = default;
  int RowsWanted() const;

  std::string draft_;  // as it was spelled; "": the policy in force
  DraftText sources_;
  int draft_tokens_ = 0;  // 0: auto
  int n_generate_ = 0;
  bool repacked_ = true;
  int most_rows_ = 0;
  double begin_seconds_ = 0;
  IdentityProbe probe_;  // on the cache at hand
  std::unique_ptr<PolicySwitch> policies_;
  std::unique_ptr<ExactDecoder> decoder_;
};

}  // namespace condense
