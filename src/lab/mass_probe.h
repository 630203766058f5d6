// How much attention mass a policy's rows hold, layer by layer, beside the rows that are always
// read and the truly heaviest blocks (arXiv 2602.06317 v3, table 3); and the identity of omitted
// mass, its bound and the margin condition, checked on decisions.
//
// Every layer's query is dense's: the layers before it are kept dense (`dense_layers`), so that a
// layer's figure is of its own choice alone. One probe is one decision; blocks are the plug-in's
// 16 rows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "metrics/teacher.h"

namespace condense {

struct MassProbeSpec {
  std::vector<Token> prompt;
  // The text's own tokens after the prompt; the first is the probe. Empty: the greedy token is.
  std::vector<Token> continuation;
  std::string policy;       // canonical
  std::string base;         // the same frame without distant blocks
  std::string oracle;       // the same frame with the heaviest blocks
  std::vector<int> layers;  // empty: all that have attention
  int n_decisions = 32;     // of the checks
};

// Means over the layer's query heads.
struct LayerMass {
  int layer = 0, n_heads = 0;
  double base = 0, oracle = 0, policy = 0;  // share of the full attention weights
  // Share of the mass beyond the base's rows that the chosen blocks hold, a head at a time; heads
  // with none of it are left out.
  double oracle_recall = 0, policy_recall = 0;
};

// Of one layer and query head over the decisions, the policy in force in all layers.
struct HeadIdentity {
  int layer = 0, query_head = 0;
  double omitted_mean = 0, omitted_max = 0;
  double error_max = 0;     // |o_full - o_S|
  double identity_max = 0;  // of |(o_full - o_S) - epsilon (o_D - o_S)| / |o_full|
};

struct LayerIdentity {
  int layer = 0, n_decisions = 0;
  double bound_mean = 0;   // E_l
  double error_mean = 0;   // of the layer's heads together
  int n_bound_broken = 0;  // error above E_l by more than rounding: must stay 0
};

struct MassProbe {
  int n_visible = 0;  // rows at the probe
  std::vector<LayerMass> masses;
  std::vector<HeadIdentity> heads;
  std::vector<LayerIdentity> layers;
  std::vector<TeacherStep> steps;  // gamma and delta of each decision
  TeacherFigures figures;          // the four margin cases among them
};

// `spec` with every layer before `layer` kept dense.
std::string WithDenseBefore(const std::string& spec, int layer);

// Steps done and to do, the prefill apart.
using ProbeProgress = std::function<void(int n_done, int n_total)>;

// Specs that differ in their distant blocks alone: none, the heaviest, the policy's.
struct MassArms {
  std::string base, oracle, policy;
};
// One layer's masses at the decision after `token`, behind a prefill, each arm from its own step;
// `on_step` after each of the three. Masses are 1 where an arm leaves nothing out.
Result<LayerMass> MeasureLayerMass(Session& session, const Plugin& plugin, const MassArms& arms,
                                   Token token, int layer, const std::function<void()>& on_step);

Result<MassProbe> ProbeMass(Session& session, const Plugin& plugin, const MassProbeSpec& spec,
                            const Session::Progress& on_prefill, const ProbeProgress& on_step);

}  // namespace condense
