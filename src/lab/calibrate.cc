#include "lab/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/top_two.h"
#include "decode/guard.h"
#include "decode/run.h"
#include "lab/compare.h"
#include "lab/observation.h"
#include "lab/runs.h"
#include "metrics/stats.h"

namespace condense {
namespace {

// What dense decodes after a prompt: by teacher, the tokens fed and the decisions on them.
struct Teacher {
  std::string name;
  std::vector<Token> history;  // history[i] makes decision i
  std::vector<Token> dense;    // [history.size()]
};

class PrefixRunner {
 public:
  PrefixRunner(Session& session, const Plugin& plugin, const CalibrateSpec& spec,
               const CalibrateEvents& events)
      : session_(session), plugin_(plugin), spec_(spec), events_(events) {}

  // Prefill and dense decisions. `n_runs`: runs of every teacher that follow.
  Status Begin(const GuardPrefix& prefix, int n_runs) {
    CONDENSE_CHECK(static_cast<int>(prefix.continuation.size()) >= spec_.n_generate - 1);
    const int n_decisions = spec_.n_generate - 1;
    n_total_ = (spec_.on_greedy + spec_.on_text) * n_decisions * (1 + n_runs);
    const Result<DensePrefillResult> prefill = DensePrefill(
        session_, plugin_, prefix.prompt, std::span(&spec_.policy, 1), events_.on_prefill);
    if (!prefill.ok()) return Error{prefill.error()};
    const Token first_token = GreedyToken(prefill->logits);
    Status status = BeginRun(session_, plugin_, "dense");
    if (!status.ok()) return status;
    const Clock::time_point start = Clock::now();
    if (spec_.on_greedy) status = AddGreedy(first_token, n_decisions);
    if (status.ok() && spec_.on_text) status = AddText(prefix, n_decisions);
    if (!status.ok()) return status;
    CONDENSE_CHECK(!teachers_.empty());
    dense_seconds_ = SecondsSince(start) / static_cast<double>(teachers_.size() * n_decisions);
    if (plugin_.Counters().process.nodes == 0)
      return Error{"the plug-in saw no attention of this model: there is nothing to guard"};
    return Status();
  }

  const std::vector<Teacher>& teachers() const { return teachers_; }
  double dense_seconds() const { return dense_seconds_; }

  // The policy in force and the cache as after the prefill.
  Status Restart() { return BeginRun(session_, plugin_, spec_.policy); }

  // Whether what ran since Restart was the policy, and left rows out.
  Status CheckSparse() const {
    const CounterSnapshot counters = plugin_.Counters();
    const Status ran = CheckCounters(spec_.policy, true, counters);
    if (!ran.ok() || counters.total.sparse_steps > 0) return ran;
    return Error{fmt::format(
        "{} reads every row at this depth, so that there is nothing to guard: give longer prompts "
        "or another budget",
        spec_.policy)};
  }

  void Note(const std::string& what) {
    if (events_.on_steps) events_.on_steps(what, ++n_done_, n_total_);
  }

 private:
  Status AddGreedy(Token first_token, int n_decisions) {
    const Result<std::vector<Token>> greedy =
        GreedyRun(session_, first_token, n_decisions, [&](int, Logits) { Note("dense"); });
    if (!greedy.ok()) return Error{greedy.error()};
    teachers_.push_back({"greedy", FedTokens(first_token, greedy.value()), greedy.value()});
    return session_.Rewind();
  }

  Status AddText(const GuardPrefix& prefix, int n_decisions) {
    Teacher text{"text", {}, {}};
    text.history.assign(prefix.continuation.begin(), prefix.continuation.begin() + n_decisions);
    const Status status = TeacherForcedRun(session_, text.history, [&](int, Logits logits) {
      text.dense.push_back(GreedyToken(logits));
      Note("dense");
    });
    teachers_.push_back(std::move(text));
    return status;
  }

