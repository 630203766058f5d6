// `condense probe mass`: the probe's figures as tables and as JSON Lines.
#include <condense_version.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/compare_plan.h"
#include "app/exit_code.h"
#include "app/output.h"
#include "app/policy_check.h"
#include "app/probe_plan.h"
#include "app/prompt.h"
#include "app/session_setup.h"
#include "app/table.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/mass_probe.h"
#include "lab/records.h"

namespace condense {
namespace {

std::string Percent(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:.2f}%", 100 * share);
}

// Figures by layer: the table of the masses, and what they leave of the output.
std::string MassTable(const MassProbe& probe) {
  TableColumn layer{.title = "layer", .left = false, .cells = {}},
      base{.title = "base", .cells = {}}, oracle{.title = "oracle", .cells = {}},
      policy{.title = "policy", .cells = {}}, best{.title = "recall: oracle", .cells = {}},
      own{.title = "policy", .cells = {}};
  for (const LayerMass& mass : probe.masses) {
    layer.cells.push_back(std::to_string(mass.layer));
    base.cells.push_back(Percent(mass.base));
    oracle.cells.push_back(Percent(mass.oracle));
    policy.cells.push_back(Percent(mass.policy));
    best.cells.push_back(Percent(mass.oracle_recall));
    own.cells.push_back(Percent(mass.policy_recall));
  }
  return RenderTable({layer, base, oracle, policy, best, own}, OutputWidth());
}

std::string IdentityTable(const MassProbe& probe) {
  TableColumn layer{.title = "layer", .cells = {}}, omitted{.title = "omitted", .cells = {}},
      bound{.title = "E_l", .cells = {}}, error{.title = "|o_full - o_S|", .cells = {}},
      identity{.title = "identity off by", .cells = {}};
  for (const LayerIdentity& of : probe.layers) {
    double mass = 0, worst = 0;
    int n = 0;
    for (const HeadIdentity& head : probe.heads) {
      if (head.layer != of.layer) continue;
      mass += head.omitted_mean;
      worst = std::max(worst, head.identity_max);
      ++n;
    }
    layer.cells.push_back(std::to_string(of.layer));
    omitted.cells.push_back(Percent(mass / n));
    bound.cells.push_back(fmt::format("{:.4g}", of.bound_mean));
    error.cells.push_back(
        fmt::format("{:.4g}{}", of.error_mean, of.n_bound_broken > 0 ? " !" : ""));
    identity.cells.push_back(fmt::format("{:.1e}", worst));
  }
  return RenderTable({layer, omitted, bound, error, identity}, OutputWidth());
}

std::string MarginLines(const MassProbe& probe) {
  const MarginCases& cases = probe.figures.margins;
  std::vector<double> margins, deltas;
  for (const TeacherStep& step : probe.steps) {
    margins.push_back(step.margin_dense);
    deltas.push_back(step.delta);
  }
  return fmt::format(
      "margin γ of dense, median {:.3g}; largest logit change δ, median {:.3g}, most {:.3g}\n"
      "δ < γ/2 held: {} equal, {} different; not held: {} equal, {} different\n",
      Quantile(margins, 0.5), Quantile(deltas, 0.5), Maximum(deltas), cases.held_equal,
      cases.held_different, cases.open_equal, cases.open_different);
}

Json Line(const char* kind) { return Json{{"schema", kRecordSchema}, {"record", kind}}; }

std::vector<Json> ProbeLines(const MassProbe& probe) {
  std::vector<Json> lines;
  for (const LayerMass& mass : probe.masses) {
    Json line = Line("layer_mass");
    line.update({{"layer", mass.layer},
                 {"n_heads", mass.n_heads},
                 {"base", mass.base},
                 {"oracle", mass.oracle},
                 {"policy", mass.policy},
                 {"oracle_recall", mass.oracle_recall},
                 {"policy_recall", mass.policy_recall}});
    lines.push_back(std::move(line));
  }
  for (const LayerIdentity& of : probe.layers) {
    Json line = Line("layer_identity");
    line.update({{"layer", of.layer},
                 {"n_decisions", of.n_decisions},
                 {"bound_mean", of.bound_mean},
                 {"error_mean", of.error_mean},
                 {"n_bound_broken", of.n_bound_broken}});
    lines.push_back(std::move(line));
  }
  for (const HeadIdentity& head : probe.heads) {
    Json line = Line("head_identity");
    line.update({{"layer", head.layer},
                 {"query_head", head.query_head},
                 {"omitted_mass_mean", head.omitted_mean},
                 {"omitted_mass_max", head.omitted_max},
                 {"error_max", head.error_max},
                 {"identity_max", head.identity_max}});
    lines.push_back(std::move(line));
  }
  return lines;
}

struct Probed {
  ProbeFlags flags;
  std::string model, model_sha256, text_source, text_sha256;
  MassProbeSpec spec;
};

Status WriteJson(const Probed& of, const MassProbe& probe) {
  Result<RecordWriter> writer = RecordWriter::Create(of.flags.json);
  if (!writer.ok()) return Error{writer.error()};
  Json head = Line("probe");
  head.update({{"version", CONDENSE_VERSION},
               {"commit", CONDENSE_COMMIT},
               {"llama_cpp_commit", CONDENSE_LLAMA_CPP_COMMIT},
               {"model", of.model},
               {"model_sha256", of.model_sha256},
               {"text_source", of.text_source},
               {"text_sha256", of.text_sha256},
               {"offset", of.flags.offset},
               {"visible_rows", probe.n_visible},
               {"policy", of.spec.policy},
               {"base", of.spec.base},
               {"oracle", of.spec.oracle},
               {"n_decisions", of.spec.n_decisions}});
  Status status = writer->WriteLine(head);
  for (const Json& line : ProbeLines(probe)) {
    if (status.ok()) status = writer->WriteLine(line);
  }
  for (const TeacherStep& step : probe.steps) {
    if (status.ok()) status = writer->Write(StepRecord{of.spec.policy, "greedy", step});
  }
  return status;
}

}  // namespace

