#include "bench/rolling.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/setup.h"

namespace condense {
namespace {

constexpr int kWarmSteps = 2;  // the first summarises every block, trains and codes

struct RollingArm {
  std::string name;
  const Policy* policy;
  int cycle;  // rounds that belong together
  OperatorArm run;
  uint64_t first_select_ns = 0;  // of the first step, all layers
};

class RollingLoop {
 public:
  RollingLoop(OperatorBench bench, const BenchOptions& options, BenchSetup& setup)
      : bench_(bench),
        options_(options),
        setup_(setup),
        plan_(setup.plan),
        mask_(plan_.n_capacity, 1) {
    AddArm("dense", *setup.dense, 1);
    for (const NamedPolicy& policy : plan_.policies) {
      AddArm(policy.spec, *policy.policy, std::max(1, policy.reuse));
    }
  }

  // False where it was stopped.
  bool WarmUp(const BenchControl& control) {
    for (size_t i = 0; i < arms_.size(); ++i) {
      if (control.on_progress) {
        control.on_progress("first steps, which summarise every block", static_cast<int64_t>(i),
                            static_cast<int64_t>(arms_.size()));
      }
      for (int step = 0; step < kWarmSteps; ++step) {
        if (control.stopped && control.stopped()) return false;
        WriteRows(plan_.first_row + step, 1);
        Step(*arms_[i], plan_.first_row + step);
      }
      arms_[i]->first_select_ns = arms_[i]->run.times().front().select_ns;
      arms_[i]->run.Reset();
    }
    return true;
  }

  RoundTimes Run(const BenchControl& control) {
    std::vector<Arm> turns;
    for (auto& arm : arms_) {
      turns.push_back({arm->name,
                       [&](int round) {
                         Prepare(round);
                         for (int i = 0; i < plan_.n_warm; ++i) Step(*arm, Row(round, i));
                       },
                       [&](int round) {
                         for (int i = 0; i < plan_.steps_a_pass; ++i)
                           Step(*arm, Row(round, plan_.n_warm + i));
                       }});
    }
    if (setup_.host != nullptr) {
      turns.push_back({"ggml",
                       [&](int round) {
                         Prepare(round);
                         for (int i = 0; i < plan_.n_warm; ++i) HostStep(Row(round, i));
                         mask_.Set(Row(round, plan_.n_warm), 1);
                         BuildHost();
                       },
                       [&](int round) {
                         for (int i = 0; i < plan_.steps_a_pass; ++i)
                           HostStep(Row(round, plan_.n_warm + i));
                       },
                       // It is slow and knows no cycles.
                       plan_.cycle > 1 ? 4 : 1});
    }
    n_turns_ = turns.size();
    return RunInTurns(turns, plan_.n_rounds, *setup_.yard, options_.n_threads, Name(), control);
  }

  // After the rounds: one more step of some layers against the reference.
  void Check(int n_rounds_done) {
    const int row = Row(n_rounds_done, 0);
    WriteRows(row, 1);
    mask_.Set(row, 1);
    for (auto& arm : arms_) {
      CheckResult result;
      for (int layer : SampleOfIndices(arm->run.n_layers())) {
        const RecordingPolicy recording(*arm->policy);
        arm->run.RunLayer(mask_, layer, row, 1, recording);
        CheckRow(setup_.caches.View(layer, mask_.n_rows()), options_.shape.n_query_heads,
                 setup_.queries->At(layer, row), row, &recording.chosen(), arm->run.Out(layer),
                 result);
      }
      checks_.push_back(result);
    }
  }