  Session& session_;
  const Plugin& plugin_;
  const CalibrateSpec& spec_;
  const CalibrateEvents& events_;
  std::vector<Teacher> teachers_;
  double dense_seconds_ = 0;
  int n_done_ = 0, n_total_ = 0;
};

}  // namespace

Result<SearchedPrefix> SearchPrefix(Session& session, const Plugin& plugin,
                                    const CalibrateSpec& spec, const GuardPrefix& prefix,
                                    const CalibrateEvents& events) {
  PrefixRunner runner(session, plugin, spec, events);
  Status status = runner.Begin(prefix, 1);
  if (!status.ok()) return Error{status.error()};
  SearchedPrefix searched;
  for (const Teacher& teacher : runner.teachers()) {
    status = runner.Restart();
    if (!status.ok()) return Error{status.error()};
    GuardSample sample{teacher.name, {}};
    ObservedMass mass;
    {
      const ScopedObserver observer(plugin, [&](std::span<const condense_observation> node) {
        mass.Take(node.data(), node.size());
      });
      status = TeacherForcedRun(session, teacher.history, [&](int decision, Logits logits) {
        const TopTwo sparse = FindTopTwo(logits);
        const ObservedMass::Decision omitted = mass.EndDecision();
        sample.decisions.push_back({sparse.margin, sparse.token == teacher.dense[decision - 1],
                                    omitted.mean, omitted.max});
        runner.Note("sparse, observed");
      });
    }
    if (status.ok()) status = runner.CheckSparse();
    if (!status.ok()) return Error{status.error()};
    searched.samples.push_back(std::move(sample));
  }
  return searched;
}

Result<TriedPrefix> TryPrefix(Session& session, const Plugin& plugin, const CalibrateSpec& spec,
                              const GuardPrefix& prefix, std::span<const double> thresholds,
                              const CalibrateEvents& events) {
  PrefixRunner runner(session, plugin, spec, events);
  Status status = runner.Begin(prefix, static_cast<int>(thresholds.size()));
  if (!status.ok()) return Error{status.error()};
  TriedPrefix tried;
  tried.dense_seconds = runner.dense_seconds();
  for (double threshold : thresholds) {
    std::vector<GuardTally> tallies;
    double seconds = 0;
    for (const Teacher& teacher : runner.teachers()) {
      status = runner.Restart();
      if (!status.ok()) return Error{status.error()};
      GuardOptions options;
      options.threshold = threshold;
      options.rewrite = spec.rewrite;
      options.look_ahead = false;  // the teacher's next token, not the guard's, comes next
      GuardedStepper guard(session, plugin, options);
      GuardTally tally;
      tally.teacher = teacher.name;
      const Clock::time_point start = Clock::now();
      status = TeacherForcedRun([&](Token token) { return guard.Step(token); }, teacher.history,
                                [&](int decision, Logits logits) {
                                  ++tally.n;
                                  tally.n_fallbacks += guard.last_was_dense();
                                  tally.n_differ +=
                                      !guard.last_was_dense() &&
                                      GreedyToken(logits) != teacher.dense[decision - 1];
                                  runner.Note(fmt::format("guard at {} logits", threshold));
                                });
      seconds += SecondsSince(start);
      if (status.ok() && tally.n_fallbacks < tally.n) status = runner.CheckSparse();
      if (!status.ok()) return Error{status.error()};
      tallies.push_back(tally);
    }
    int64_t n = 0;
    for (const GuardTally& tally : tallies) n += tally.n;
    tried.seconds.push_back(seconds / static_cast<double>(n));
    tried.tallies.push_back(std::move(tallies));
  }
  return tried;
}

std::vector<std::vector<GuardTally>> TalliesTogether(std::span<const TriedPrefix> prefixes,
                                                     double confidence) {
  std::vector<std::vector<GuardTally>> together;
  for (const TriedPrefix& prefix : prefixes) {
    if (together.empty()) {
      together = prefix.tallies;
      continue;
    }
    for (size_t i = 0; i < together.size(); ++i) {
      for (size_t t = 0; t < together[i].size(); ++t) {
        together[i][t].n += prefix.tallies[i][t].n;
        together[i][t].n_differ += prefix.tallies[i][t].n_differ;
        together[i][t].n_fallbacks += prefix.tallies[i][t].n_fallbacks;
      }
    }
  }
  for (auto& tallies : together) {
    for (GuardTally& tally : tallies)
      tally.bound = BinomialUpperBound(tally.n_differ, tally.n, confidence);
  }
  return together;
}

std::vector<GuardSample> SamplesTogether(std::span<const SearchedPrefix> prefixes) {
  std::vector<GuardSample> together;
  for (const SearchedPrefix& prefix : prefixes) {
    for (const GuardSample& sample : prefix.samples) {
      auto found = std::find_if(together.begin(), together.end(),
                                [&](const GuardSample& s) { return s.teacher == sample.teacher; });
      if (found == together.end()) found = together.insert(found, {sample.teacher, {}});
      found->decisions.insert(found->decisions.end(), sample.decisions.begin(),
                              sample.decisions.end());
    }
  }
  return together;
}

Json ToJson(const SearchedPrefix& prefix) {
  Json samples = Json::array();
  for (const GuardSample& sample : prefix.samples) {
    Json decisions = Json::array();
    for (const GuardDecision& d : sample.decisions)
      decisions.push_back({d.margin, d.equal, d.mass_mean, d.mass_max});
    samples.push_back({{"teacher", sample.teacher}, {"decisions", std::move(decisions)}});
  }
  return {{"samples", std::move(samples)}};
}

Json ToJson(const TriedPrefix& prefix) {
  Json candidates = Json::array();
  for (size_t i = 0; i < prefix.tallies.size(); ++i) {
    Json tallies = Json::array();
    for (const GuardTally& tally : prefix.tallies[i]) {
      tallies.push_back({{"teacher", tally.teacher},
                         {"n", tally.n},
                         {"n_differ", tally.n_differ},
                         {"n_fallbacks", tally.n_fallbacks}});
    }
    candidates.push_back({{"step_seconds", prefix.seconds[i]}, {"tallies", std::move(tallies)}});
  }
  return {{"dense_step_seconds", prefix.dense_seconds}, {"candidates", std::move(candidates)}};
}

Result<SearchedPrefix> SearchedFromJson(const Json& json) {
  SearchedPrefix prefix;
  try {
    for (const Json& sample : json.at("samples")) {
      prefix.samples.push_back({sample.at("teacher").get<std::string>(), {}});
      for (const Json& d : sample.at("decisions")) {
        prefix.samples.back().decisions.push_back({d.at(0).get<double>(), d.at(1).get<bool>(),
                                                   d.at(2).get<double>(), d.at(3).get<double>()});
      }
    }
  } catch (const Json::exception& error) {
    return Error{error.what()};
  }
  return prefix;
}

Result<TriedPrefix> TriedFromJson(const Json& json) {
  TriedPrefix prefix;
  try {
    prefix.dense_seconds = json.at("dense_step_seconds").get<double>();
    for (const Json& candidate : json.at("candidates")) {
      prefix.seconds.push_back(candidate.at("step_seconds").get<double>());
      prefix.tallies.emplace_back();
      for (const Json& tally : candidate.at("tallies")) {
        prefix.tallies.back().push_back(
            {tally.at("teacher").get<std::string>(), tally.at("n").get<int64_t>(),
             tally.at("n_differ").get<int64_t>(), tally.at("n_fallbacks").get<int64_t>(), 1});
      }
    }
  } catch (const Json::exception& error) {
    return Error{error.what()};
  }
  return prefix;
}

}  // namespace condense
