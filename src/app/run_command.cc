// `condense run`: text generated under a policy, streamed, with what it cost in the closing line.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>

#include "app/commands.h"
#include "app/exact_mode.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/policy_check.h"
#include "app/prompt.h"
#include "app/session_setup.h"
#include "app/stepped_mode.h"
#include "base/clock.h"
#include "decode/sampler.h"
#include "decode/stop.h"
#include "lab/cells.h"
#include "lab/compare.h"

namespace condense {
namespace {

// The file's text, then the prompt behind it.
Result<std::string> UserText(const RunFlags& flags) {
  if (flags.decode.file.empty() && !flags.decode.prompt) {
    return Error{"the prompt is empty: give a text with -p, or a file with -f"};
  }
  std::string text;
  if (!flags.decode.file.empty()) {
    DecodeFlags only_file = flags.decode;
    only_file.prompt.reset();
    const Result<SourceText> file = FindText(only_file);
    if (!file.ok()) return Error{file.error()};
    text = file->bytes;
  }
  if (flags.decode.prompt) {
    if (flags.decode.prompt->empty() && text.empty())
      return Error{"the prompt is empty: give a text behind -p"};
    text += (text.empty() ? "" : "\n\n") + *flags.decode.prompt;
  }
  return text;
}

// The prompt's tokens: in the model's chat template, or as they are.
std::vector<Token> EncodePrompt(const Model& model, const std::string& text, bool raw) {
  const Result<std::string> chat =
      raw ? Result<std::string>(Error{""}) : model.ApplyChatTemplate(text);
  if (chat.ok()) return model.TokeniseTemplate(chat.value());
  if (!raw) PrintNote(chat.error() + ": the text goes on without one (as with --raw)");
  std::vector<Token> prompt;
  if (model.add_bos()) prompt.push_back(model.bos());
  const std::vector<Token> tokens = model.Tokenise(text);
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  return prompt;
}

// What the first step took beyond the mean of the others.
std::string SetUpWords(double first_seconds, double seconds, int n_steps) {
  if (n_steps < 2) return "not known";
  const double usual = (seconds - first_seconds) / (n_steps - 1);
  return fmt::format("{:.2f} s", std::max(0.0, first_seconds - usual));
}

std::string FallbackWords(const CounterSnapshot& counters) {
  std::string fallbacks;
  for (int reason = 0; reason < CONDENSE_FALLBACK_COUNT; ++reason) {
    if (const uint64_t n = counters.process.fallbacks[reason]) {
      fallbacks += fmt::format("{}{} {}", fallbacks.empty() ? "" : ", ",
                               FormatCount(static_cast<int64_t>(n)), FallbackName(reason));
    }
  }
  return fallbacks.empty() ? "none" : fallbacks;
}

// Decodes dense again and compares; the command's exit code.
int VerifyExact(const ExactMode& exact, Session& session, const Plugin& plugin,
                const std::vector<float>& first, const std::vector<Token>& text,
                const SamplerOptions& sampling) {
  Progress progress;
  const Status equal = exact.CheckAgainstDense(
      session, plugin, first, text, sampling,
      [&](int n_done, int n_total) { progress.Update("dense again", n_done, n_total); });
  progress.Clear();
  if (!equal.ok()) return Fail(kExitFailed, "--verify-exact: " + equal.error());
  PrintNote(fmt::format("--verify-exact: all {} tokens are those of dense decoding",
                        FormatCount(static_cast<int64_t>(text.size()))));
  return kExitOk;
}

}  // namespace

int RunCommand(const RunFlags& flags) {
  if (flags.n_generate < 1) {
    return Fail(kExitUsage,
                fmt::format("-n {} generates nothing: give 1 or more", flags.n_generate));
  }
  const bool is_exact = flags.mode == "exact";
  if (!is_exact && (!flags.draft.empty() || flags.draft_tokens != "auto" || flags.verify_exact)) {
    return Fail(kExitUsage, "--draft, --draft-tokens and --verify-exact go with --mode exact");
  }
  std::optional<ExactMode> exact;
  if (is_exact) {
    Result<ExactMode> read = ExactMode::Read(flags, AskedForPolicy(flags.policy));
    if (!read.ok()) return Fail(kExitUsage, read.error());
    exact = std::move(read.value());
  }
  Result<std::optional<SteppedMode>> stepped_mode = SteppedMode::Read(flags);
  if (!stepped_mode.ok()) return Fail(kExitUsage, stepped_mode.error());
  std::optional<SteppedMode>& stepped = stepped_mode.value();
  const Result<std::string> text = UserText(flags);
  if (!text.ok()) return Fail(kExitUsage, text.error());
  const Result<ModelFile> file = FindModel(flags.decode);
  if (!file.ok()) return Fail(kExitUsage, file.error());
  const Result<Plugin> plugin = LoadPlugin();
  if (!plugin.ok()) return Fail(kExitFailed, plugin.error());
  std::string wanted = exact ? exact->policy() : flags.policy;
  if (stepped && AskedForPolicy(flags.policy).empty()) wanted = stepped->policy();
  Result<std::string> policy =
      wanted.empty() ? Result<std::string>(plugin->Policy()) : plugin->SetPolicy(wanted);
  if (!policy.ok()) return Fail(kExitUsage, policy.error());
  if (exact) {
    const Status drafts = exact->SetPolicyInForce(policy.value());
    if (!drafts.ok()) return Fail(kExitUsage, drafts.error());
    if (exact->policy().empty()) policy = std::string("dense");
  }
  const std::string asked = exact ? exact->policy() : AskedForPolicy(flags.policy);
  if (policy.value() != "dense") {
    const Status checked = WarnOfOtherModels({&asked, 1}, file.value());
    if (!checked.ok()) return Fail(kExitUsage, checked.error());
  }
  if (flags.decode.n_context > 0) {
    const Status fits =
        CheckMemory(file.value(), flags.decode, {.n_context = flags.decode.n_context});
    if (!fits.ok()) return Fail(kExitUsage, fits.error());
  }
  Result<std::unique_ptr<Model>> loaded = Model::Load(file->path);
  if (!loaded.ok()) return Fail(kExitFailed, loaded.error());
  OpenModel opened;
  opened.model = std::move(loaded.value());
  if (exact) {
    const Status can = CheckRowsCanBeRemoved(*opened.model);
    if (!can.ok()) return Fail(kExitUsage, can.error());
  }
  const std::vector<Token> prompt = EncodePrompt(*opened.model, text.value(), flags.raw);
  if (prompt.empty()) return Fail(kExitUsage, "the prompt is empty: its text gives no tokens");
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  const Status length =
      CheckLength(n_prompt, flags.n_generate, flags.decode.n_context, opened.model->n_positions());
  if (!length.ok()) return Fail(kExitUsage, length.error());
  const int n_context = ContextFor(flags.decode, n_prompt + flags.n_generate);
  const Status fits = CheckMemory(file.value(), flags.decode, {.n_context = n_context});
  if (!fits.ok()) return Fail(kExitUsage, fits.error());
  if (stepped) {
    const Status holds = stepped->Check(file.value(), *opened.model, policy.value(), n_prompt);
    if (!holds.ok()) return Fail(kExitUsage, holds.error());
  }
  const auto open = [&](const Model& model) {
    return OpenSession(model, plugin.value(), flags.decode, n_context);
  };
  Result<std::unique_ptr<Session>> session_of = open(*opened.model);
  if (!session_of.ok()) return Fail(kExitFailed, session_of.error());
  opened.session = std::move(session_of.value());

  SamplerOptions sampling = {.temperature = flags.temperature,
                             .top_k = flags.top_k,
                             .top_p = flags.top_p,
                             .min_p = flags.min_p};
  sampling.seed = flags.seed >= 0 ? static_cast<uint32_t>(flags.seed) : std::random_device()();
  Sampler sampler(sampling);
  PrintNote(fmt::format("{}, {}", exact ? "draft " + exact->draft() : "policy " + policy.value(),
                        sampler.is_greedy() ? "temperature 0: the likeliest token, always"
                                            : fmt::format("temperature {}, seed {}",
                                                          sampling.temperature, sampling.seed)));
  const auto choose = [&](Logits logits) { return sampler.Choose(logits); };

  // A prefill is dense by contract; a last batch of one token would be taken for decoding.
  const Result<std::string> dense = plugin->SetPolicy("dense");
  if (!dense.ok()) return Fail(kExitFailed, dense.error());
  if (exact) {
    const Status same = exact->MakeIdentical(file->path, prompt, open, opened);
    if (!same.ok()) return Fail(kExitFailed, same.error());
  }
  const Model& model = *opened.model;
  Session& session = *opened.session;
  const Clock::time_point prefill_start = Clock::now();
  Progress progress;
  Result<Logits> logits = session.Prefill(
      prompt, [&](int n_done, int n_total) { progress.Update("prefill", n_done, n_total); });
  progress.Clear();
  if (!logits.ok()) return Fail(kExitFailed, logits.error());
  const double prefill_seconds = SecondsSince(prefill_start);
  const bool idle = plugin->Counters().process.nodes == 0;
  if (idle) {
    const std::string words = "the plug-in is loaded but idle: it saw no attention of this model";
    if (policy.value() != "dense" && (exact || stepped || !asked.empty()))
      return Fail(kExitFailed, words + ", so policy " + policy.value() + " cannot run");
    PrintWarning(words + "; llama.cpp's own attention runs, dense");
  }
  std::vector<float> first;  // logits
  if (exact) {
    first.assign(logits->begin(), logits->end());
    const Status begun = exact->Begin(session, plugin.value(), prompt);
    if (!begun.ok()) return Fail(kExitFailed, begun.error());
    PrintNote(exact->Promise());
  } else {
    const Result<std::string> in_force = plugin->SetPolicy(policy.value());
    if (!in_force.ok()) return Fail(kExitFailed, in_force.error());
  }
  plugin->ResetCounters();
  if (stepped) stepped->Begin(session, plugin.value());

  int n_steps = 0, n_shown = 0;
  std::string failure;
  const Clock::time_point start = Clock::now();
  const auto since_start = [&] { return SecondsSince(start); };
  const auto show = [&](Token token) {
    if (model.IsEndOfGeneration(token)) return false;
    const std::string piece = model.Piece(token);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    return ++n_shown < flags.n_generate;
  };
  double first_seconds = 0;  // until the first step is done: it sets summaries and codes up
  std::vector<Token> history = prompt;
  if (exact) {
    const Status done = exact->Run(history, first, choose, show);
    if (!done.ok()) failure = done.error();
    n_steps = static_cast<int>(history.size() - prompt.size()) - 1;
  }
  while (!exact) {
    const Token token = choose(logits.value());
    if (!show(token)) break;
    logits = stepped ? stepped->Step(token) : session.Step(token);
    if (!logits.ok()) {
      failure = logits.error();
      break;
    }
    if (++n_steps == 1) first_seconds = since_start();
  }
  const double seconds = since_start();
  fmt::print("\n");
  std::fflush(stdout);

  const CounterSnapshot counters = plugin->Counters();
  PrintNote(
      fmt::format("{} tokens, {:.1f} a second at depth {}; prefill {:.0f} a second, first token "
                  "after {:.2f} s, set-up {} {}; KV read{} {:.1f} % of dense; fallbacks: {}",
                  n_shown, n_steps > 0 ? n_steps / seconds : 0.0, FormatCount(n_prompt),
                  static_cast<double>(n_prompt) / prefill_seconds, prefill_seconds,
                  exact ? "with the probe" : "in the step after it",
                  exact ? fmt::format("{:.2f} s", exact->begin_seconds())
                        : SetUpWords(first_seconds, seconds, n_steps),
                  exact || stepped ? " by one-row steps" : "", 100 * counters.total.ReadShare(),
                  FallbackWords(counters)));
  if (exact) PrintNote(exact->Words());
  if (stepped) PrintNote(stepped->Words());
  if (!failure.empty()) return Fail(kExitFailed, failure);
  const bool was_sparse = exact ? exact->ran_sparse() : !stepped || stepped->ran_sparse();
  if (n_steps > 0 && !idle && was_sparse && !IsDense(policy.value())) {
    const Status measured = CheckCounters(policy.value(), true, counters);
    if (!measured.ok()) return Fail(kExitFailed, measured.error());
  }
  if (!flags.verify_exact) return kExitOk;
  const std::vector<Token> generated(history.begin() + n_prompt, history.end());
  return VerifyExact(*exact, session, plugin.value(), first, generated, sampling);
}

}  // namespace condense
