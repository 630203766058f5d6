#include "lab/timed_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "decode/exact.h"
#include "decode/identity.h"
#include "decode/run.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/lab_records.h"
#include "lab/runs.h"
#include "lab/speed_pairs.h"

namespace condense {
namespace {

constexpr int kBlockSteps = 16;

// One cell at work.
struct Work {
  GroupRun& run;
  const Cell& cell;
  const LabPrefix& prefix;
  Session& session;
  const int n_pairs;

  const Plugin& plugin() const { return run.plugin(); }
  // Behind what was set up, which takes `set_up` of the cell's time.
  void BlockDone(double set_up) {
    ++n_blocks;
    run.Working(cell, set_up + (1 - set_up) * n_blocks / (2.0 * n_pairs));
  }
  int n_blocks = 0;
};

// The plug-in's dense steps, which must be the plug-in's.
Status CheckDense(const Plugin& plugin) {
  return CheckCounters("dense", /*sparse=*/false, plugin.Counters());
}

Result<TimedRecord> TimeHost(Work& work, bool flash_attention) {
  constexpr double kSetUp = 0.8;
  const int n_generate = static_cast<int>(work.prefix.continuation.size());
  TimedRecord record;
  record.n_steps = std::min(kBlockSteps, std::max(1, n_generate - 2));
  SessionOptions options = work.session.options();
  options.left_to_host = true;
  options.flash_attention = flash_attention;
  const Result<std::unique_ptr<Session>> opened = Session::Open(work.session.model(), options);
  if (!opened.ok()) return Error{opened.error()};
  Session& host = *opened.value();

  const auto count = [&] {
    record.plugin_nodes += work.plugin().Counters().process.nodes;
    return record.plugin_nodes == 0
               ? Status()
               : Status(Error{fmt::format("the plug-in computed {} attention nodes of llama.cpp's",
                                          record.plugin_nodes)});
  };
  work.plugin().ResetCounters();
  const Clock::time_point start = Clock::now();
  const Result<Logits> prefill = host.Prefill(work.prefix.prompt, [&](int n_done, int n_total) {
    work.run.Working(work.cell, kSetUp * n_done / n_total);
  });
  if (!prefill.ok()) return Error{prefill.error()};
  record.prefill_seconds = SecondsSince(start);
  Status counted = count();
  if (!counted.ok()) return Error{counted.error()};

  const std::vector<Token>& tokens = work.prefix.continuation;
  const TimedBlock dense = [&]() -> Result<double> {
    const Result<double> seconds =
        TimePolicyBlock(work.session, work.plugin(), "dense", tokens, record.n_steps);
    if (!seconds.ok()) return seconds;
    const Status measured = CheckDense(work.plugin());
    if (!measured.ok()) return Error{measured.error()};
    work.BlockDone(kSetUp);
    return seconds;
  };
  const TimedBlock own = [&]() -> Result<double> {
    work.plugin().ResetCounters();
    const Status begun = host.Rewind();
    if (!begun.ok()) return Error{begun.error()};
    const Result<double> seconds = TimedSteps(host, tokens, 1, record.n_steps);
    if (!seconds.ok()) return seconds;
    counted = count();
    if (!counted.ok()) return Error{counted.error()};
    work.BlockDone(kSetUp);
    return seconds.value() / record.n_steps;
  };
  const Result<SpeedRecord> speed = TimePairs(work.n_pairs, dense, own);
  if (!speed.ok()) return Error{speed.error()};
  record.speed = speed.value();
  return record;
}

// Dense is in force, and the text's next token was fed: its logits.
Result<Logits> BeginBlock(const Work& work) {
  const Status begun = BeginRun(work.session, work.plugin(), "dense");
  if (!begun.ok()) return Error{begun.error()};
  return work.session.Step(work.prefix.continuation.front());
}

// Exact decoding, one way after another over the same tokens.
class ExactPairs {
 public:
  ExactPairs(Work& work, const IdentityProbe& probe) : work_(work), probe_(probe) {
    record_.n_steps = static_cast<int>(work.prefix.continuation.size()) - 1;
    record_.n_decisions = record_.n_equal = record_.drafted = record_.accepted = 0;
  }

  Result<TimedRecord> Run() {
    const Result<SpeedRecord> speed = TimePairs(
        work_.n_pairs, [&] { return DenseBlock(); }, [&] { return ExactBlock(); });
    if (!speed.ok()) return Error{speed.error()};
    record_.speed = speed.value();
    // All pairs decide the same tokens: they count once, as in the pair that agrees least.
    record_.n_decisions = record_.n_equal = static_cast<int64_t>(exact_[0].size());
    for (size_t i = 0; i < exact_.size(); ++i) {
      int64_t n_equal = 0;
      for (size_t t = 0; t < exact_[i].size(); ++t) n_equal += exact_[i][t] == dense_[i][t] ? 1 : 0;
      record_.n_equal = std::min(*record_.n_equal, n_equal);
    }
    return record_;
  }

 private:
  Result<double> DenseBlock() {
    const Result<Logits> first = BeginBlock(work_);
    if (!first.ok()) return Error{first.error()};
    const Token token = GreedyToken(first.value());
    const Clock::time_point start = Clock::now();
    const Result<std::vector<Token>> rest = GreedyRun(work_.session, token, record_.n_steps, {});
    const double seconds = SecondsSince(start);
    if (!rest.ok()) return Error{rest.error()};
    const Status measured = CheckDense(work_.plugin());
    if (!measured.ok()) return Error{measured.error()};
    dense_.push_back({token});
    dense_.back().insert(dense_.back().end(), rest->begin(), rest->end());
    work_.BlockDone(0);
    return seconds / record_.n_steps;
  }

