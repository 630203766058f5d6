#include <fmt/format.h>

#include "bench/rolling.h"

namespace condense {
namespace {

// arXiv 2602.06317 v3, table 6: times over dense, a fresh scan and amortised at reuse R.
struct Preset {
  const char* name;
  int n_query_heads, n_kv_heads, head_dim, n_layers, reuse;
  double fresh, amortised;
};
constexpr Preset kPresets[] = {{"gpt2", 12, 12, 64, 12, 4, 3.1, 11.7},
                               {"gqa", 64, 8, 128, 80, 16, 1.5, 21.1}};
constexpr const char* kFresh = "mean:blocks=2";
constexpr const char* kSource = "arXiv 2602.06317 v3, table 6, on a GPU";

std::string ReuseSpec(const Preset& preset) {
  return fmt::format("{},reuse={}", kFresh, preset.reuse);
}

BenchOptions OptionsFor(const Preset& preset, const BenchOptions& options) {
  BenchOptions one = options;
  one.shape.n_query_heads = preset.n_query_heads;
  one.shape.n_kv_heads = preset.n_kv_heads;
  one.shape.head_dim = preset.head_dim;
  one.policies = {kFresh, ReuseSpec(preset)};
  one.n_model_layers = preset.n_layers;
  if (one.n_rounds == 0) one.n_rounds = 48;  // three cycles of the longer reuse
  return one;
}

}  // namespace

Status CheckSingle(const BenchOptions& options) {
  for (const Preset& preset : kPresets) {
    Status status = CheckOptions(OperatorBench::kDecode, OptionsFor(preset, options));
    if (!status.ok()) return status;
  }
  return {};
}

Result<BenchOutcome> BenchSingle(const BenchOptions& options, const BenchControl& control) {
  BenchOutcome worst = BenchOutcome::kDone;
  for (const Preset& preset : kPresets) {
    const std::map<std::string, Published> published = {
        {kFresh, {preset.fresh, kSource}}, {ReuseSpec(preset), {preset.amortised, kSource}}};
    Result<BenchOutcome> outcome = BenchRolling(OperatorBench::kDecode, OptionsFor(preset, options),
                                                control, preset.name, published);
    if (!outcome.ok() || outcome.value() == BenchOutcome::kStopped) return outcome;
    if (outcome.value() == BenchOutcome::kCheckFailed) worst = BenchOutcome::kCheckFailed;
  }
  return worst;
}

}  // namespace condense
