// What makes a token of logits: the greedy one, or llama.cpp's own chain of samplers with a seeded
// random stream. One call draws once, so a sequence of logits and a seed give a sequence of tokens,
// whatever computed the logits.
#pragma once

#include <cstdint>
#include <memory>

#include "decode/session.h"

struct llama_sampler;
struct llama_token_data;

namespace condense {

struct SamplerOptions {
  double temperature = 0;  // 0: greedy, and the rest is not looked at
  int top_k = 40;          // 0: all
  double top_p = 0.95, min_p = 0.05;
  uint32_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  bool is_greedy() const { return chain_ == nullptr; }
  Token Choose(Logits logits);

 private:
  llama_sampler* chain_ = nullptr;
  std::unique_ptr<llama_token_data[]> candidates_;
  size_t n_candidates_ = 0;
};

}  // namespace condense
