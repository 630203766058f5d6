#include "decode/exact.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/top_two.h"
#include "decode/dense_rows.h"

namespace condense {
namespace {

constexpr int kAutoRows = 9;
constexpr float kTieFactor = 2;  // each of two logits may move by the largest difference seen

}  // namespace

int ExactOptions::RowsOf(const DraftText& draft, int draft_tokens) {
  if (draft_tokens > 0) return draft_tokens + 1;
  return draft.looks_up ? kMostDrafted + 1 : kAutoRows;
}

ExactOptions ExactOptions::Of(const IdentityProbe& probe, int n_rows, int draft_tokens) {
  ExactOptions options;
  options.draft_tokens = draft_tokens;
  options.most_rows = std::max(2, probe.equal_rows > 1 ? probe.equal_rows : n_rows);
  if (probe.equal_rows == 1 && probe.probed_rows > 1)
    options.tie_margin = kTieFactor * probe.largest_difference;
  return options;
}

int64_t ExactCounters::drafted() const {
  int64_t n = 0;
  for (const Source& source : sources) n += source.drafted;
  return n;
}

int64_t ExactCounters::accepted() const {
  int64_t n = 0;
  for (const Source& source : sources) n += source.accepted;
  return n;
}

Result<std::unique_ptr<ExactDecoder>> ExactDecoder::Make(
    Session& session, const Plugin& plugin, std::vector<std::unique_ptr<DraftSource>> sources,
    const ExactOptions& options) {
  CONDENSE_CHECK(!sources.empty() && options.most_rows >= 2);
  const Status can = CheckRowsCanBeRemoved(session.model());
  if (!can.ok()) return Error{can.error()};
  if (options.draft_tokens < 0 || options.draft_tokens > ExactOptions::kMostDrafted) {
    return Error{fmt::format("a draft of {} tokens is none of 1 to {}", options.draft_tokens,
                             ExactOptions::kMostDrafted)};
  }
  if (options.draft_tokens + 1 > session.n_batch() || session.n_batch() < 2) {
    return Error{fmt::format(
        "a draft of {} tokens takes a call of {} rows to verify, and a batch of this session holds "
        "{}: draft fewer tokens",
        std::max(1, options.draft_tokens), std::max(1, options.draft_tokens) + 1,
        session.n_batch())};
  }
  return std::unique_ptr<ExactDecoder>(
      new ExactDecoder(session, plugin, std::move(sources), options));
}

ExactDecoder::ExactDecoder(Session& session, const Plugin& plugin,
                           std::vector<std::unique_ptr<DraftSource>> sources,
                           const ExactOptions& options)
    : session_(session), plugin_(plugin), sources_(std::move(sources)), options_(options) {
  const int most =
      std::min({ExactOptions::kMostDrafted, options.most_rows - 1, session.n_batch() - 1});
  for (const std::unique_ptr<DraftSource>& source : sources_) {
    lengths_.emplace_back(options.draft_tokens, most);
    counters_.sources.push_back({.name = source->name(), .takes_steps = source->takes_steps()});
  }
}

Status ExactDecoder::Calibrate(const IdentityProbe& probe, std::span<const Token> history) {
  for (size_t i = 0; i < probe.seconds.size(); ++i)
    costs_.Note(static_cast<int>(i) + 1, probe.seconds[i]);
  const int begin = session_.position();
  for (size_t i = 0; i < sources_.size(); ++i) {
    // The first step sets up, the second costs what later ones do.
    for (int step = 0; step < 2 && sources_[i]->takes_steps(); ++step) {
      const Clock::time_point start = Clock::now();
      const Result<std::vector<Token>> draft = sources_[i]->Propose(session_, history, 1);
      if (step == 1) lengths_[i].NoteDraft(1, SecondsSince(start));
      const Status cut = session_.CutBack(begin);
      if (!draft.ok()) return Error{draft.error()};
      if (!cut.ok()) return cut;
    }
  }
  return Status();
}

Result<ExactDecoder::Round> ExactDecoder::Propose(std::span<const Token> history, int most) {
  Round round;
  round.tokens = {history.back()};
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int n = std::min(lengths_[i].Next(costs_), most);
    if (n <= 0) continue;
    const Clock::time_point start = Clock::now();
    const Result<std::vector<Token>> draft = sources_[i]->Propose(session_, history, n);
    if (!draft.ok()) return Error{draft.error()};
    if (draft->empty()) continue;
    round.source = static_cast<int>(i);
    round.draft_seconds = SecondsSince(start);
    round.tokens.insert(round.tokens.end(), draft->begin(), draft->end());
    break;
  }
  return round;
}