  Result<std::vector<BenchRecord>> Records(const RoundTimes& times) {
    std::vector<BenchRecord> records;
    const std::vector<double>& dense_ns = times.ns[0];
    for (size_t i = 0; i < arms_.size(); ++i) {
      RollingArm& arm = *arms_[i];
      const StepTotals& totals = arm.run.totals();
      if (!arm.policy->is_dense() && totals.sparse_steps == 0) {
        return Error{fmt::format(
            "{} never ran sparse: all of its {} layer-steps read everything; give more --rows or a "
            "smaller budget",
            arm.name, totals.n_steps)};
      }
      if (totals.rebuilds > 0) {
        return Error{fmt::format("{} rebuilt summaries {} times over caches that nobody changed",
                                 arm.name, totals.rebuilds)};
      }
      BenchRecord record = NewRecord(Name(), arm.name, options_.shape, plan_, options_.n_threads);
      record.per = "layer-step";
      const auto mean = [&](uint64_t sum) {
        return static_cast<double>(sum) / static_cast<double>(totals.n_steps);
      };
      record.visible_rows = mean(totals.visible_rows);
      record.k_bytes = mean(totals.k_bytes);
      record.v_bytes = mean(totals.v_bytes);
      record.summary_bytes = mean(totals.summary_bytes);
      record.bytes = record.k_bytes + record.v_bytes + record.summary_bytes;
      record.flops = 4.0 * options_.shape.head_dim * mean(totals.nominal_rows);
      record.sparse_steps = totals.sparse_steps;
      record.fallback_steps = totals.fallback_steps;
      if (!arm.policy->is_dense()) {
        record.codes_memory_share = arm.run.CodesMemoryShare();
        record.memory_share = arm.run.MemoryShare();
      }
      const double units = Units(arm.run.n_layers());
      FillTimes(times, i, arm.cycle, units, *setup_.yard, record);
      record.n_layers = arm.run.n_layers();
      if (arm.cycle > 1 && plan_.from_memory) {
        record.note = fmt::format("means of whole cycles of {} steps", arm.cycle);
      }
      FillShares(arm, times.ns[i], record);
      // Of a layer-step: passes may have more layers than dense's.
      const double scale = units / Units(plan_.n_caches);
      if (i > 0) record.ratio_to_dense = RatioOf(dense_ns, times.ns[i], arm.cycle, scale);
      if (setup_.host != nullptr) {
        record.ratio_to_host = RatioOf(times.ns.back(), times.ns[i], arm.cycle, scale);
      }
      if (i < checks_.size()) NoteCheck(checks_[i], record);
      records.push_back(std::move(record));
    }
    if (setup_.host != nullptr) {
      BenchRecord record = records[0];
      record.arm = "ggml";
      record.select_share = record.attend_share = record.ratio_to_host = std::nullopt;
      record.max_error = record.error_bound = std::nullopt;
      record.check_failed = false;
      record.ratio_to_dense = RatioOf(dense_ns, times.ns.back());
      FillTimes(times, n_turns_ - 1, 1, Units(plan_.n_caches), *setup_.yard, record);
      records.push_back(std::move(record));
    }
    return records;
  }

 private:
  const char* Name() const { return bench_ == OperatorBench::kSelect ? "select" : "decode"; }
  // Layer-steps of a pass.
  double Units(int n_layers) const { return static_cast<double>(plan_.steps_a_pass) * n_layers; }

  void AddArm(const std::string& name, const Policy& policy, int reuse) {
    // Where a pass holds whole cycles, a round is one.
    const int cycle = plan_.from_memory ? reuse : 1;
    // In place: an arm's counters are known by address.
    arms_.emplace_back(new RollingArm{name,
                                      &policy,
                                      cycle,
                                      {setup_.caches, *setup_.queries, policy,
                                       policy.is_dense() ? plan_.n_caches : plan_.n_layers,
                                       options_.n_model_layers, 1, options_.n_threads}});
  }

  int Row(int round, int step) const {
    return plan_.first_row + kWarmSteps + round * (plan_.n_warm + plan_.steps_a_pass) + step;
  }
  void WriteRows(int first, int n) {
    for (int layer = 0; layer < plan_.n_layers; ++layer) {
      for (int i = 0; i < n; ++i) setup_.caches.WriteRow(layer, first + i);
    }
  }
  // The rows of a whole pass are written before it: nobody sees a row before its step.
  void Prepare(int round) {
    WriteRows(Row(round, 0), plan_.n_warm + plan_.steps_a_pass);
    mask_.Set(Row(round, 0), 1);
  }
  void Step(RollingArm& arm, int row) {
    mask_.Set(row, 1);
    arm.run.Run(mask_, row, 1);
  }
  void BuildHost() {
    const Status built =
        setup_.host->Build(setup_.caches, plan_.n_caches, *setup_.queries, 0, mask_, 1);
    CONDENSE_CHECK(built.ok());
  }
  void HostStep(int row) {
    mask_.Set(row, 1);
    BuildHost();
    const Status computed = setup_.host->Compute();
    CONDENSE_CHECK(computed.ok());
  }

