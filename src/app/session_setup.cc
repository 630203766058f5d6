#include "app/session_setup.h"

#include <fmt/format.h>

#include "app/machine.h"
#include "app/output.h"
#include "app/prompt.h"
#include "base/text.h"

namespace condense {

Result<ModelFile> FindModel(const DecodeFlags& flags) {
  for (const std::string& type : {flags.k_type, flags.v_type}) {
    const Status status = CheckCacheType(type);
    if (!status.ok()) return Error{status.error()};
  }
  const std::string path = flags.model.empty() ? DefaultModelPath() : flags.model;
  if (path.empty()) {
    return Error{
        "the default model is not there: `make run` fetches it; or name a GGUF file with -m"};
  }
  return ReadModelFile(path);
}

Result<SourceText> FindText(const DecodeFlags& flags) {
  SourceText text;
  if (flags.prompt) {
    text = {*flags.prompt, "-p"};
    if (text.bytes.empty()) return Error{"the prompt is empty: give a text behind -p"};
  } else {
    text.source = flags.file.empty() ? DefaultTextPath() : flags.file;
    if (text.source.empty()) return Error{"this system has no default text: name one with -f FILE"};
    Result<std::string> bytes = ReadText(text.source);
    if (!bytes.ok()) return Error{bytes.error()};
    text.bytes = std::move(bytes.value());
  }
  if (!IsUtf8(text.bytes)) {
    PrintNote(fmt::format("text '{}' is not UTF-8: its bytes go to the tokenizer as they are",
                          text.source));
  }
  return text;
}

Result<std::vector<SourceText>> FindTexts(const DecodeFlags& flags,
                                          const std::vector<std::string>& files) {
  std::vector<SourceText> texts;
  for (const std::string& path : files.empty() ? std::vector<std::string>{""} : files) {
    DecodeFlags one = flags;
    one.file = path;
    Result<SourceText> text = FindText(one);
    if (!text.ok()) return Error{text.error()};
    texts.push_back(std::move(text.value()));
  }
  return texts;
}

Result<std::vector<Prefix>> CutTexts(const Model& model, const DecodeFlags& flags,
                                     const std::vector<SourceText>& texts, const PrefixWish& wish) {
  std::vector<std::vector<Token>> tokens;
  for (const SourceText& text : texts) tokens.push_back(model.Tokenise(text.bytes));
  return CutPrefixes(tokens, {.n_prefixes = wish.n_prefixes,
                              .prompt_tokens = wish.prompt_tokens,
                              .n_generate = wish.n_generate,
                              .n_positions = model.n_positions(),
                              .n_context = flags.n_context,
                              .add_bos = model.add_bos(),
                              .bos = model.bos()});
}

Result<Plugin> LoadPlugin() {
  const Result<std::string> path = Plugin::FindPath();
  if (!path.ok()) return Error{path.error()};
  return Plugin::Load(path.value());
}

Result<double> ReadConfidence(const std::string& text) {
  const Result<double> confidence = ParseShare(text, 50, 99.99);
  if (!confidence.ok()) return Error{"--confidence " + confidence.error()};
  return confidence;
}

Status CheckMemory(const MemoryNeed& need, uint64_t kv_bytes, uint64_t available) {
  const uint64_t cache = kv_bytes * static_cast<uint64_t>(need.n_context);
  const uint64_t all =
      cache * static_cast<uint64_t>(need.n_caches) + need.logits_bytes + need.other_bytes;
  if (available == 0 || all <= available) return Status();
  std::string parts;
  if (need.n_caches > 1) parts += fmt::format(", and {} are held at once", need.n_caches);
  if (need.logits_bytes > 0)
    parts += fmt::format(", the logits kept {}", FormatBytes(need.logits_bytes));
  if (need.other_bytes > 0)
    parts += fmt::format(", compute buffers {}", FormatBytes(need.other_bytes));
  return Error{fmt::format(
      "a context of {} tokens does not fit in memory: its KV cache takes {} ({} a token){}, and {} "
      "are free ({} bytes of {}): {}",
      FormatCount(need.n_context), FormatBytes(cache), FormatBytes(kv_bytes), parts,
      FormatBytes(available), all, available, need.way_out)};
}

Status CheckMemory(const ModelFile& model, const DecodeFlags& flags, const MemoryNeed& need) {
  const Result<uint64_t> per_token = model.KvBytesPerToken(flags.k_type, flags.v_type);
  if (!per_token.ok()) return Error{per_token.error()};
  return CheckMemory(need, per_token.value(), AvailableMemory());
}

int ThreadsOf(const DecodeFlags& flags) {
  return flags.n_threads > 0 ? flags.n_threads : PhysicalCores();
}

int ContextFor(const DecodeFlags& flags, int64_t n_needed) {
  return flags.n_context > 0 ? flags.n_context : static_cast<int>(n_needed);
}

Result<std::unique_ptr<Session>> OpenSession(const Model& model, const Plugin& plugin,
                                             const DecodeFlags& flags, int n_context) {
  SessionOptions options;
  options.n_context = n_context;
  options.n_threads = ThreadsOf(flags);
  options.k_type = flags.k_type;
  options.v_type = flags.v_type;
  options.api = plugin.api();
  return Session::Open(model, options);
}

std::optional<Failure> DecodeParts::Find(const DecodeFlags& flags) {
  Result<ModelFile> found = FindModel(flags);
  if (!found.ok()) return Failure{kExitUsage, found.error()};
  file = std::move(found.value());
  const Result<Plugin> loaded = LoadPlugin();
  if (!loaded.ok()) return Failure{kExitFailed, loaded.error()};
  plugin = loaded.value();
  return std::nullopt;
}

std::optional<Failure> DecodeParts::LoadModel() {
  Result<std::unique_ptr<Model>> loaded = Model::Load(file.path);
  if (!loaded.ok()) return Failure{kExitFailed, loaded.error()};
  model = std::move(loaded.value());
  return std::nullopt;
}

std::optional<Failure> DecodeParts::Open(const DecodeFlags& flags, int n_context,
                                         uint64_t extra_bytes) {
  const Status fits =
      CheckMemory(file, flags, {.n_context = n_context, .logits_bytes = extra_bytes});
  if (!fits.ok()) return Failure{kExitUsage, fits.error()};
  Result<std::unique_ptr<Session>> opened = OpenSession(*model, *plugin, flags, n_context);
  if (!opened.ok()) return Failure{kExitFailed, opened.error()};
  session = std::move(opened.value());
  return std::nullopt;
}

}  // namespace condense
