#include "lab/tasks/tokeniser.h"

namespace condense {
namespace {

// Stands for the user's words while the template is split around them.
constexpr std::string_view kWords = "<<the words of the user>>";

}  // namespace

std::vector<Token> TaskTokeniser::Tail() const {
  std::vector<Token> all = tokens(answer_lead);
  all.insert(all.end(), tail.begin(), tail.end());
  return all;
}

Result<TaskTokeniser> TokeniserOf(const Model& model, const std::string& form) {
  TaskTokeniser tokeniser;
  tokeniser.tokens = [&model](std::string_view bytes) {
    return bytes.empty() ? std::vector<Token>() : model.Tokenise(bytes);
  };
  tokeniser.piece = [&model](Token token) { return model.Piece(token); };
  if (form == "plain") {
    if (model.add_bos()) tokeniser.head.push_back(model.bos());
    tokeniser.answer_lead = "\nAnswer:";
    tokeniser.answer_space = " ";
    return tokeniser;
  }
  CONDENSE_CHECK(form == "chat");
  const Result<std::string> text = model.ApplyChatTemplate(std::string(kWords));
  if (!text.ok()) return Error{text.error() + "; form = \"plain\" does without one"};
  const size_t at = text->find(kWords);
  if (at == std::string::npos) {
    return Error{
        "the model's chat template changes the words that it is given; "
        "form = \"plain\" does without one"};
  }
  // BOS stands before the whole, so a tail that is tokenised alone must not get it again.
  tokeniser.head = model.TokeniseTemplate(text->substr(0, at));
  tokeniser.tail = model.TokeniseTemplate(text->substr(at + kWords.size()));
  if (model.add_bos() && !tokeniser.tail.empty() && tokeniser.tail.front() == model.bos()) {
    tokeniser.tail.erase(tokeniser.tail.begin());
  }
  return tokeniser;
}

}  // namespace condense
