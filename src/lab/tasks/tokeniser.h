// A model's tokenizer as item makers see it, and how a prompt is put together: the words of a user
// in the model's chat template, the beginning of the answer behind them; or all as plain text.
// Parts are tokenised one by one, so that what is inserted has the same tokens wherever it stands.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "decode/model.h"

namespace condense {

struct TaskTokeniser {
  // The bytes as they are, without special tokens.
  std::function<std::vector<Token>(std::string_view)> tokens;
  std::function<std::string(Token)> piece;
  // Around the user's words: BOS and the chat template's tokens.
  std::vector<Token> head, tail;
  // What leads from the user's last words to the answer, and what stands before its first word.
  std::string answer_lead, answer_space;

  std::vector<Token> Tail() const;  // answer_lead, then the template's
};

// `form`: "chat", the model's template; "plain", none, the answer led by "Answer:". Errors: a model
// without a template that llama.cpp knows. `model` outlives the tokeniser.
Result<TaskTokeniser> TokeniserOf(const Model& model, const std::string& form);

}  // namespace condense
