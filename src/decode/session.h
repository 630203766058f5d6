// One sequence of one model, decoded step by step: a prefill, then one-token steps with their
// logits, and back to the end of the prefill as often as wanted. Flash attention is asked for
// explicitly: with the host's "auto" the plug-in would never see a node. Sampling and policies are
// the caller's.
#pragma once

#include <condense/condense.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/model.h"

struct llama_context;

namespace condense {

struct SessionOptions {
  int n_context = 0;  // rows of the KV cache, rounded up to 256
  int n_batch = 512;  // tokens that one call of the host takes
  int n_threads = 1;
  std::string k_type = "f16", v_type = "f16";  // llama.cpp's spelling
  // Told to forget after a restore that wrote the cache behind the graph's back. May be null.
  const condense_api* api = nullptr;
  // llama.cpp's own decoding: the plug-in, which must be loaded, gets no node of this session.
  bool left_to_host = false;
  bool flash_attention = true;  // false: of a session left to the host
};

// [n_vocab], valid until the next call of the session.
using Logits = std::span<const float>;

// Whether rows can be removed from the model's cache and decoded again: not those of models with
// recurrent state. The error says so.
Status CheckRowsCanBeRemoved(const Model& model);

class Session {
 public:
  // `model` outlives the session.
  static Result<std::unique_ptr<Session>> Open(const Model& model, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Decodes `tokens` from an empty cache in batches and gives the logits after the last one; Rewind
  // goes back to this state. `progress` may be empty. Fails where a stop was requested.
  using Progress = std::function<void(int n_done, int n_total)>;
  Result<Logits> Prefill(const std::vector<Token>& tokens, const Progress& progress);

  // Feeds one token and gives the logits after it. Fails where a stop was requested, where the
  // cache is full, and where the host's logits are not numbers; the cache is as it was before then.
  Result<Logits> Step(Token token);

  // Feeds several tokens in one call of the host, at most n_batch() and what the context has room
  // for, and gives the logits after each of the last `n_logits` (0: of all; a row of logits takes a
  // product with the whole vocabulary). Two or more tokens are computed dense, whatever the policy.
  // Fails as Step does.
  Result<std::vector<Logits>> StepRows(std::span<const Token> tokens, int n_logits = 0);

  // Removes the rows from `position` on, which lies inside the cache. Fails for models that keep
  // state which cannot be cut.
  Status CutBack(int position);

  // The state at the end of the prefill again, bit for bit: later rows are removed, and models with
  // recurrent state get their saved state back.
  Status Rewind();

  int position() const { return position_; }  // tokens in the cache
  int n_context() const;
  int n_batch() const { return options_.n_batch; }
  int n_prefilled() const { return n_prefilled_; }  // tokens that Rewind goes back to; 0: none
  // As it was opened.
  const SessionOptions& options() const { return options_; }
  const Model& model() const { return model_; }

 private:
  Session(const Model& model, llama_context* context, const SessionOptions& options);
  // Removes what a failed call left from `position` on; its error, and why that could not be.
  Error BackTo(int position, const std::string& error);
  // Logits of the last n_logits.
  Status Decode(std::span<const Token> tokens, int n_logits = 1);
  void Forget() const;
  // Of a token of the last call, -1: its last.
  Result<Logits> LogitsOf(int token) const;

  const Model& model_;
  llama_context* context_;
  const SessionOptions options_;
  int position_ = 0, n_prefilled_ = 0;
  std::vector<uint8_t> saved_state_;  // of models with recurrent state
};

// The greedy token: the largest logit, the lowest id among equals.
Token GreedyToken(Logits logits);

}  // namespace condense
