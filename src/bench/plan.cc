#include "bench/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "bench/made_cache.h"
#include "bench/memory.h"
#include "select/registry.h"

namespace condense {
namespace {

constexpr int kMaxRows = 1 << 24;
constexpr int kMaxCaches = 256;
// A pass of the rolling loop lasts at most this many steps, and all together grow the cache by at
// most a sixteenth: the rows that a figure stands for stay about the same.
constexpr int kMaxStepsAPass = 32;

Status CheckShape(const Shape& shape) {
  if (shape.n_kv_heads < 1 || shape.n_query_heads < 1 ||
      shape.n_query_heads % shape.n_kv_heads != 0) {
    return Error{fmt::format("--kv-heads {} does not divide --query-heads {}", shape.n_kv_heads,
                             shape.n_query_heads)};
  }
  const bool quantised = shape.k_type == KvType::kQ8_0 || shape.v_type == KvType::kQ8_0;
  const int unit = quantised ? kQ8BlockValues : 16;
  if (shape.head_dim < unit || shape.head_dim > 256 || shape.head_dim % unit != 0) {
    return Error{fmt::format(
        "--head-dim {} is none that the kernels take with {}/{}: a multiple of {} up to 256",
        shape.head_dim, KvTypeName(shape.k_type), KvTypeName(shape.v_type), unit)};
  }
  if (shape.n_rows < 2 || shape.n_rows > kMaxRows) {
    return Error{fmt::format("--rows {} is out of range: 2 to {}", shape.n_rows, kMaxRows)};
  }
  return {};
}

Result<std::vector<NamedPolicy>> MakePolicies(const std::vector<std::string>& specs) {
  std::vector<NamedPolicy> policies;
  for (const std::string& text : specs) {
    Result<BoundPolicy> made = MakePolicy(text);
    if (!made.ok()) return Error{made.error()};
    if (made->policy->is_dense()) continue;  // measured in any case
    NamedPolicy policy{made->spec, std::move(made->policy), 1};
    const Result<PolicySpec> spec = ParseSpec(policy.spec);
    for (const auto& [key, value] : spec->keys) {
      if (key == "reuse") policy.reuse = static_cast<int>(ParseInt(value).value());
    }
    policies.push_back(std::move(policy));
  }
  return policies;
}

int DefaultRounds(OperatorBench bench) {
  switch (bench) {
    case OperatorBench::kDecode:
      return 32;
    case OperatorBench::kSelect:
      return 80;  // five blocks fill
    case OperatorBench::kVerify:
    case OperatorBench::kPrefill:
      return 9;
  }
  return 1;
}

int RoundUp(int n, int unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Result<Plan> MakePlan(OperatorBench bench, const BenchOptions& options) {
  const Shape& shape = options.shape;
  if (const Status status = CheckShape(shape); !status.ok()) return Error{status.error()};
  Plan plan;
  const bool rolling = bench == OperatorBench::kDecode || bench == OperatorBench::kSelect;
  if (rolling) {
    Result<std::vector<NamedPolicy>> policies = MakePolicies(options.policies);
    if (!policies.ok()) return Error{policies.error()};
    plan.policies = std::move(policies.value());
    if (bench == OperatorBench::kSelect && plan.policies.empty()) {
      return Error{"give a policy whose selection is to be measured: --policy mean:blocks=8"};
    }
  } else if (!options.policies.empty()) {
    return Error{"several query rows are always dense: --policy is for decode and select"};
  }
  plan.n_rounds = options.n_rounds > 0 ? options.n_rounds : DefaultRounds(bench);
  if (!rolling) {
    const int otherwise = bench == OperatorBench::kVerify ? 8 : 512;
    plan.n_query_rows =
        options.n_query_rows > 0 ? options.n_query_rows : std::min(otherwise, shape.n_rows);
    if (bench == OperatorBench::kVerify && (plan.n_query_rows < 2 || plan.n_query_rows > 16)) {
      return Error{fmt::format("--query-rows {}: verification has 2 to 16", plan.n_query_rows)};
    }
    if (plan.n_query_rows > shape.n_rows) {
      return Error{fmt::format("--query-rows {} are the newest of --rows {}: there are fewer",
                               plan.n_query_rows, shape.n_rows)};
    }
  } else if (options.n_query_rows > 1) {
    return Error{fmt::format("--query-rows {}: a decode step has one; `bench verify` takes more",
                             options.n_query_rows)};
  }

  const uint64_t cache_bytes = MadeCaches::BytesFor(shape, 1, 1, shape.n_rows);
  const uint64_t pass_bytes =
      options.buffer_bytes > 0 ? options.buffer_bytes : MemoryPassBytes(options.free_bytes);
  if (options.n_layers > 0) {
    plan.n_caches = options.n_layers;
    plan.from_memory = plan.n_caches * cache_bytes > LastLevelCacheBytes();
  } else if (bench == OperatorBench::kPrefill) {
    plan.n_caches = 2;
  } else {
    plan.n_caches = static_cast<int>(
        std::clamp<uint64_t>((pass_bytes + cache_bytes - 1) / cache_bytes, 1, kMaxCaches));
  }
  plan.n_layers = plan.n_caches;
  if (rolling && plan.from_memory) plan.n_layers = RoundUp(plan.n_caches, options.n_model_layers);

  if (rolling) {
    // A choice that serves several steps is timed in whole cycles.
    int steps_together = 1;
    for (const NamedPolicy& policy : plan.policies) {
      if (policy.reuse > 1) steps_together = std::lcm(steps_together, policy.reuse);
    }
    if (plan.from_memory) {
      plan.cycle = steps_together;
      plan.n_rounds = RoundUp(plan.n_rounds, steps_together);
    } else {
      const int growth = std::max(256, shape.n_rows / 16);
      plan.n_warm = 1;
      plan.steps_a_pass = RoundUp(
          std::clamp(growth / plan.n_rounds - plan.n_warm, 1, kMaxStepsAPass), steps_together);
    }
    const int n_steps = 2 + plan.n_rounds * (plan.n_warm + plan.steps_a_pass);
    if (n_steps > std::max(256, shape.n_rows)) {
      return Error{
          fmt::format("--rounds {} append {} rows to a cache of {}: a figure would stand for no "
                      "number of rows; "
                      "pass fewer rounds or more rows",
                      plan.n_rounds, n_steps, shape.n_rows)};
    }
    // The loop ends at the rows asked for: an index grows at round numbers of rows, and a step in
    // ten thousand must not stand for one in fifty.
    plan.first_row = std::max(1, shape.n_rows - n_steps - 1);
    plan.n_capacity = plan.first_row + n_steps + 1;
  } else {
    plan.first_row = shape.n_rows - plan.n_query_rows;
    plan.n_capacity = shape.n_rows;
    plan.n_warm = plan.from_memory ? 0 : 1;
  }

  // Summaries of two columns at most.
  const uint64_t summary_bytes = 4 * static_cast<uint64_t>(BlocksFor(plan.n_capacity)) *
                                 shape.n_kv_heads * shape.head_dim * plan.n_layers *
                                 plan.policies.size();
  const uint64_t all_bytes =
      MadeCaches::BytesFor(shape, plan.n_layers, plan.n_caches, plan.n_capacity) + pass_bytes +
      summary_bytes;
  if (options.free_bytes > 0 && all_bytes > options.free_bytes / 10 * 9) {
    return Error{fmt::format(
        "{} caches of {} rows, their summaries and the stream's buffer take {:.1f} GB, and {:.1f} "
        "GB are free: pass a smaller --rows, --layers or --buffer",
        plan.n_caches, shape.n_rows, 1e-9 * static_cast<double>(all_bytes),
        1e-9 * static_cast<double>(options.free_bytes))};
  }
  return plan;
}

Status CheckOptions(OperatorBench bench, const BenchOptions& options) {
  const Result<Plan> plan = MakePlan(bench, options);
  return plan.ok() ? Status() : Status(Error{plan.error()});
}

}  // namespace condense
