#include "lab/mass_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "decode/run.h"
#include "lab/observation.h"
#include "lab/runs.h"

namespace condense {
namespace {

using Observations = std::vector<condense_observation>;

// Rounding of float sums over a head's channels, relative to the layer's bound.
constexpr double kBoundSlack = 1e-4;

// Omitted mass by query head of `layer`, its query being dense's; empty where all was read.
Result<std::vector<double>> Omitted(Session& session, const Plugin& plugin, const std::string& spec,
                                    Token token, int layer) {
  const Status begun = BeginRun(session, plugin, WithDenseBefore(spec, layer));
  if (!begun.ok()) return Error{begun.error()};
  std::vector<double> omitted;
  const ScopedObserver observer(plugin, [&](std::span<const condense_observation> node) {
    for (const condense_observation& seen : node) {
      if (seen.layer == layer) omitted.push_back(seen.omitted_mass);
    }
  });
  const Result<Logits> logits = session.Step(token);
  if (!logits.ok()) return Error{logits.error()};
  return omitted;
}

class Prober {
 public:
  Prober(Session& session, const Plugin& plugin, const MassProbeSpec& spec,
         const ProbeProgress& on_step)
      : session_(session), plugin_(plugin), spec_(spec), on_step_(on_step) {}

  Result<MassProbe> Run(const Session::Progress& on_prefill) {
    Status status = Prefill(on_prefill);
    if (status.ok()) status = FindLayers();
    if (!status.ok()) return Error{status.error()};
    n_total_ = static_cast<int>(3 * layers_.size()) + 2 * spec_.n_decisions;
    for (int layer : layers_) {
      status = MeasureLayer(layer);
      if (!status.ok()) return Error{status.error()};
    }
    status = CheckIdentity();
    if (!status.ok()) return Error{status.error()};
    return std::move(probe_);
  }

 private:
  void StepDone() {
    ++n_done_;
    if (on_step_) on_step_(n_done_, n_total_);
  }

  Status Prefill(const Session::Progress& on_prefill) {
    const std::string arms[] = {spec_.base, spec_.oracle, spec_.policy};
    const Result<DensePrefillResult> prefill =
        DensePrefill(session_, plugin_, spec_.prompt, arms, on_prefill);
    if (!prefill.ok()) return Error{prefill.error()};
    first_token_ =
        spec_.continuation.empty() ? GreedyToken(prefill->logits) : spec_.continuation.front();
    probe_.n_visible = static_cast<int>(spec_.prompt.size()) + 1;
    return Status();
  }

  // Layers whose attention the plug-in computes, or those of them that were asked for.
  Status FindLayers() {
    Result<std::vector<int>> layers = AttentionLayers(session_, plugin_, first_token_);
    if (!layers.ok()) return Error{layers.error()};
    layers_ = std::move(layers.value());
    if (layers_.empty())
      return Error{"the plug-in saw no attention of this model: nothing to probe"};
    if (spec_.layers.empty()) return Status();
    for (int layer : spec_.layers) {
      if (std::find(layers_.begin(), layers_.end(), layer) == layers_.end()) {
        return Error{
            fmt::format("--layers: the model has no layer {} with attention here (it has {} to {})",
                        layer, layers_.front(), layers_.back())};
      }
    }
    layers_ = spec_.layers;
    return Status();
  }

  Status MeasureLayer(int layer) {
    const Result<LayerMass> mass =
        MeasureLayerMass(session_, plugin_, {spec_.base, spec_.oracle, spec_.policy}, first_token_,
                         layer, [&] { StepDone(); });
    if (!mass.ok()) return Error{mass.error()};
    probe_.masses.push_back(mass.value());
    return Status();
  }

  // The policy on dense's own greedy history.
  Status CheckIdentity() {
    Status status = BeginRun(session_, plugin_, "dense");
    if (!status.ok()) return status;
    std::vector<std::vector<float>> dense;
    const Result<std::vector<Token>> greedy =
        GreedyRun(session_, first_token_, spec_.n_decisions, [&](int, Logits logits) {
          dense.emplace_back(logits.begin(), logits.end());
          StepDone();
        });
    if (!greedy.ok()) return Error{greedy.error()};
    status = BeginRun(session_, plugin_, spec_.policy);
    if (!status.ok()) return status;
    Observations seen;
    const ScopedObserver observer(plugin_, [&](std::span<const condense_observation> node) {
      seen.insert(seen.end(), node.begin(), node.end());
    });
    const std::vector<Token> history = FedTokens(first_token_, greedy.value());
    status = TeacherForcedRun(session_, history, [&](int decision, Logits logits) {
      probe_.steps.push_back(
          CompareStep(decision, greedy.value()[decision - 1], dense[decision - 1], logits));
      Note(std::exchange(seen, {}));
      StepDone();
    });
    if (!status.ok()) return status;
    probe_.figures = SummariseTeacher(probe_.steps);
    for (auto& [key, head] : heads_) probe_.heads.push_back(head);
    for (auto& [layer, of] : of_layer_) {
      of.bound_mean /= of.n_decisions;
      of.error_mean /= of.n_decisions;
      probe_.layers.push_back(of);
    }
    for (HeadIdentity& head : probe_.heads) head.omitted_mean /= of_layer_[head.layer].n_decisions;
    return Status();
  }