  Result<double> ExactBlock() {
    PolicySwitch policies(work_.plugin());
    ExactOptions options;
    options.most_rows = probe_.equal_rows;
    const Result<std::unique_ptr<ExactDecoder>> decoder =
        ExactDecoder::Make(work_.session, work_.plugin(),
                           MakeDrafts({.looks_up = true, .policy = ""}, policies), options);
    if (!decoder.ok()) return Error{decoder.error()};
    ExactDecoder& exact = *decoder.value();
    std::vector<Token> history = work_.prefix.prompt;
    history.push_back(work_.prefix.continuation.front());
    const Result<Logits> first = BeginBlock(work_);
    if (!first.ok()) return Error{first.error()};
    const std::vector<float> logits(first->begin(), first->end());
    const Status calibrated = exact.Calibrate(probe_, history);
    if (!calibrated.ok()) return Error{calibrated.error()};
    std::vector<Token> decided;
    const Clock::time_point start = Clock::now();
    const Status decoded =
        exact.Run(history, logits, record_.n_steps + 1, GreedyToken, [&](Token token) {
          decided.push_back(token);
          return true;
        });
    const double seconds = SecondsSince(start);
    if (!decoded.ok()) return Error{decoded.error()};
    *record_.drafted += exact.counters().drafted();
    *record_.accepted += exact.counters().accepted();
    exact_.push_back(std::move(decided));
    work_.BlockDone(0);
    return seconds / record_.n_steps;
  }

  Work& work_;
  const IdentityProbe& probe_;
  TimedRecord record_;
  std::vector<std::vector<Token>> dense_, exact_;  // a pair each
};

// No record where the host computes several rows otherwise than one.
Result<std::optional<TimedRecord>> TimeExact(Work& work) {
  const Status begun = BeginRun(work.session, work.plugin(), "dense");
  if (!begun.ok()) return Error{begun.error()};
  const std::vector<Token>& tokens = work.prefix.continuation;
  const size_t n = std::min<size_t>(tokens.size(), ExactOptions::kMostDrafted + 1);
  const Result<IdentityProbe> probe = ProbeIdentity(work.session, std::span(tokens).first(n));
  if (!probe.ok()) return Error{probe.error()};
  if (probe->equal_rows < 2) return std::optional<TimedRecord>();
  const Result<TimedRecord> record = ExactPairs(work, probe.value()).Run();
  if (!record.ok()) return Error{record.error()};
  return std::optional<TimedRecord>(record.value());
}

Result<std::optional<TimedRecord>> TimeWay(Work& work, const std::string& way) {
  if (way == kExactLookup) return TimeExact(work);
  const Result<TimedRecord> record = TimeHost(work, way == kHostFlash);
  if (!record.ok()) return Error{record.error()};
  return std::optional<TimedRecord>(record.value());
}

}  // namespace

bool IsTimedWay(const std::string& policy) {
  return std::find(kTimedWays.begin(), kTimedWays.end(), policy) != kTimedWays.end();
}

bool IsHostWay(const std::string& policy) { return policy == kHostFlash || policy == kHostNoFlash; }

Status CheckTimedWay(const LabModel& model, const std::string& way) {
  if (way == kExactLookup) return CheckRowsCanBeRemoved(model.model());
  const std::string& v_type = model.v_type();
  if (way == kHostNoFlash && v_type == "q8_0") {
    return Error{
        fmt::format("llama.cpp keeps no values of type {} without flash attention", v_type)};
  }
  return Status();
}

CellMemory TimedWayMemory(const LabModel& model, const std::string& way, int n_rows) {
  CellMemory memory;
  if (!IsHostWay(way)) return memory;
  memory.n_caches = 2;
  // Of a batch: logits in the graph, or, without flash attention, scores of all heads and the mask.
  // llama.cpp reports 98 MiB, and 166 MiB without, for SmolLM2-135M and 8,192 rows.
  int64_t widest = model.model().n_vocab();
  if (way == kHostNoFlash)
    widest = std::max(widest, int64_t{n_rows} * (model.model().n_query_heads() + 1));
  memory.other_bytes = sizeof(float) * static_cast<uint64_t>(widest) * SessionOptions().n_batch;
  return memory;
}

Status RunTimedCells(GroupRun& run, const LabPrefix& prefix, std::span<const Cell> cells,
                     int n_pairs) {
  const Result<Session*> session = OpenPrefilled(run, prefix.prompt, {});
  if (!session.ok()) return Error{session.error()};
  for (const Cell& cell : cells) {
    const Clock::time_point start = Clock::now();
    const std::string way = cell.parameters["policy"];
    run.Working(cell, 0);
    Work work{run, cell, prefix, *session.value(), n_pairs};
    Result<std::optional<TimedRecord>> record = TimeWay(work, way);
    if (!record.ok()) return Error{record.error()};
    CellRecord end;
    end.policy = way;
    end.name = PolicyName(way);
    end.seconds = SecondsSince(start);
    std::vector<Json> lines;
    if (std::optional<TimedRecord>& timed = record.value()) {
      timed->policy = way;
      timed->n_prompt = static_cast<int>(prefix.prompt.size());
      lines.push_back(ToJson(*timed));
    } else {
      end.state = "unmet";
      end.reason =
          "this model's matrix products round several rows otherwise than one: exact decoding "
          "needs its weights as the file stores them (`condense run --mode exact` loads them so)";
    }
    const Status finished = run.Finish(cell, lines, std::move(end));
    if (!finished.ok()) return finished;
  }
  return Status();
}

}  // namespace condense
