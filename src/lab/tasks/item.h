// One question put to a model: a prompt, and what should come after it. Made by needle.h and
// ruler.h, asked by item_run.h, judged by score.h.
#pragma once

#include <string>
#include <vector>

#include "decode/model.h"

namespace condense {

struct TaskItem {
  std::string task;           // "needle", "niah_single_1", …
  std::vector<Token> prompt;  // BOS first where the model asks for one
  int n_before_question = 0;  // tokens of the prompt; of a needle alone
  // The answer as the tokens that should follow; empty where it is judged as text alone.
  std::vector<Token> answer;
  std::vector<std::string> expected;  // every one is wanted in the answer's text
  int n_generate = 0;                 // tokens of an answer, at most
};

}  // namespace condense