  // One decision, all layers that left rows out.
  void Note(const Observations& decision) {
    std::map<int, std::vector<HeadOmission>> omissions;
    std::map<int, double> squares;
    for (const condense_observation& seen : decision) {
      HeadIdentity& head = heads_[{seen.layer, seen.query_head}];
      head.layer = seen.layer;
      head.query_head = seen.query_head;
      head.omitted_mean += seen.omitted_mass;
      head.omitted_max = std::max<double>(head.omitted_max, seen.omitted_mass);
      head.error_max = std::max<double>(head.error_max, seen.output_error);
      if (seen.output_norm > 0) {
        head.identity_max =
            std::max<double>(head.identity_max, seen.identity_error / seen.output_norm);
      }
      omissions[seen.layer].push_back({seen.omitted_mass, seen.value_norm_max});
      squares[seen.layer] += static_cast<double>(seen.output_error) * seen.output_error;
    }
    for (const auto& [layer, heads] : omissions) {
      const double bound = LayerBound(heads), error = std::sqrt(squares[layer]);
      LayerIdentity& of = of_layer_[layer];
      of.layer = layer;
      ++of.n_decisions;
      of.bound_mean += bound;
      of.error_mean += error;
      of.n_bound_broken += error > bound * (1 + kBoundSlack) + 1e-6;
    }
  }

  Session& session_;
  const Plugin& plugin_;
  const MassProbeSpec& spec_;
  const ProbeProgress& on_step_;
  Token first_token_ = 0;
  int n_done_ = 0, n_total_ = 1;
  std::vector<int> layers_;
  std::map<std::pair<int, int>, HeadIdentity> heads_;
  std::map<int, LayerIdentity> of_layer_;
  MassProbe probe_;
};

}  // namespace

std::string WithDenseBefore(const std::string& spec, int layer) {
  if (layer == 0) return spec;
  return fmt::format("{}{}dense_layers=0-{}", spec, spec.find(':') == std::string::npos ? ":" : ",",
                     layer - 1);
}

Result<LayerMass> MeasureLayerMass(Session& session, const Plugin& plugin, const MassArms& arms,
                                   Token token, int layer, const std::function<void()>& on_step) {
  std::vector<double> left[3];  // base, oracle, policy
  const std::string* specs[] = {&arms.base, &arms.oracle, &arms.policy};
  for (int arm = 0; arm < 3; ++arm) {
    // Where the policy's frame reads all rows, its oracle does: `layered` in a short text.
    if (arm == 1 && left[0].empty()) {
      if (on_step) on_step();
      continue;
    }
    Result<std::vector<double>> omitted = Omitted(session, plugin, *specs[arm], token, layer);
    if (!omitted.ok()) return Error{omitted.error()};
    left[arm] = std::move(omitted.value());
    if (on_step) on_step();
  }
  LayerMass mass;
  mass.layer = layer;
  mass.n_heads = static_cast<int>(std::max({left[0].size(), left[1].size(), left[2].size()}));
  for (std::vector<double>& arm : left) arm.resize(mass.n_heads, 0.0);
  mass.base = 1 - Mean(left[0]);
  mass.oracle = 1 - Mean(left[1]);
  mass.policy = 1 - Mean(left[2]);
  std::vector<double> oracle_recall, policy_recall;
  for (int h = 0; h < mass.n_heads; ++h) {
    if (left[0][h] <= 0) continue;
    oracle_recall.push_back(1 - left[1][h] / left[0][h]);
    policy_recall.push_back(1 - left[2][h] / left[0][h]);
  }
  mass.oracle_recall = Mean(oracle_recall);
  mass.policy_recall = Mean(policy_recall);
  return mass;
}

Result<MassProbe> ProbeMass(Session& session, const Plugin& plugin, const MassProbeSpec& spec,
                            const Session::Progress& on_prefill, const ProbeProgress& on_step) {
  return Prober(session, plugin, spec, on_step).Run(on_prefill);
}

}  // namespace condense
