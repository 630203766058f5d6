// `condense run`: text generated under a policy, streamed, with what it cost in the closing line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/policy_check.h"
#include "app/prompt.h"
#include "app/session_setup.h"
#include "decode/stop.h"
#include "lab/compare.h"
#include "llama.h"

namespace condense {
namespace {

using SamplerPtr = std::unique_ptr<llama_sampler, void (*)(llama_sampler*)>;

// llama.cpp's own chain, in the order of its tools: top-k, top-p, min-p, temperature, draw.
SamplerPtr MakeSampler(const RunFlags& flags, uint32_t seed) {
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  if (flags.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(flags.top_k));
  llama_sampler_chain_add(chain, llama_sampler_init_top_p(static_cast<float>(flags.top_p), 1));
  llama_sampler_chain_add(chain, llama_sampler_init_min_p(static_cast<float>(flags.min_p), 1));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(static_cast<float>(flags.temperature)));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
  return SamplerPtr(chain, llama_sampler_free);
}

Token Sample(llama_sampler* sampler, Logits logits, std::vector<llama_token_data>& candidates) {
  candidates.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {static_cast<Token>(i), logits[i], 0};
  llama_token_data_array all = {candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(sampler, &all);
  CONDENSE_CHECK(all.selected >= 0);
  const Token token = all.data[all.selected].id;
  llama_sampler_accept(sampler, token);
  return token;
}

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

// What --policy or CONDENSE_POLICY names; else "": the default is in force, where it can be.
std::string AskedForPolicy(const RunFlags& flags) {
  const char* wanted = std::getenv("CONDENSE_POLICY");
  return !flags.policy.empty() ? flags.policy : wanted != nullptr ? wanted : "";
}

// What the first step took beyond the mean of the others.
std::string SetUpWords(double first_seconds, double seconds, int n_steps) {
  if (n_steps < 2) return "not known";
  const double usual = (seconds - first_seconds) / (n_steps - 1);
  return fmt::format("{:.2f} s", std::max(0.0, first_seconds - usual));
}

}  // namespace

int RunCommand(const RunFlags& flags) {
  if (flags.n_generate < 1) {
    return Fail(kExitUsage,
                fmt::format("-n {} generates nothing: give 1 or more", flags.n_generate));
  }
  const Result<std::string> text = UserText(flags);
  if (!text.ok()) return Fail(kExitUsage, text.error());
  const Result<ModelFile> file = FindModel(flags.decode);
  if (!file.ok()) return Fail(kExitUsage, file.error());
  const Result<Plugin> plugin = LoadPlugin();
  if (!plugin.ok()) return Fail(kExitFailed, plugin.error());
  const Result<std::string> policy = flags.policy.empty() ? Result<std::string>(plugin->Policy())
                                                          : plugin->SetPolicy(flags.policy);
  if (!policy.ok()) return Fail(kExitUsage, policy.error());
  const std::string asked = AskedForPolicy(flags);
  if (policy.value() != "dense") {
    const Status checked = WarnOfOtherModels({&asked, 1}, file.value());
    if (!checked.ok()) return Fail(kExitUsage, checked.error());
  }
  if (flags.decode.n_context > 0) {
    const Status fits = CheckMemory(file.value(), flags.decode, flags.decode.n_context, 0);
    if (!fits.ok()) return Fail(kExitUsage, fits.error());
  }
  const Result<std::unique_ptr<Model>> loaded = Model::Load(file->path);
  if (!loaded.ok()) return Fail(kExitFailed, loaded.error());
  const Model& model = *loaded.value();

  std::vector<Token> prompt;
  const Result<std::string> chat =
      flags.raw ? Result<std::string>(Error{""}) : model.ApplyChatTemplate(text.value());
  if (chat.ok()) {
    prompt = model.TokeniseTemplate(chat.value());
  } else {
    if (!flags.raw) PrintNote(chat.error() + ": the text goes on without one (as with --raw)");
    if (model.add_bos()) prompt.push_back(model.bos());
    const std::vector<Token> tokens = model.Tokenise(text.value());
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
  if (prompt.empty()) return Fail(kExitUsage, "the prompt is empty: its text gives no tokens");
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  const Status length =
      CheckLength(n_prompt, flags.n_generate, flags.decode.n_context, model.n_positions());
  if (!length.ok()) return Fail(kExitUsage, length.error());
  const int n_context = ContextFor(flags.decode, n_prompt + flags.n_generate);
  const Status fits = CheckMemory(file.value(), flags.decode, n_context, 0);
  if (!fits.ok()) return Fail(kExitUsage, fits.error());
  const Result<std::unique_ptr<Session>> opened =
      OpenSession(model, plugin.value(), flags.decode, n_context);
  if (!opened.ok()) return Fail(kExitFailed, opened.error());
  Session& session = *opened.value();

  const bool greedy = flags.temperature == 0;
  const uint32_t seed =
      flags.seed >= 0 ? static_cast<uint32_t>(flags.seed) : std::random_device()();
  PrintNote(
      greedy ? fmt::format("policy {}, temperature 0: the likeliest token, always", policy.value())
             : fmt::format("policy {}, temperature {}, seed {}", policy.value(), flags.temperature,
                           seed));
  const SamplerPtr sampler = MakeSampler(flags, seed);
  std::vector<llama_token_data> candidates;
  const auto choose = [&](Logits logits) {
    return greedy ? GreedyToken(logits) : Sample(sampler.get(), logits, candidates);
  };

  // A prefill is dense by contract; a last batch of one token would be taken for decoding.
  const Result<std::string> dense = plugin->SetPolicy("dense");
  if (!dense.ok()) return Fail(kExitFailed, dense.error());
  using Clock = std::chrono::steady_clock;
  const Clock::time_point prefill_start = Clock::now();
  Progress progress;
  Result<Logits> logits = session.Prefill(
      prompt, [&](int n_done, int n_total) { progress.Update("prefill", n_done, n_total); });
  progress.Clear();
  if (!logits.ok()) return Fail(kExitFailed, logits.error());
  const double prefill_seconds =
      std::chrono::duration<double>(Clock::now() - prefill_start).count();
  const bool idle = plugin->Counters().process.nodes == 0;
  if (idle) {
    const std::string words = "the plug-in is loaded but idle: it saw no attention of this model";
    if (policy.value() != "dense" && !AskedForPolicy(flags).empty())
      return Fail(kExitFailed, words + ", so policy " + policy.value() + " cannot run");
    PrintWarning(words + "; llama.cpp's own attention runs, dense");
  }
  const Result<std::string> in_force = plugin->SetPolicy(policy.value());
  if (!in_force.ok()) return Fail(kExitFailed, in_force.error());
  plugin->ResetCounters();

  int n_steps = 0, n_shown = 0;
  std::string failure;
  const Clock::time_point start = Clock::now();
  const auto since_start = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  double first_seconds = 0;  // until the first step is done: it sets summaries and codes up
  while (true) {
    const Token token = choose(logits.value());
    if (model.IsEndOfGeneration(token)) break;
    const std::string piece = model.Piece(token);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    if (++n_shown >= flags.n_generate) break;
    logits = session.Step(token);
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
  std::string fallbacks;
  for (int reason = 0; reason < CONDENSE_FALLBACK_COUNT; ++reason) {
    if (const uint64_t n = counters.process.fallbacks[reason]) {
      fallbacks += fmt::format("{}{} {}", fallbacks.empty() ? "" : ", ",
                               FormatCount(static_cast<int64_t>(n)), FallbackName(reason));
    }
  }
  PrintNote(fmt::format(
      "{} tokens, {:.1f} a second at depth {}; prefill {:.0f} a second, first token "
      "after {:.2f} s, set-up in the step after it {}; KV read {:.1f} % of dense; fallbacks: {}",
      n_shown, n_steps > 0 ? n_steps / seconds : 0.0, FormatCount(n_prompt),
      static_cast<double>(n_prompt) / prefill_seconds, prefill_seconds,
      SetUpWords(first_seconds, seconds, n_steps), 100 * counters.total.ReadShare(),
      fallbacks.empty() ? "none" : fallbacks));
  if (!failure.empty()) return Fail(kExitFailed, failure);
  if (n_steps > 0 && !idle && policy->rfind("dense", 0) != 0) {
    const Status measured = CheckCounters(policy.value(), true, counters);
    if (!measured.ok()) return Fail(kExitFailed, measured.error());
  }
  return kExitOk;
}

}  // namespace condense
