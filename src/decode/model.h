// A model's weights and vocabulary, loaded by libllama for the CPU: bytes to tokens and back,
// shape, chat template. Owns no cache and decodes nothing (session.h does).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct llama_model;
struct llama_vocab;

namespace condense {

// The host's token ids.
using Token = int32_t;

class Model {
 public:
  // Maps the file into memory. Check it with ReadModelFile first: the host's own words for a broken
  // file are poorer. Fails also when a stop was requested while loading. `repack`: llama.cpp may
  // keep weights in an order of its own, which is faster for some quantisations and computes
  // several rows by other arithmetic than one.
  static Result<std::unique_ptr<Model>> Load(const std::string& path, bool repack = true);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The bytes as they are: no special tokens are added, and none is recognised in the text. Bytes
  // that are no UTF-8 go to the tokenizer as well, which maps them as it likes.
  std::vector<Token> Tokenise(std::string_view bytes) const;
  // As the model's chat template wants it: special tokens recognised, BOS where the file asks for
  // it.
  std::vector<Token> TokeniseTemplate(std::string_view bytes) const;
  // The token's bytes; control tokens give "" unless `with_control`.
  std::string Piece(Token token, bool with_control = false) const;
  // One string of valid UTF-8 a token: a character whose bytes are spread over tokens appears with
  // the token that completes it. Bytes that never become a character appear as U+FFFD.
  std::vector<std::string> Pieces(const std::vector<Token>& tokens) const;

  bool add_bos() const;
  Token bos() const;
  bool IsEndOfGeneration(Token token) const;
  int n_vocab() const;

  // Host's one-line description, e.g. "llama 135M Q4_1".
  std::string Description() const;
  int n_positions() const;  // the longest context it was trained for
  int n_layers() const;
  int n_query_heads() const;
  int n_kv_heads() const;
  // Keeps state that cannot be cut back row by row (recurrent and hybrid models).
  bool has_recurrent_state() const;

  // `user_text` as a first user message in the model's chat template, ready for the answer. Fails
  // where the file carries no template, or one that llama.cpp's built-in matcher does not know.
  Result<std::string> ApplyChatTemplate(const std::string& user_text) const;

  llama_model* handle() const { return model_; }

 private:
  explicit Model(llama_model* model);
  std::vector<Token> TokeniseAs(std::string_view bytes, bool special) const;
  llama_model* model_;
  const llama_vocab* vocab_;
};

}  // namespace condense
