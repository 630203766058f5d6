#include "app/stepped_mode.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/text.h"
#include "lab/cells.h"

namespace condense {
namespace {

double PercentOf(int64_t n, int64_t total) {
  return total == 0 ? 0 : 100.0 * static_cast<double>(n) / static_cast<double>(total);
}

Result<GuardCalibration> ReadGuard(const RunFlags& flags) {
  if (flags.temperature != 0) {
    return Error{fmt::format(
        "--mode guard takes the likeliest token where it is likely to be dense's, and promises "
        "nothing of tokens drawn at --temp {}: leave --temp out",
        flags.temperature)};
  }
  if (flags.calibration.empty()) {
    return Error{
        "--mode guard needs a threshold and what it was certified on: make the file with `condense "
        "calibrate -m MODEL -f TEXT --policy SPEC --risk 1%`, and name it with --calibration FILE"};
  }
  Result<GuardCalibration> calibration = ReadCalibration(flags.calibration);
  if (!calibration.ok() || flags.risk.empty()) return calibration;
  const Result<double> risk = ParsePercent(flags.risk);
  if (!risk.ok() || risk.value() <= 0 || risk.value() >= 100)
    return Error{fmt::format("--risk {} is none: write a share such as 1%", Quote(flags.risk))};
  if (calibration->risk > risk.value() / 100 * (1 + 1e-9)) {
    return Error{fmt::format(
        "calibration file '{}' is certified for a risk of {:g} %, more than --risk {}: leave "
        "--risk out, or calibrate with --risk {}",
        flags.calibration, 100 * calibration->risk, flags.risk, flags.risk)};
  }
  return calibration;
}

}  // namespace

Result<std::optional<SteppedMode>> SteppedMode::Read(const RunFlags& flags) {
  const bool is_guard = flags.mode == "guard", is_refresh = flags.mode == "refresh";
  if (!is_guard && (!flags.calibration.empty() || !flags.risk.empty() || flags.rewrite != "off"))
    return Error{"--calibration, --risk and --rewrite go with --mode guard"};
  if (!is_refresh && flags.every != "auto") return Error{"--every goes with --mode refresh"};
  if (!is_guard && !is_refresh) return std::optional<SteppedMode>();
  SteppedMode mode(flags);
  if (is_refresh) {
    // The rows of one call of the host are the most that it can rewrite.
    const Result<int> every = ParseAutoOr(flags.every, SessionOptions().n_batch);
    if (!every.ok()) return Error{"--every " + every.error()};
    mode.every_ = every.value();
  } else {
    Result<GuardCalibration> calibration = ReadGuard(flags);
    if (!calibration.ok()) return Error{calibration.error()};
    mode.policy_ = calibration->setting.policy;
    mode.calibration_ = std::move(calibration.value());
  }
  return std::optional<SteppedMode>(std::move(mode));
}

Status SteppedMode::Check(const ModelFile& file, const Model& model, const std::string& policy,
                          int64_t n_prompt) const {
  const Status removable = CheckRowsCanBeRemoved(model);
  if (!removable.ok()) return removable;
  if (IsDense(policy)) {
    return Error{
        fmt::format("--mode {} is about sparse steps, and policy {} has none: name "
                    "another with --policy",
                    flags_.mode, policy)};
  }
  if (!calibration_) return Status();
  const Result<std::string> sha256 = file.Sha256();
  if (!sha256.ok()) return Error{sha256.error()};
  GuardSetting use;
  use.model = file.FileName();
  use.model_sha256 = sha256.value();
  use.policy = policy;
  use.k_type = flags_.decode.k_type;
  use.v_type = flags_.decode.v_type;
  use.rewrite = flags_.rewrite == "on";
  use.from = static_cast<int>(n_prompt);
  use.to = static_cast<int>(n_prompt) + flags_.n_generate;
  return CheckSetting(*calibration_, use, flags_.calibration);
}

void SteppedMode::Begin(Session& session, const Plugin& plugin) {
  if (!calibration_) {
    refresh_ = std::make_unique<RefreshedStepper>(session, plugin, RefreshOptions{every_});
    return;
  }
  GuardOptions options;
  options.threshold = calibration_->threshold;
  options.rewrite = flags_.rewrite == "on";
  guard_ = std::make_unique<GuardedStepper>(session, plugin, options);
}

Stepper& SteppedMode::stepper() {
  CONDENSE_CHECK(guard_ || refresh_);
  if (guard_) return *guard_;
  return *refresh_;
}

std::string SteppedMode::Words() const {
  if (refresh_) {
    const RefreshCounts& n = refresh_->counts();
    return fmt::format(
        "refresh: every {}{}, {} sparse steps in {:.2f} s, {} dense calls in {:.2f} s that rewrote "
        "{} rows",
        n.every, every_ == 0 ? " (auto)" : "", n.n_sparse, Seconds(n.sparse_ns), n.n_calls,
        Seconds(n.dense_ns), n.n_rewritten);
  }
  const GuardCounts& n = guard_->counts();
  std::string words = fmt::format(
      "guard: of {} steps {:.1f} % redone dense ({} changed the token), {:.1f} % done by those "
      "calls in advance; sparse {:.2f} s, dense {:.2f} s",
      n.n_steps(), PercentOf(n.n_fallbacks, n.n_steps()), n.n_changed,
      PercentOf(n.n_ahead, n.n_steps()), Seconds(n.sparse_ns), Seconds(n.dense_ns));
  if (flags_.rewrite == "on") {
    words += fmt::format(", rewriting {} rows {:.2f} s", n.n_rewritten, Seconds(n.rewrite_ns));
  }
  std::string teachers;
  for (const GuardTally& tally : calibration_->certified)
    teachers += (teachers.empty() ? "" : " and ") + tally.teacher;
  return words + fmt::format(
                     "; a token is not dense's in at most {:.2f} % of decisions, with confidence "
                     "{:g} %, on {} histories of texts like those of '{}'",
                     100 * calibration_->bound(), 100 * calibration_->confidence, teachers,
                     flags_.calibration);
}

}  // namespace condense
