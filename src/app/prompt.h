// From a file's bytes to the tokens of an experiment: the prompt, and the text's own continuation.
// Pure: knows no model; the tokens come from one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/model.h"

namespace condense {

// The file's bytes. Errors name the file and what is wrong.
Result<std::string> ReadText(const std::string& path);

bool IsUtf8(const std::string& bytes);

struct TextCut {
  int64_t offset = 0;         // tokens of the text before the prompt
  int64_t prompt_tokens = 0;  // 0: the rest of the text, but for a continuation held back
  int n_generate = 128;
  int n_positions = 0;  // what the model takes; 0: unknown
  int n_context = 0;    // what the user asked for; 0: as long as needed
  bool add_bos = false;
  Token bos = 0;
};

struct CutText {
  std::vector<Token> prompt;        // BOS included where the model asks for one
  std::vector<Token> continuation;  // n_generate tokens, or none
  bool held_back = false;  // the continuation was cut from a text that was to be the prompt
};

// Errors: nothing left of the text, more tokens asked for than there are, a prompt that with its
// generated tokens exceeds the context or the model (both numbers named).
Result<CutText> CutTokens(const std::vector<Token>& text, const TextCut& cut);

// Whether prompt and generated tokens fit the context that was asked for, and the model.
Status CheckLength(int64_t n_prompt, int n_generate, int n_context, int n_positions);

}  // namespace condense
