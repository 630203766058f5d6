// A loaded model as experiments plan and run with it: its tokenizer, its shape, texts as its
// tokens, and the parameters that name it in cells. Owns no cache.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/model.h"
#include "decode/model_file.h"
#include "decode/plugin.h"
#include "lab/records.h"

namespace condense {

// A file's text as a model's tokens.
struct LabText {
  std::string path, sha256;  // of the file
  std::string bytes;
  std::vector<Token> tokens;  // of the whole file; no BOS
};

// Where texts that a spec names are looked for.
struct TextPlaces {
  std::string folder;       // --texts; "" where not given
  std::string spec_folder;  // of the spec's file; "" for a default spec
};

class LabModel {
 public:
  struct Options {
    std::string k_type = "f16", v_type = "f16";  // llama.cpp's spelling
    std::string sha256{};                        // of the file where it is known; "": taken
  };
  // Loads the file and, where it is not known, takes its hash. Errors: a file that is no model, a
  // stop.
  static Result<std::unique_ptr<LabModel>> Load(const std::string& path, const Plugin& plugin,
                                                const Options& options);

  const Model& model() const { return *model_; }
  const ModelFile& file() const { return file_; }
  const Plugin& plugin() const { return plugin_; }
  const std::string& sha256() const { return sha256_; }
  const std::string& v_type() const { return options_.v_type; }  // llama.cpp's spelling
  // "SmolLM2-135M-Instruct.Q4_1.gguf@1a2b3c4d": file and the beginning of its hash.
  std::string Name() const;
  std::string FileName() const;  // without its folder

  // What every cell of this model begins with: {"model": Name()}, and the cache's types where they
  // are not f16.
  Json Parameters() const;

  // As the plug-in spells the policy. Leaves it in force.
  Result<std::string> Canonical(const std::string& policy) const;

  // Where Text looks from now on.
  void SetTextPlaces(TextPlaces places) { places_ = std::move(places); }
  // The text that a spec names: a path, or a name in --texts or beside the spec. Read and tokenised
  // once. Errors: not found (places named), empty.
  Result<const LabText*> Text(const std::string& name);
  // "wiki.txt@1a2b3c4d", as cells name it.
  static std::string TextParameter(const LabText& text);

 private:
  LabModel(const Plugin& plugin, Options options) : plugin_(plugin), options_(std::move(options)) {}
  const Plugin& plugin_;
  Options options_;
  ModelFile file_;
  std::unique_ptr<Model> model_;
  std::string sha256_;
  TextPlaces places_;
  std::map<std::string, std::unique_ptr<LabText>> texts_;  // by path
};

}  // namespace condense
