#include "app/exact_mode.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/output.h"
#include "base/clock.h"
#include "base/text.h"
#include "lab/cells.h"

namespace condense {
namespace {

Result<IdentityProbe> Probe(Session& session, std::span<const Token> tokens) {
  Progress progress;
  return ProbeIdentity(session, tokens, [&](int n_done, int n_total) {
    progress.Update("comparing several rows with single ones", n_done, n_total);
  });
}

std::string Percent(int64_t part, int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / whole);
}

}  // namespace

Result<ExactMode> ExactMode::Read(const RunFlags& flags, const std::string& asked) {
  ExactMode mode;
  const Result<int> length = ParseAutoOr(flags.draft_tokens, ExactOptions::kMostDrafted);
  if (!length.ok()) return Error{"--draft-tokens " + length.error()};
  mode.draft_tokens_ = length.value();
  mode.n_generate_ = flags.n_generate;
  if (!flags.draft.empty() && !flags.policy.empty()) {
    return Error{fmt::format(
        "--draft {} and --policy {} both say what drafts: give one of them, or --draft lookup+{}",
        flags.draft, flags.policy, flags.policy)};
  }
  mode.draft_ = flags.draft.empty() ? asked : flags.draft;
  if (mode.draft_.empty()) return mode;
  const Result<DraftText> sources = ReadDraft(mode.draft_);
  if (!sources.ok()) return Error{sources.error()};
  mode.sources_ = sources.value();
  return mode;
}

Status ExactMode::SetPolicyInForce(const std::string& in_force) {
  if (sources_.looks_up && sources_.policy.empty()) return Status();
  if (IsDense(in_force)) {
    return Error{fmt::format(
        "exact decoding drafts with a sparse policy, and {} reads everything: name one, or lookup, "
        "with --draft (`condense policies` lists them)",
        in_force)};
  }
  if (draft_.empty()) draft_ = sources_.policy = in_force;
  return Status();
}

int ExactMode::RowsWanted() const {
  return std::max(2, std::min(ExactOptions::RowsOf(sources_, draft_tokens_), n_generate_));
}

Status ExactMode::MakeIdentical(const std::string& path, const std::vector<Token>& prompt,
                                const Open& open, OpenModel& opened) {
  const int wanted = RowsWanted();
  const std::vector<Token> tokens = ProbeTokens(prompt, wanted);
  const Result<IdentityProbe> repacked = Probe(*opened.session, tokens);
  if (!repacked.ok()) return Error{repacked.error()};
  most_rows_ = repacked->equal_rows;
  if (most_rows_ >= wanted) return Status();
  OpenModel plain;
  opened.session.reset();
  Result<std::unique_ptr<Model>> model = Model::Load(path, false);
  if (!model.ok()) return Error{model.error()};
  plain.model = std::move(model.value());
  Result<std::unique_ptr<Session>> session = open(*plain.model);
  if (!session.ok()) return Error{session.error()};
  plain.session = std::move(session.value());
  const Result<IdentityProbe> as_stored = Probe(*plain.session, tokens);
  if (!as_stored.ok()) return Error{as_stored.error()};
  if (as_stored->equal_rows > most_rows_) {
    repacked_ = false;
    most_rows_ = as_stored->equal_rows;
    opened = std::move(plain);
    return Status();
  }
  plain.session.reset();
  Result<std::unique_ptr<Session>> again = open(*opened.model);
  if (!again.ok()) return Error{again.error()};
  opened.session = std::move(again.value());
  return Status();
}

Status ExactMode::Begin(Session& session, const Plugin& plugin, const std::vector<Token>& prompt) {
  const Clock::time_point start = Clock::now();
  const int room = session.n_context() - session.position();
  // Where no number of rows is identical, the drafts are as long as was asked for.
  const int rows = most_rows_ > 1 ? std::min(most_rows_, RowsWanted()) : RowsWanted();
  if (room > 0) {
    const Result<IdentityProbe> probe = Probe(session, ProbeTokens(prompt, std::min(rows, room)));
    if (!probe.ok()) return Error{probe.error()};
    probe_ = probe.value();
  }
  policies_ = std::make_unique<PolicySwitch>(plugin);
  Result<std::unique_ptr<ExactDecoder>> decoder =
      ExactDecoder::Make(session, plugin, MakeDrafts(sources_, *policies_),
                         ExactOptions::Of(probe_, rows, draft_tokens_));
  if (!decoder.ok()) return Error{decoder.error()};
  decoder_ = std::move(decoder.value());
  if (room > 0) {
    const Status calibrated = decoder_->Calibrate(probe_, prompt);
    if (!calibrated.ok()) return calibrated;
  }
  begin_seconds_ = 1e-9 * static_cast<double>(NsSince(start));
  return Status();
}