  void FillShares(const RollingArm& arm, const std::vector<double>& pass_ns, BenchRecord& record) {
    const int n_steps = plan_.n_warm + plan_.steps_a_pass;
    std::vector<double> select, attend;
    const std::vector<StepTime>& steps = arm.run.times();
    for (size_t round = 0; round < pass_ns.size(); ++round) {
      double select_ns = 0, attend_ns = 0;
      for (int i = plan_.n_warm; i < n_steps; ++i) {
        const StepTime& step = steps[round * n_steps + i];
        select_ns += static_cast<double>(step.select_ns);
        attend_ns += static_cast<double>(step.attend_ns);
      }
      select.push_back(select_ns);
      attend.push_back(attend_ns);
    }
    record.select_share = RatioOf(select, pass_ns, arm.cycle);
    record.attend_share = RatioOf(attend, pass_ns, arm.cycle);
    if (bench_ == OperatorBench::kSelect && !arm.policy->is_dense() && arm.cycle == 1) {
      record.upkeep_share =
          UpkeepShare(steps, arm.run.CodesMemoryShare() > 0 ? kSegmentRows : kBlockRows);
      std::vector<double> each;
      for (const StepTime& step : steps) each.push_back(static_cast<double>(step.select_ns));
      const double setup_ns = static_cast<double>(arm.first_select_ns) - SampleOf(each).median;
      record.setup_ns = std::max(0.0, setup_ns) / arm.run.n_layers();
    }
  }

  // A block is summarised once in 16 steps, a segment coded once in 64, in every layer at the same
  // one, wherever in the block that happens: what the steps take to choose on average beyond the
  // median phase, and the marking of written rows.
  static std::optional<double> UpkeepShare(const std::vector<StepTime>& steps, int n_phases) {
    std::vector<std::vector<double>> phases(n_phases);
    std::vector<double> mark, whole;
    for (const StepTime& step : steps) {
      phases[step.first_row % n_phases].push_back(static_cast<double>(step.select_ns));
      mark.push_back(static_cast<double>(step.mark_ns));
      whole.push_back(static_cast<double>(step.ns));
    }
    std::vector<double> medians;
    double mean = 0;
    for (const std::vector<double>& phase : phases) {
      if (phase.size() < 4) return std::nullopt;
      medians.push_back(SampleOf(phase).median);
      mean += medians.back() / n_phases;
    }
    const double refresh = std::max(0.0, mean - SampleOf(medians).median);
    return (refresh + SampleOf(mark).median) / SampleOf(whole).median;
  }

  const OperatorBench bench_;
  const BenchOptions& options_;
  BenchSetup& setup_;
  const Plan& plan_;
  CausalMask mask_;
  std::vector<std::unique_ptr<RollingArm>> arms_;
  std::vector<CheckResult> checks_;
  size_t n_turns_ = 0;
};

}  // namespace

Result<BenchOutcome> BenchRolling(OperatorBench bench, const BenchOptions& options,
                                  const BenchControl& control, const std::string& preset,
                                  const std::map<std::string, Published>& published) {
  Result<std::unique_ptr<BenchSetup>> setup = BenchSetup::Make(bench, options);
  if (!setup.ok()) return Error{setup.error()};
  RollingLoop loop(bench, options, *setup.value());
  if (!loop.WarmUp(control)) return BenchOutcome::kStopped;
  const RoundTimes times = loop.Run(control);
  if (times.n_rounds() == 0) return BenchOutcome::kStopped;
  if (options.check && !times.stopped) loop.Check(times.n_rounds());
  Result<std::vector<BenchRecord>> records = loop.Records(times);
  if (!records.ok()) return Error{records.error()};
  for (BenchRecord& record : records.value()) {
    record.preset = preset;
    if (!preset.empty()) record.bench = "single";
    if (const auto found = published.find(record.arm); found != published.end()) {
      record.published = found->second;
    }
  }
  return Finish(records.value(), times.stopped, control);
}

}  // namespace condense
