#include "decode/sampler.h"

#include "llama.h"

namespace condense {

// llama.cpp's own chain, in the order of its tools: top-k, top-p, min-p, temperature, draw.
Sampler::Sampler(const SamplerOptions& options) {
  if (options.temperature == 0) return;
  chain_ = llama_sampler_chain_init(llama_sampler_chain_default_params());
  if (options.top_k > 0) llama_sampler_chain_add(chain_, llama_sampler_init_top_k(options.top_k));
  llama_sampler_chain_add(chain_, llama_sampler_init_top_p(static_cast<float>(options.top_p), 1));
  llama_sampler_chain_add(chain_, llama_sampler_init_min_p(static_cast<float>(options.min_p), 1));
  llama_sampler_chain_add(chain_, llama_sampler_init_temp(static_cast<float>(options.temperature)));
  llama_sampler_chain_add(chain_, llama_sampler_init_dist(options.seed));
}

Sampler::~Sampler() {
  if (chain_ != nullptr) llama_sampler_free(chain_);
}

Token Sampler::Choose(Logits logits) {
  if (is_greedy()) return GreedyToken(logits);
  if (n_candidates_ != logits.size()) {
    candidates_ = std::make_unique<llama_token_data[]>(logits.size());
    n_candidates_ = logits.size();
  }
  for (size_t i = 0; i < n_candidates_; ++i) {
    candidates_[i] = {static_cast<Token>(i), logits[i], 0};
  }
  llama_token_data_array all = {candidates_.get(), n_candidates_, -1, false};
  llama_sampler_apply(chain_, &all);
  CONDENSE_CHECK(all.selected >= 0);
  const Token token = all.data[all.selected].id;
  llama_sampler_accept(chain_, token);
  return token;
}

}  // namespace condense
