// The way from flags to a session, with every error that can be told before work begins told first.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/arguments.h"
#include "app/output.h"
#include "app/prefixes.h"
#include "base/result.h"
#include "decode/model.h"
#include "decode/model_file.h"
#include "decode/plugin.h"
#include "decode/session.h"

namespace condense {

// Checks the file and the cache types; an empty path is the default model.
Result<ModelFile> FindModel(const DecodeFlags& flags);

// The text of -f or -p, or the default text.
struct SourceText {
  std::string bytes, source;  // source: the path, or "-p"
};
Result<SourceText> FindText(const DecodeFlags& flags);

// Each of `files`, or the default text where there is none.
Result<std::vector<SourceText>> FindTexts(const DecodeFlags& flags,
                                          const std::vector<std::string>& files);

// The texts cut into prefixes of the model's tokens (app/prefixes.h).
struct PrefixWish {
  int n_prefixes = 4;
  int64_t prompt_tokens = 0;  // 0: as many as there are
  int n_generate = 128;
};
Result<std::vector<Prefix>> CutTexts(const Model& model, const DecodeFlags& flags,
                                     const std::vector<SourceText>& texts, const PrefixWish& wish);

Result<Plugin> LoadPlugin();

// --confidence: a share.
Result<double> ReadConfidence(const std::string& text);

// What is held beside the model.
struct MemoryNeed {
  int64_t n_context = 0;  // rows of a cache
  int n_caches = 1;
  uint64_t logits_bytes = 0, other_bytes = 0;
  std::string way_out = "pass a smaller -c, a shorter prompt, or -ctk q8_0 -ctv q8_0";
};
// Whether it fits: `kv_bytes`, of a cache's row; `available`, 0: not known. The error names each
// part.
Status CheckMemory(const MemoryNeed& need, uint64_t kv_bytes, uint64_t available);
// With the model's cache and the memory that is free.
Status CheckMemory(const ModelFile& model, const DecodeFlags& flags, const MemoryNeed& need);

int ThreadsOf(const DecodeFlags& flags);

// Rows of the cache for a run of `n_needed` tokens.
int ContextFor(const DecodeFlags& flags, int64_t n_needed);

Result<std::unique_ptr<Session>> OpenSession(const Model& model, const Plugin& plugin,
                                             const DecodeFlags& flags, int n_context);

// What a command decodes with, from a file's name to a session, step by step: what can be wrong
// with the flags is told between. The model outlives the session.
struct DecodeParts {
  ModelFile file;
  std::optional<Plugin> plugin;
  std::unique_ptr<Model> model;
  std::unique_ptr<Session> session;

  std::optional<Failure> Find(const DecodeFlags& flags);  // file and plug-in
  std::optional<Failure> LoadModel();
  // A session of `n_context` rows, where they and `extra_bytes` beside them fit the memory.
  std::optional<Failure> Open(const DecodeFlags& flags, int n_context, uint64_t extra_bytes);
};

}  // namespace condense
