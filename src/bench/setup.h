// What every operator benchmark runs on: the plan, caches, queries, the yardstick and ggml's
// operator; and the heads and layers that --check samples.
#pragma once

#include <memory>
#include <set>

#include "bench/check.h"
#include "bench/host_operator.h"
#include "bench/operator_arm.h"
#include "bench/plan.h"
#include "bench/record.h"
#include "bench/rounds.h"

namespace condense {

struct BenchSetup {
  Plan plan;
  std::unique_ptr<Yard> yard;
  MadeCaches caches;
  std::unique_ptr<MadeQueries> queries;
  std::unique_ptr<HostOperator> host;  // null where it was not asked for
  std::unique_ptr<Policy> dense;

  static Result<std::unique_ptr<BenchSetup>> Make(OperatorBench bench, const BenchOptions& options);
};

// Visible (query row, cache row) pairs of the causal query rows [first_row, first_row + n).
double VisiblePairs(int first_row, int n);

// A record with everything but times, bytes and operations.
BenchRecord NewRecord(const char* bench, const std::string& arm, const Shape& shape,
                      const Plan& plan, int n_threads);

// Some of n: the first, the middle and the last.
std::set<int> SampleOfIndices(int n);

// Checks one query row of one layer: `out` [n_query_heads, head_dim] against the rows of
// `selection`, or the rows up to `row` where it is dense or null.
void CheckRow(const KvView& view, int n_query_heads, const float* queries, int row,
              const Selection* selection, const float* out, CheckResult& result);

// Writes what --check found into the record.
void NoteCheck(const CheckResult& result, BenchRecord& record);

// Hands the records over; kCheckFailed where one's error passed its bound.
Result<BenchOutcome> Finish(std::span<const BenchRecord> records, bool stopped,
                            const BenchControl& control);

}  // namespace condense
