// `condense env`, `condense policies`, `condense info`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/session_setup.h"

namespace condense {
namespace {

// For a POSIX shell: in single quotes, a quote within closed, escaped and opened again.
std::string ShellQuote(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

int EnvCommand(const std::string& policy) {
  const Result<Plugin> plugin = LoadPlugin();
  if (!plugin.ok()) return Fail(kExitFailed, plugin.error());
  std::string lines = fmt::format("export GGML_BACKEND_PATH={}\n", ShellQuote(plugin->path()));
  const Result<std::string> canonical =
      policy.empty() ? Result<std::string>(plugin->Policy()) : plugin->SetPolicy(policy);
  if (!canonical.ok()) return Fail(kExitUsage, canonical.error());
  lines += fmt::format("export CONDENSE_POLICY={}\n", ShellQuote(canonical.value()));
  lines +=
      "# Flash attention on: with 'auto', llama.cpp turns it off and the plug-in sees no "
      "attention.\n"
      "export LLAMA_ARG_FLASH_ATTN=on\n"
      "# Where llama.cpp has its CPU backend linked in, only an option that lists devices makes it "
      "look for\n"
      "# plug-ins: this one matches no tensor and changes nothing else.\n"
      "export LLAMA_ARG_OVERRIDE_TENSOR='none^=CPU'\n";
  fmt::print("{}", lines);
  PrintNote(
      "eval these lines, then start the program (llama-bench reads no LLAMA_ARG_…: pass it -fa "
      "on)");
  return kExitOk;
}

int PoliciesCommand(bool json) {
  const Result<Plugin> plugin = LoadPlugin();
  if (!plugin.ok()) return Fail(kExitFailed, plugin.error());
  const auto policies = nlohmann::ordered_json::parse(plugin->PoliciesJson(), nullptr, false);
  if (policies.is_discarded())
    return Fail(kExitFailed, "the plug-in describes its policies in no valid JSON");
  if (json) {
    fmt::print("{}\n", policies.dump(2));
    return kExitOk;
  }
  for (const auto& policy : policies) {
    fmt::print("{}\n    {}\n", policy.value("name", "?"), policy.value("summary", ""));
    const std::string source = policy.value("source", ""), label = policy.value("label", "");
    if (!source.empty()) fmt::print("    source: {}\n", source);
    if (!label.empty()) fmt::print("    note: {}\n", label);
    for (const auto& key : policy.value("keys", nlohmann::ordered_json::array())) {
      const std::string value = key.contains("default") && key["default"].is_string()
                                    ? key["default"].get<std::string>()
                                    : key.value("default", nlohmann::ordered_json()).dump();
      fmt::print("      {:<26} {}\n", fmt::format("{}={}", key.value("name", "?"), value),
                 key.value("help", ""));
    }
  }
  fmt::print(
      "\nspelling: NAME, NAME:KEY=VALUE,KEY=VALUE, or @FILE, a policy file (docs/POLICIES.md)\n");
  return kExitOk;
}

int InfoCommand(const DecodeFlags& flags) {
  const Result<ModelFile> file = FindModel(flags);
  if (!file.ok()) return Fail(kExitUsage, file.error());
  const Result<Plugin> plugin = LoadPlugin();
  const Result<std::unique_ptr<Model>> model = Model::Load(file->path);
  if (!model.ok()) return Fail(kExitFailed, model.error());
  const uint64_t per_token = file->KvBytesPerToken(flags.k_type, flags.v_type).value();
  fmt::print("model       {}\n", file->path);
  fmt::print("            {}, architecture {}, {} tensors, {}\n",
             file->name.empty() ? model.value()->Description() : file->name, file->architecture,
             file->n_tensors, FormatBytes(file->file_bytes));
  fmt::print("shape       {} layers, {} query heads, {} KV heads, head size {}{}\n",
             model.value()->n_layers(), model.value()->n_query_heads(), model.value()->n_kv_heads(),
             file->k_head_dim,
             file->v_head_dim != file->k_head_dim ? fmt::format(" (V {})", file->v_head_dim) : "");
  fmt::print("positions   {}\n", FormatCount(model.value()->n_positions()));
  fmt::print("KV cache    {} a token ({}/{}), {} at full context\n", FormatBytes(per_token),
             flags.k_type, flags.v_type, FormatBytes(per_token * model.value()->n_positions()));
  fmt::print("machine     {}, {} threads by default, {} free\n", CpuName(), PhysicalCores(),
             FormatBytes(AvailableMemory()));
  if (!plugin.ok()) {
    fmt::print("plug-in     not there: {}\n", plugin.error());
    return kExitFailed;
  }
  fmt::print("plug-in     {}\n            {}, instruction set {}, policy {}\n", plugin->path(),
             plugin->Version(), plugin->InstructionSet(), plugin->Policy());

  // Whether attention really arrives shows in one decoded token only.
  const Result<std::unique_ptr<Session>> session =
      OpenSession(*model.value(), plugin.value(), flags, 256);
  if (!session.ok()) return Fail(kExitFailed, session.error());
  plugin->ResetCounters();
  const Result<Logits> logits =
      session.value()->Prefill(model.value()->Tokenise("Hello there"), {});
  if (!logits.ok()) return Fail(kExitFailed, logits.error());
  const condense_counters counters = plugin->Counters().process;
  if (counters.nodes == 0) {
    fmt::print(
        "active      no: {} attention nodes of this model were declined; llama.cpp runs it dense\n",
        counters.declined);
    return kExitOk;
  }
  fmt::print("active      yes: {} attention nodes a token by the plug-in{}\n", counters.nodes,
             counters.declined > 0 ? fmt::format(", {} by llama.cpp", counters.declined) : "");
  return kExitOk;
}

}  // namespace condense
