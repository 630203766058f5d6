#include "bench/several_rows.h"

#include <fmt/format.h>

#include <cstring>

#include "bench/setup.h"

namespace condense {
namespace {

class SeveralRows {
 public:
  SeveralRows(const BenchOptions& options, BenchSetup& setup)
      : options_(options),
        setup_(setup),
        plan_(setup.plan),
        mask_(plan_.n_capacity, plan_.n_query_rows),
        row_mask_(plan_.n_capacity, 1),
        at_once_(setup.caches, *setup.queries, *setup.dense, plan_.n_caches, options.n_model_layers,
                 plan_.n_query_rows, options.n_threads) {
    mask_.Set(plan_.first_row, plan_.n_query_rows);
  }

  void AtOnce() { at_once_.Run(mask_, plan_.first_row, plan_.n_query_rows); }
  void OneRow(OperatorArm& arm, int i) {
    row_mask_.Set(plan_.first_row + i, 1);
    arm.Run(row_mask_, plan_.first_row + i, 1);
  }
  void BuildHost() {
    const Status built = setup_.host->Build(setup_.caches, plan_.n_caches, *setup_.queries,
                                            plan_.first_row, mask_, plan_.n_query_rows);
    CONDENSE_CHECK(built.ok());
  }
  void Host() {
    const Status computed = setup_.host->Compute();
    CONDENSE_CHECK(computed.ok());
  }

  // An arm whose passes run warm where rows come from the cache.
  Arm Turn(const std::string& name, const std::function<void()>& run) const {
    return {name,
            [this, run](int) {
              for (int i = 0; i < plan_.n_warm; ++i) run();
            },
            [run](int) { run(); }};
  }

  CheckResult Check() {
    CheckResult result;
    AtOnce();
    const size_t width =
        static_cast<size_t>(options_.shape.n_query_heads) * options_.shape.head_dim;
    for (int layer : SampleOfIndices(plan_.n_caches)) {
      for (int i : SampleOfIndices(plan_.n_query_rows)) {
        CheckRow(setup_.caches.View(layer, mask_.n_rows()), options_.shape.n_query_heads,
                 setup_.queries->At(layer, plan_.first_row) + i * width, plan_.first_row + i,
                 nullptr, at_once_.Out(layer) + i * width, result);
      }
    }
    return result;
  }

  // Whether each row alone gives the bits that it has among the others.
  bool EqualBits(OperatorArm& arm) {
    AtOnce();
    const size_t width =
        static_cast<size_t>(options_.shape.n_query_heads) * options_.shape.head_dim;
    bool equal = true;
    for (int i = 0; i < plan_.n_query_rows; ++i) {
      OneRow(arm, i);
      for (int layer = 0; layer < plan_.n_caches; ++layer) {
        equal = equal && std::memcmp(arm.Out(layer), at_once_.Out(layer) + i * width,
                                     sizeof(float) * width) == 0;
      }
    }
    return equal;
  }

  // rows_read: K rows, and V rows, of a head.
  BenchRecord Record(const char* bench, const std::string& arm, double rows_read) const {
    BenchRecord record = NewRecord(bench, arm, options_.shape, plan_, options_.n_threads);
    record.per = "layer-call";
    record.visible_rows = options_.shape.n_rows;
    record.k_bytes = rows_read * static_cast<double>(options_.shape.KeyRowBytes());
    record.v_bytes = rows_read * static_cast<double>(options_.shape.ValueRowBytes());
    record.bytes = record.k_bytes + record.v_bytes;
    record.flops = 4.0 * options_.shape.head_dim * options_.shape.n_query_heads *
                   VisiblePairs(plan_.first_row, plan_.n_query_rows);
    return record;
  }

 private:
  const BenchOptions& options_;
  BenchSetup& setup_;
  const Plan& plan_;
  CausalMask mask_, row_mask_;
  OperatorArm at_once_;
};

}  // namespace

Result<BenchOutcome> BenchVerify(const BenchOptions& options, const BenchControl& control) {
  Result<std::unique_ptr<BenchSetup>> made = BenchSetup::Make(OperatorBench::kVerify, options);
  if (!made.ok()) return Error{made.error()};
  BenchSetup& setup = *made.value();
  const Plan& plan = setup.plan;
  SeveralRows rows(options, setup);
  OperatorArm single(setup.caches, *setup.queries, *setup.dense, plan.n_caches,
                     options.n_model_layers, 1, options.n_threads);
  const auto one_by_one = [&] {
    for (int i = 0; i < plan.n_query_rows; ++i) rows.OneRow(single, i);
  };
  rows.AtOnce();
  one_by_one();
  const std::vector<Arm> arms = {rows.Turn("at once", [&] { rows.AtOnce(); }),
                                 rows.Turn("one by one", one_by_one)};
  const RoundTimes times =
      RunInTurns(arms, plan.n_rounds, *setup.yard, options.n_threads, "verify", control);
  if (times.n_rounds() == 0) return BenchOutcome::kStopped;

  std::vector<BenchRecord> records;
  const double pairs = VisiblePairs(plan.first_row, plan.n_query_rows);
  records.push_back(rows.Record("verify", "at once", options.shape.n_rows));
  records.push_back(rows.Record("verify", "one by one", pairs));
  for (size_t i = 0; i < records.size(); ++i) {
    FillTimes(times, i, 1, plan.n_caches, *setup.yard, records[i]);
  }
  records[0].speedup = RatioOf(times.ns[1], times.ns[0]);
  records[0].equal_bits = rows.EqualBits(single);
  if (options.check && !times.stopped) NoteCheck(rows.Check(), records[0]);
  return Finish(records, times.stopped, control);
}

Result<BenchOutcome> BenchPrefill(const BenchOptions& options, const BenchControl& control) {
  Result<std::unique_ptr<BenchSetup>> made = BenchSetup::Make(OperatorBench::kPrefill, options);
  if (!made.ok()) return Error{made.error()};
  BenchSetup& setup = *made.value();
  SeveralRows rows(options, setup);
  std::vector<Arm> arms = {rows.Turn("dense", [&] { rows.AtOnce(); })};
  rows.AtOnce();
  if (setup.host != nullptr) {
    rows.BuildHost();
    rows.Host();
    arms.push_back(rows.Turn("ggml", [&] { rows.Host(); }));
  }
  const RoundTimes times =
      RunInTurns(arms, setup.plan.n_rounds, *setup.yard, options.n_threads, "prefill", control);
  if (times.n_rounds() == 0) return BenchOutcome::kStopped;

  std::vector<BenchRecord> records;
  for (size_t i = 0; i < arms.size(); ++i) {
    BenchRecord record = rows.Record("prefill", arms[i].name, options.shape.n_rows);
    FillTimes(times, i, 1, setup.plan.n_caches, *setup.yard, record);
    if (i > 0) record.ratio_to_dense = RatioOf(times.ns[0], times.ns[i]);
    if (i == 0 && setup.host != nullptr) {
      record.ratio_to_host = RatioOf(times.ns[1], times.ns[0]);
    }
    records.push_back(std::move(record));
  }
  if (options.check && !times.stopped) NoteCheck(rows.Check(), records[0]);
  return Finish(records, times.stopped, control);
}

}  // namespace condense
