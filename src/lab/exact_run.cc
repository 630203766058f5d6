#include "lab/exact_run.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "lab/compare.h"
#include "lab/runs.h"
#include "lab/speed_pairs.h"

namespace condense {
namespace {

constexpr const char* kDense = "dense";

// A draft as it was proposed; `at`: tokens of the history before it.
struct Proposed {
  size_t at = 0;
  std::vector<Token> tokens;
};

// A source that notes what it proposes.
class NotedDraft final : public DraftSource {
 public:
  NotedDraft(std::unique_ptr<DraftSource> source, std::vector<Proposed>& noted)
      : source_(std::move(source)), noted_(noted) {}
  std::string name() const override { return source_->name(); }
  bool takes_steps() const override { return source_->takes_steps(); }
  Result<std::vector<Token>> Propose(Session& session, std::span<const Token> history,
                                     int n) override {
    Result<std::vector<Token>> tokens = source_->Propose(session, history, n);
    if (tokens.ok() && !tokens->empty()) noted_.push_back({history.size(), tokens.value()});
    return tokens;
  }

 private:
  const std::unique_ptr<DraftSource> source_;
  std::vector<Proposed>& noted_;
};

void CountPlaces(const std::vector<Proposed>& noted, std::span<const Token> text,
                 ExactFigures& figures) {
  for (const Proposed& draft : noted) {
    bool agrees = true;
    for (size_t i = 0; i < draft.tokens.size(); ++i) {
      if (figures.drafted_at.size() <= i) {
        figures.drafted_at.push_back(0);
        figures.accepted_at.push_back(0);
      }
      agrees = agrees && draft.at + i < text.size() && text[draft.at + i] == draft.tokens[i];
      ++figures.drafted_at[i];
      figures.accepted_at[i] += agrees;
    }
  }
}

IdentityProbe FirstRows(const IdentityProbe& probe, int n_rows) {
  IdentityProbe part = probe;
  part.probed_rows = std::min(probe.probed_rows, n_rows);
  part.equal_rows = std::min(probe.equal_rows, n_rows);
  if (static_cast<int>(part.seconds.size()) > n_rows) part.seconds.resize(n_rows);
  return part;
}

class Measurement {
 public:
  Measurement(Session& session, const Plugin& plugin, std::span<const Token> prompt,
              const DenseReference& reference, const IdentityProbe& probe, const ExactDraft& draft)
      : session_(session),
        plugin_(plugin),
        prompt_(prompt),
        reference_(reference),
        probe_(FirstRows(probe, draft.Rows())),
        draft_(draft) {
    figures_.n_tokens = static_cast<int>(reference.tokens.size());
    figures_.equal_rows = probe_.equal_rows;
    figures_.probed_rows = probe_.probed_rows;
  }

  Result<ExactFigures> Run(int n_pairs, const std::function<void(double share)>& on_share) {
    int n_blocks = 0;
    const auto timed = [&](bool exact) -> Result<double> {
      const auto tick = [&](size_t n_done) {
        const double share = static_cast<double>(n_done) / figures_.n_tokens;
        on_share((n_blocks + share) / (2 * n_pairs));
      };
      const Result<double> seconds = exact ? Exact(tick) : Dense(tick);
      ++n_blocks;
      if (!seconds.ok()) return seconds;
      return seconds.value() / std::max(1, figures_.n_tokens - 1);
    };
    const bool is_dense = draft_.source == kDense;
    const Result<SpeedRecord> speed = TimePairs(
        n_pairs, [&] { return timed(false); }, [&] { return timed(!is_dense); });
    if (!speed.ok()) return Error{speed.error()};
    figures_.speed = speed.value();
    if (figures_.n_tokens == 1) {  // an answer that ends at once takes no step
      constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
      figures_.speed.sparse_tokens_per_second = figures_.speed.dense_tokens_per_second = kNone;
      figures_.speed.ratio = {kNone, kNone, kNone};
    }
    return std::move(figures_);
  }

 private:
  using Tick = std::function<void(size_t n_done)>;

  Result<double> Dense(const Tick& tick) {
    const Status begun = BeginRun(session_, plugin_, kDense);
    if (!begun.ok()) return Error{begun.error()};
    const std::span<const Token> wanted = reference_.decisions();
    const Clock::time_point start = Clock::now();
    const Result<std::vector<Token>> tokens =
        GreedyRun(session_, reference_.first(), static_cast<int>(wanted.size()),
                  [&](int decision, Logits) { tick(static_cast<size_t>(decision) + 1); });
    const double seconds = SecondsSince(start);
    if (!tokens.ok()) return Error{tokens.error()};
    if (!std::equal(wanted.begin(), wanted.end(), tokens->begin()))
      return Error{"dense decoding is not repeatable on this machine: two runs give other tokens"};
    return seconds;
  }

