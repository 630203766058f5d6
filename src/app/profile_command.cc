// `condense profile duo`: the model's heads measured, as the profile that the policy duo reads.
#include <condense_version.h>
#include <fmt/format.h>

#include <memory>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/output.h"
#include "app/output_file.h"
#include "app/prefixes.h"
#include "app/session_setup.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/head_need.h"
#include "select/registry.h"

namespace condense {
namespace {

// A comment must stay one line.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

struct Profiled {
  const ProfileFlags& flags;
  std::string model, model_sha256;
  std::vector<SourceText> texts;
  std::vector<Prefix> prefixes;
};

// Comments, then a line a layer. Says nothing of when and where: the same measurement gives the
// same bytes.
std::string ProfileText(const Profiled& of, const HeadNeeds& needs) {
  const double largest = needs.Largest();
  std::string text = fmt::format(
      "# condense profile duo {}: attention mass outside the first {} and the last {} rows, mean "
      "over decode steps and a KV head's query heads, divided by the largest, {:.6f}\n"
      "# model: {}, SHA-256 {}\n",
      CONDENSE_VERSION, of.flags.sink, of.flags.window, largest, OneLine(of.model),
      of.model_sha256);
  for (const Prefix& prefix : of.prefixes) {
    const SourceText& source = of.texts[prefix.text];
    text += fmt::format(
        "# text: {}, SHA-256 {}: {} tokens from token {} on, then {} steps on its own tokens\n",
        OneLine(source.source), TextSha256(source.bytes), prefix.prompt.size(), prefix.offset,
        of.flags.n_decisions);
  }
  text += "# a line a layer, its KV heads: from 0 (streams) to 1 (whole)\n";
  for (int layer = 0; layer < needs.n_layers; ++layer) {
    for (int g = 0; g < needs.n_kv_heads; ++g) {
      const double mass = needs.mass[static_cast<size_t>(layer) * needs.n_kv_heads + g];
      text += fmt::format("{}{:.4f}", g == 0 ? "" : "\t", largest > 0 ? mass / largest : 0.0);
    }
    text += '\n';
  }
  return text;
}

Result<std::vector<Prefix>> Cut(const Model& model, const ProfileFlags& flags,
                                const std::vector<SourceText>& texts) {
  Result<std::vector<Prefix>> prefixes = CutTexts(
      model, flags.decode, texts, {flags.n_prefixes, flags.prompt_tokens, flags.n_decisions});
  if (!prefixes.ok()) return prefixes;
  const auto n_prompt = static_cast<int>(prefixes.value()[0].prompt.size());
  if (n_prompt <= flags.sink + flags.window) {
    return Error{fmt::format(
        "a prompt of {} tokens has nothing outside the first {} and the last {} rows: give "
        "--prompt-tokens {} or more",
        n_prompt, flags.sink, flags.window, flags.sink + flags.window + 1)};
  }
  return prefixes;
}

Result<HeadNeeds> Measure(Session& session, const Plugin& plugin, const Profiled& of) {
  HeadNeedSpec spec{.prefixes = {}, .sink = of.flags.sink, .window = of.flags.window};
  for (const Prefix& prefix : of.prefixes)
    spec.prefixes.push_back({prefix.prompt, prefix.continuation});
  Progress progress;
  return MeasureHeadNeeds(
      session, plugin, spec,
      [&](int n_done, int n_total) {
        progress.Update("dense prefill", n_done, n_total);
        if (n_done == n_total) progress.Stage();
      },
      [&](int n_done, int n_total) { progress.Update("measuring layers", n_done, n_total); });
}

}  // namespace

int ProfileCommand(const ProfileFlags& flags) {
  if (flags.output.empty())
    return Fail(kExitUsage, "no file for the profile: name one with -o FILE");
  Profiled of{flags, {}, {}, {}, {}};
  Result<std::vector<SourceText>> texts = FindTexts(flags.decode, flags.files);
  if (!texts.ok()) return Fail(kExitUsage, texts.error());
  of.texts = std::move(texts.value());
  DecodeParts parts;
  if (const auto failure = parts.Find(flags.decode)) return Fail(*failure);
  const Status writable = CheckWritable(flags.output, "profile");
  if (!writable.ok()) return Fail(kExitUsage, writable.error());
  if (const auto failure = parts.LoadModel()) return Fail(*failure);
  Result<std::vector<Prefix>> prefixes = Cut(*parts.model, flags, of.texts);
  if (!prefixes.ok()) return Fail(kExitUsage, prefixes.error());
  of.prefixes = std::move(prefixes.value());
  const int n_context = ContextFor(
      flags.decode, static_cast<int64_t>(of.prefixes[0].prompt.size()) + flags.n_decisions);
  if (const auto failure = parts.Open(flags.decode, n_context, 0)) return Fail(*failure);
  const Result<std::string> sha256 = parts.file.Sha256();
  if (!sha256.ok()) return Fail(kExitFailed, sha256.error());
  of.model = parts.file.FileName();
  of.model_sha256 = sha256.value();

  const Result<HeadNeeds> needs = Measure(*parts.session, *parts.plugin, of);
  if (!needs.ok()) {
    return Fail(kExitFailed, StopRequested() ? "stopped: no profile was written" : needs.error());
  }
  const Status written = WriteWholeFile(flags.output, "profile", ProfileText(of, needs.value()));
  if (!written.ok()) return Fail(kExitFailed, written.error());
  fmt::print("{}: {} layers of {} KV heads, {} steps a layer; largest mass outside {:.2f} %\n",
             flags.output, needs->n_layers, needs->n_kv_heads, FormatCount(needs->n_steps),
             100 * needs->Largest());
  const PolicySpec use{.name = "duo",
                       .keys = {{"sink", std::to_string(flags.sink)},
                                {"window", std::to_string(flags.window)},
                                {"profile", flags.output},
                                {"sparsity", "50%"}}};
  fmt::print("use: {}\n", PrintSpec(use));
  return kExitOk;
}

}  // namespace condense
