// Texts cut into prefixes for a search and for the part held out from it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "app/prompt.h"
#include "base/result.h"
#include "decode/model.h"
#include "lab/held_out.h"

namespace condense {

struct PrefixCut {
  int n_prefixes = 4;
  int64_t prompt_tokens = 0;  // 0: as many as texts, model and context allow
  int n_generate = 128;
  int n_positions = 0;  // what the model takes; 0: unknown
  int n_context = 0;    // what the user asked for; 0: as long as needed
  bool add_bos = false;
  Token bos = 0;
};

struct Prefix {
  size_t text = 0;     // which of the texts
  int64_t offset = 0;  // tokens of it before the prompt
  std::vector<Token> prompt, continuation;
};

// Every text is cut into pieces of prompt and continuation, none of which overlap; of all pieces
// n_prefixes are taken, as far apart as they come. Errors: texts too short, or pieces that exceed
// model or context.
Result<std::vector<Prefix>> CutPrefixes(std::span<const std::vector<Token>> texts,
                                        const PrefixCut& cut);

}  // namespace condense