int ProbeCommand(const ProbeFlags& flags) {
  Probed of;
  of.flags = flags;
  const Result<SourceText> text = FindText(flags.decode);
  if (!text.ok()) return Fail(kExitUsage, text.error());
  DecodeParts parts;
  if (const auto failure = parts.Find(flags.decode)) return Fail(*failure);
  const Plugin& plugin = *parts.plugin;
  const Result<Json> described = DescribedPolicies(plugin);
  if (!described.ok()) return Fail(kExitFailed, described.error());
  const Result<ProbeArms> arms =
      PlanProbe(described.value(), flags.policy,
                [&](const std::string& spec) { return plugin.SetPolicy(spec); });
  if (!arms.ok()) return Fail(kExitUsage, arms.error());
  const Status checked = WarnOfOtherModels({&flags.policy, 1}, parts.file);
  if (!checked.ok()) return Fail(kExitUsage, checked.error());
  if (const auto failure = parts.LoadModel()) return Fail(*failure);
  const Model& model = *parts.model;

  TextCut cut;
  cut.offset = flags.offset;
  cut.prompt_tokens = flags.prompt_tokens;
  cut.n_generate = flags.n_decisions + 1;
  cut.n_positions = model.n_positions();
  cut.n_context = flags.decode.n_context;
  cut.add_bos = model.add_bos();
  cut.bos = model.bos();
  Result<CutText> prompt = CutTokens(model.Tokenise(text->bytes), cut);
  if (!prompt.ok()) return Fail(kExitUsage, prompt.error());
  of.spec = {.prompt = prompt->prompt,
             .continuation = prompt->continuation,
             .policy = arms->policy,
             .base = arms->base,
             .oracle = arms->oracle,
             .layers = flags.layers,
             .n_decisions = flags.n_decisions};
  const int n_context =
      ContextFor(flags.decode, static_cast<int64_t>(prompt->prompt.size()) + flags.n_decisions + 1);
  if (const auto failure = parts.Open(flags.decode, n_context, 0)) return Fail(*failure);

  Progress progress;
  bool stepping = false;
  const Result<MassProbe> probe = ProbeMass(
      *parts.session, plugin, of.spec,
      [&](int n_done, int n_total) { progress.Update("dense prefill", n_done, n_total); },
      [&](int n_done, int n_total) {
        if (!stepping) progress.Stage();
        stepping = true;
        progress.Update("probing", n_done, n_total);
      });
  progress.Clear();
  if (!probe.ok())
    return Fail(kExitFailed, StopRequested() ? "stopped: nothing was measured" : probe.error());

  fmt::print(
      "{}, {} visible rows of {}, blocks of 16 rows\n\n"
      "Attention mass at the probe: base {}\noracle {}\npolicy {}\n{}",
      parts.file.FileName(), FormatCount(probe->n_visible), text->source, of.spec.base,
      of.spec.oracle, of.spec.policy, MassTable(probe.value()));
  fmt::print(
      "recall: share of the mass beyond the base's rows that the chosen blocks hold, mean over "
      "heads\n\n{} decisions on dense's own text, the policy in all layers:\n{}{}",
      of.spec.n_decisions, IdentityTable(probe.value()), MarginLines(probe.value()));
  if (!flags.json.empty()) {
    const Result<std::string> sha256 = parts.file.Sha256();
    if (!sha256.ok()) return Fail(kExitFailed, sha256.error());
    of.model = parts.file.FileName();
    of.model_sha256 = sha256.value();
    of.text_source = text->source;
    of.text_sha256 = TextSha256(text->bytes);
    const Status written = WriteJson(of, probe.value());
    if (!written.ok()) return Fail(kExitFailed, written.error());
    fmt::print("figures: {}\n", flags.json);
  }
  return kExitOk;
}

}  // namespace condense