Result<std::vector<Logits>> ExactDecoder::Verify(const Round& round, double* seconds) {
  const Clock::time_point start = Clock::now();
  Result<std::vector<Logits>> rows = StepRowsDense(session_, plugin_, round.tokens);
  *seconds = SecondsSince(start);
  return rows;
}

Token ExactDecoder::Choose(Logits logits, const ChooseToken& choose) {
  if (options_.tie_margin > 0)
    counters_.near_ties += FindTopTwo(logits).margin < options_.tie_margin;
  ++counters_.tokens;
  return choose(logits);
}

void ExactDecoder::Count(const Round& round, int n_accepted, double verify_seconds) {
  const auto n_rows = static_cast<int>(round.tokens.size()), n_drafted = n_rows - 1;
  costs_.Note(n_rows, verify_seconds);
  if (round.source < 0) {
    ++counters_.undrafted;
    counters_.dense_seconds += verify_seconds;
    for (DraftLength& length : lengths_) length.NoteUndrafted(costs_);
    return;
  }
  ExactCounters::Source& source = counters_.sources[round.source];
  DraftLength& length = lengths_[round.source];
  length.NoteDraft(n_drafted, round.draft_seconds);
  length.NoteVerified(n_drafted, n_accepted, round.draft_seconds + verify_seconds, costs_);
  for (size_t i = 0; i < lengths_.size(); ++i) {
    if (static_cast<int>(i) == round.source) continue;
    for (int t = 0; t <= n_accepted; ++t) lengths_[i].NoteUndrafted(costs_);
  }
  source.rests += length.resting();
  source.drafted += n_drafted;
  source.accepted += n_accepted;
  ++source.verifications;
  ++counters_.verifications;
  counters_.verified_rows += n_rows;
  counters_.draft_seconds += round.draft_seconds;
  counters_.verify_seconds += verify_seconds;
}

Status ExactDecoder::Run(std::vector<Token>& history, Logits logits, int n_tokens,
                         const ChooseToken& choose, const OnToken& on_token) {
  CONDENSE_CHECK(static_cast<int>(history.size()) == session_.position() && n_tokens > 0);
  history.push_back(Choose(logits, choose));
  int n_left = n_tokens - 1;
  bool goes_on = on_token(history.back());
  while (goes_on && n_left > 0) {
    const int begin = session_.position();
    // No row that dense decoding would not write too, and none that the context does not hold.
    const int most = std::min(n_left, session_.n_context() - begin) - 1;
    const Result<Round> round = Propose(history, most);
    if (session_.position() > begin) {
      const Status cut = session_.CutBack(begin);
      if (!cut.ok()) return cut;
    }
    if (!round.ok()) return Error{round.error()};
    double seconds = 0;
    const Result<std::vector<Logits>> rows = Verify(round.value(), &seconds);
    if (!rows.ok()) return Error{rows.error()};
    const std::span<const Token> draft = std::span(round->tokens).subspan(1);
    size_t n_accepted = 0;
    while (true) {
      history.push_back(Choose(rows.value()[n_accepted], choose));
      --n_left;
      goes_on = on_token(history.back());
      const bool agrees = n_accepted < draft.size() && draft[n_accepted] == history.back();
      if (!goes_on || !agrees) break;
      ++n_accepted;
    }
    Count(round.value(), static_cast<int>(n_accepted), seconds);
    const int keep = begin + static_cast<int>(n_accepted) + 1;
    if (session_.position() > keep) {
      const Status cut = session_.CutBack(keep);
      if (!cut.ok()) return cut;
    }
  }
  return Status();
}

}  // namespace condense
