// `condense run --mode guard` and `--mode refresh`: what must be right before work begins, the
// steps, and what the closing line says of them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/arguments.h"
#include "base/result.h"
#include "decode/guard.h"
#include "decode/model.h"
#include "decode/model_file.h"
#include "decode/plugin.h"
#include "decode/refresh.h"
#include "decode/session.h"
#include "lab/guard_file.h"

namespace condense {

class SteppedMode {
 public:
  // Null where `flags`.mode is neither guard nor refresh. Reads the calibration file of guard.
  // Errors: flags that do not go with the mode, too.
  static Result<std::optional<SteppedMode>> Read(const RunFlags& flags);

  // What is decoded with where nobody asked for a policy; "": the default.
  const std::string& policy() const { return policy_; }

  // Whether the calibration holds for this model, policy and length, and whether the mode can run.
  Status Check(const ModelFile& file, const Model& model, const std::string& policy,
               int64_t n_prompt) const;

  // From the end of the session's prefill on. Both outlive the steps.
  void Begin(Session& session, const Plugin& plugin);
  Result<Logits> Step(Token token) { return stepper().Step(token); }

  // Whether a step was sparse: none is at --every 1.
  bool ran_sparse() const { return guard_ || refresh_->counts().n_sparse > 0; }

  // What was done and what is promised, for the closing line.
  std::string Words() const;

 private:
  explicit SteppedMode(const RunFlags& flags) : flags_(flags) {}
  Stepper& stepper();

  const RunFlags& flags_;
  std::string policy_;
  int every_ = 0;
  std::optional<GuardCalibration> calibration_;
  std::unique_ptr<GuardedStepper> guard_;
  std::unique_ptr<RefreshedStepper> refresh_;
};

}  // namespace condense
