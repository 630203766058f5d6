// What the operator benchmarks settle before they run: layers, rows, where rows come from, and the
// policies by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/operators.h"
#include "select/policy.h"

namespace condense {

struct NamedPolicy {
  std::string spec;  // canonical
  std::unique_ptr<Policy> policy;
  int reuse = 1;  // steps that one choice serves; 0: not known beforehand
};

struct Plan {
  int n_caches = 1;  // a layer each for dense and ggml
  int n_layers = 1;  // of a sparse arm's pass: whole steps of the model, the caches' views
  int n_rounds = 1, n_query_rows = 1;
  int steps_a_pass = 1;  // of the rolling loop
  int n_warm = 0;        // untimed steps before each timed pass, where rows come from the cache
  int cycle = 1;         // rounds that are whole cycles of every reuse
  int first_row = 0;     // the first row that is appended
  int n_capacity = 0;    // rows
  bool from_memory = true;
  std::vector<NamedPolicy> policies;

  const char* source() const { return from_memory ? "memory" : "cache"; }
};

Result<Plan> MakePlan(OperatorBench bench, const BenchOptions& options);

}  // namespace condense