  Result<double> Exact(const Tick& tick) {
    const Status begun = BeginRun(session_, plugin_, kDense);
    if (!begun.ok()) return Error{begun.error()};
    const Clock::time_point setting_up = Clock::now();
    PolicySwitch policies(plugin_);
    std::vector<Proposed> noted;
    const Result<DraftText> text = ReadDraft(draft_.source);
    if (!text.ok()) return Error{text.error()};
    std::vector<std::unique_ptr<DraftSource>> sources = MakeDrafts(text.value(), policies);
    bool takes_steps = false;
    for (std::unique_ptr<DraftSource>& source : sources) {
      takes_steps = takes_steps || source->takes_steps();
      source = std::make_unique<NotedDraft>(std::move(source), noted);
    }
    Result<std::unique_ptr<ExactDecoder>> decoder =
        ExactDecoder::Make(session_, plugin_, std::move(sources),
                           ExactOptions::Of(probe_, draft_.Rows(), draft_.length));
    if (!decoder.ok()) return Error{decoder.error()};
    const Status calibrated = decoder.value()->Calibrate(probe_, prompt_);
    if (!calibrated.ok()) return Error{calibrated.error()};
    noted.clear();
    const double set_up_seconds = SecondsSince(setting_up);

    std::vector<Token> history(prompt_.begin(), prompt_.end());
    const Clock::time_point start = Clock::now();
    const Status ran = decoder.value()->Run(history, reference_.logits, figures_.n_tokens,
                                            GreedyToken, [&](Token) {
                                              tick(history.size() - prompt_.size());
                                              return true;
                                            });
    const double seconds = SecondsSince(start);
    if (!ran.ok()) return Error{ran.error()};
    const std::span<const Token> decoded = std::span(history).subspan(prompt_.size());
    const auto [differs, wanted] =
        std::mismatch(decoded.begin(), decoded.end(), reference_.tokens.begin());
    if (differs != decoded.end() && !figures_.first_difference)
      figures_.first_difference = static_cast<int>(differs - decoded.begin()) + 1;
    if (has_counts_) return seconds;
    has_counts_ = true;
    figures_.counters = decoder.value()->counters();
    figures_.set_up_seconds = set_up_seconds;
    CountPlaces(noted, history, figures_);
    if (!takes_steps) return seconds;
    const CounterSnapshot counters = plugin_.Counters();
    const Status sparse = CheckCounters(draft_.source, true, counters);
    if (!sparse.ok()) return Error{sparse.error()};
    figures_.was_sparse = counters.total.sparse_steps > 0;
    return seconds;
  }

  Session& session_;
  const Plugin& plugin_;
  const std::span<const Token> prompt_;
  const DenseReference& reference_;
  const IdentityProbe probe_;
  const ExactDraft& draft_;
  ExactFigures figures_;
  bool has_counts_ = false;
};

}  // namespace

int ExactDraft::Rows() const {
  if (source == kDense) return 1;
  const Result<DraftText> text = ReadDraft(source);
  CONDENSE_CHECK(text.ok());
  return ExactOptions::RowsOf(text.value(), length);
}

Result<ExactFigures> MeasureExact(Session& session, const Plugin& plugin,
                                  std::span<const Token> prompt, const DenseReference& reference,
                                  const IdentityProbe& probe, const ExactDraft& draft, int n_pairs,
                                  const std::function<void(double share)>& on_share) {
  CONDENSE_CHECK(n_pairs > 0 && !reference.tokens.empty());
  return Measurement(session, plugin, prompt, reference, probe, draft).Run(n_pairs, on_share);
}

Json ToJson(const ExactFigures& figures, const ExactDraft& draft) {
  const ExactCounters& n = figures.counters;
  Json json{{"record", "exact"}};
  json["policy"] = draft.source;
  json["n_tokens"] = figures.n_tokens;
  json["identical"] = !figures.first_difference.has_value();
  json["first_difference"] =
      figures.first_difference ? Json(*figures.first_difference) : Json(nullptr);
  json["equal_rows"] = figures.equal_rows;
  json["probed_rows"] = figures.probed_rows;
  json["near_ties"] = n.near_ties;
  json["drafted"] = n.drafted();
  json["accepted"] = n.accepted();
  json["verifications"] = n.verifications;
  json["verified_rows"] = n.verified_rows;
  json["undrafted"] = n.undrafted;
  json["drafted_at"] = figures.drafted_at;
  json["accepted_at"] = figures.accepted_at;
  json["sources"] = Json::array();
  for (const ExactCounters::Source& source : n.sources) {
    json["sources"].push_back({{"name", source.name},
                               {"drafted", source.drafted},
                               {"accepted", source.accepted},
                               {"verifications", source.verifications},
                               {"rests", source.rests}});
  }
  json["draft_seconds"] = n.draft_seconds;
  json["verify_seconds"] = n.verify_seconds;
  json["undrafted_seconds"] = n.dense_seconds;
  json["set_up_seconds"] = figures.set_up_seconds;
  json["exact_tokens_per_second"] = figures.speed.sparse_tokens_per_second;
  json["dense_tokens_per_second"] = figures.speed.dense_tokens_per_second;
  json["speed_pairs"] = figures.speed.n_pairs;
  json["speed_ratio_median"] = figures.speed.ratio.median;
  json["speed_ratio_low"] = figures.speed.ratio.low;
  json["speed_ratio_high"] = figures.speed.ratio.high;
  return json;
}

}  // namespace condense