Status ExactMode::CheckAgainstDense(Session& session, const Plugin& plugin,
                                    std::vector<float> logits, const std::vector<Token>& text,
                                    const SamplerOptions& sampling,
                                    const std::function<void(int, int)>& progress) const {
  const Status back = session.Rewind();
  if (!back.ok()) return back;
  const Result<std::string> dense = plugin.SetPolicy("dense");
  if (!dense.ok()) return Error{dense.error()};
  Sampler sampler(sampling);
  Logits now = logits;
  for (size_t i = 0; i < text.size(); ++i) {
    const Token token = sampler.Choose(now);
    if (token != text[i]) {
      return Error{fmt::format("token {} is {}, and dense decoding gives {}", i + 1,
                               Quote(session.model().Piece(text[i], true)),
                               Quote(session.model().Piece(token, true)))};
    }
    if (i + 1 == text.size()) break;
    const Result<Logits> next = session.Step(token);
    if (!next.ok()) return Error{next.error()};
    now = next.value();
    if (progress) progress(static_cast<int>(i) + 1, static_cast<int>(text.size()));
  }
  return Status();
}

std::string ExactMode::Promise() const {
  const std::string weights = repacked_ ? "" : ", with weights as the file stores them";
  if (probe_.probed_rows < 2) return "exact: nothing to verify";
  if (probe_.equal_rows > 1) {
    std::string words = fmt::format(
        "exact: 2 to {} rows give the bits of single steps on this cache{}, so the text is dense "
        "decoding's",
        probe_.equal_rows, weights);
    if (probe_.equal_rows < RowsWanted())
      words += fmt::format(
          "; more do not: drafts of {} at most (GGML_CPU_TILED_MM=0 in the environment may allow "
          "more)",
          probe_.equal_rows - 1);
    return words;
  }
  return fmt::format(
      "warning: this model's matrix products round several rows otherwise than one (logits move by "
      "up to {:.2g}), with repacked weights and without. The text is the choice of dense passes "
      "over several rows: it may part from one-by-one dense decoding where two tokens are that "
      "near. GGML_CPU_TILED_MM=0 in the environment may restore equality",
      probe_.largest_difference);
}

bool ExactMode::ran_sparse() const {
  const std::vector<ExactCounters::Source>& sources = decoder_->counters().sources;
  return std::any_of(sources.begin(), sources.end(), [](const ExactCounters::Source& source) {
    return source.takes_steps && source.drafted > 0;
  });
}

std::string ExactMode::Words() const {
  const ExactCounters& n = decoder_->counters();
  std::string words = fmt::format(
      "exact: {} verifications, {:.2f} tokens each; {} drafted, {} accepted ({})",
      FormatCount(n.verifications),
      n.verifications > 0 ? static_cast<double>(n.accepted() + n.verifications) / n.verifications
                          : 0.0,
      FormatCount(n.drafted()), FormatCount(n.accepted()), Percent(n.accepted(), n.drafted()));
  if (n.sources.size() > 1) {
    for (const ExactCounters::Source& source : n.sources) {
      words += fmt::format(", {}: {} of {}", source.name, FormatCount(source.accepted),
                           FormatCount(source.drafted));
    }
  }
  words +=
      fmt::format("; drafts {:.2f} s, verification {:.2f} s", n.draft_seconds, n.verify_seconds);
  if (n.undrafted > 0) {
    words += fmt::format("; {} tokens without a draft, {:.2f} s", FormatCount(n.undrafted),
                         n.dense_seconds);
  }
  for (const ExactCounters::Source& source : n.sources) {
    if (source.rests == 0) continue;
    words += fmt::format("; drafting by {} did not pay and was turned off{}", source.name,
                         source.rests > 1 ? fmt::format(" {} times", source.rests) : "");
  }
  if (probe_.equal_rows == 1 && probe_.probed_rows > 1)
    words += fmt::format("; {} near ties", FormatCount(n.near_ties));
  return words;
}

}  // namespace condense
