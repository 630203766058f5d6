#include "bench/setup.h"

#include <cmath>

#include "select/registry.h"

namespace condense {

Result<std::unique_ptr<BenchSetup>> BenchSetup::Make(OperatorBench bench,
                                                     const BenchOptions& options) {
  auto setup = std::make_unique<BenchSetup>();
  Result<Plan> plan = MakePlan(bench, options);
  if (!plan.ok()) return Error{plan.error()};
  setup->plan = std::move(plan.value());
  const bool compares = bench == OperatorBench::kDecode || bench == OperatorBench::kPrefill;
  if (options.host && compares) {
    Result<std::unique_ptr<HostOperator>> host = HostOperator::Make(options.n_threads);
    if (!host.ok()) return Error{host.error()};
    setup->host = std::move(host.value());
  }
  Result<std::unique_ptr<Yard>> yard =
      Yard::Make(options.buffer_bytes, options.free_bytes, options.n_threads, options.huge_pages);
  if (!yard.ok()) return Error{yard.error()};
  setup->yard = std::move(yard.value());
  Result<MadeCaches> caches =
      MadeCaches::Make(options.shape, setup->plan.n_layers, setup->plan.n_caches,
                       setup->plan.n_capacity, options.n_threads, options.huge_pages);
  if (!caches.ok()) return Error{caches.error()};
  setup->caches = std::move(caches.value());
  setup->queries = std::make_unique<MadeQueries>(options.shape, 64, setup->plan.n_query_rows);
  setup->dense = std::move(MakePolicy("dense")->policy);
  return setup;
}

double VisiblePairs(int first_row, int n) {
  const double rows = n;
  return rows * first_row + rows * (rows + 1) / 2;
}

BenchRecord NewRecord(const char* bench, const std::string& arm, const Shape& shape,
                      const Plan& plan, int n_threads) {
  BenchRecord record;
  record.bench = bench;
  record.arm = arm;
  record.source = plan.source();
  record.shape = shape;
  record.n_layers = plan.n_caches;
  record.n_query_rows = plan.n_query_rows;
  record.n_threads = n_threads;
  return record;
}

std::set<int> SampleOfIndices(int n) { return {0, n / 2, n - 1}; }

void CheckRow(const KvView& view, int n_query_heads, const float* queries, int row,
              const Selection* selection, const float* out, CheckResult& result) {
  RowMask visible(BlocksFor(view.n_rows), 0);
  AddRange(visible, {0, row + 1});
  const int group = n_query_heads / view.n_kv_heads;
  for (int head : SampleOfIndices(n_query_heads)) {
    CheckedQuery query;
    query.q = queries + static_cast<size_t>(head) * view.k_dim;
    query.kv_head = head / group;
    query.scale = 1.0f / std::sqrt(static_cast<float>(view.k_dim));
    query.k_mask = query.v_mask = visible;
    if (selection != nullptr && !selection->dense) {
      const int set = selection->per_query_head ? head : query.kv_head;
      const auto n_words = static_cast<size_t>(selection->n_blocks);
      query.k_mask = {selection->KMask(set), n_words};
      query.v_mask = {selection->VMask(set), n_words};
      if (!selection->rest_value.empty()) {
        query.rest_value = selection->rest_value.data() + static_cast<size_t>(head) * view.v_dim;
      }
    }
    CheckOutput(selection != nullptr ? selection->ReadFrom(view) : view, query,
                out + static_cast<size_t>(head) * view.v_dim, result);
  }
}

void NoteCheck(const CheckResult& result, BenchRecord& record) {
  record.max_error = result.error;
  record.error_bound = result.bound;
  record.check_failed = !result.ok;
}

Result<BenchOutcome> Finish(std::span<const BenchRecord> records, bool stopped,
                            const BenchControl& control) {
  if (control.on_records && !records.empty()) {
    const Status written = control.on_records(records);
    if (!written.ok()) return Error{written.error()};
  }
  if (stopped) return BenchOutcome::kStopped;
  for (const BenchRecord& record : records) {
    if (record.check_failed) return BenchOutcome::kCheckFailed;
  }
  return BenchOutcome::kDone;
}

}  // namespace condense
