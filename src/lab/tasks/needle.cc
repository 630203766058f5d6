#include "lab/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "lab/tasks/draw.h"
#include "lab/tasks/facts.h"

namespace condense {
namespace {

constexpr std::string_view kClosing = "\"')]}\xE2\x80\x9D\x99";  // and the bytes of ” and ’

bool IsAbbreviation(std::string_view before_stop) {
  const size_t begin = before_stop.find_last_of(" \n\t(\"") + 1;  // 0 where there is none
  const std::string_view word = before_stop.substr(begin);
  if (word.size() == 1) return std::isupper(static_cast<unsigned char>(word[0])) != 0;
  return word == "Mr" || word == "Mrs" || word == "Ms" || word == "Dr" || word == "St";
}

bool EndsSentence(std::string_view text) {
  while (!text.empty() && kClosing.find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  if (text.empty()) return false;
  if (text.back() == '!' || text.back() == '?') return true;
  if (text.back() != '.') return false;
  text.remove_suffix(1);
  return !IsAbbreviation(text);
}

struct Insertion {
  int at = 0;  // tokens of the text before it
  std::vector<Token> tokens;
};

}  // namespace

std::vector<int> SentenceEnds(const TaskTokeniser& tokeniser, std::span<const Token> text) {
  std::vector<int> ends = {0};
  const int n = static_cast<int>(text.size());
  std::string before;  // the last few pieces: a stop may be a token of its own
  std::string next = n > 0 ? tokeniser.piece(text[0]) : "";
  for (int i = 0; i + 1 < n; ++i) {
    before += next;
    if (before.size() > 64) before.erase(0, before.size() - 64);
    next = tokeniser.piece(text[i + 1]);
    const bool apart = !next.empty() && (next[0] == ' ' || next[0] == '\n');
    if (apart && EndsSentence(before)) ends.push_back(i + 1);
  }
  if (n > 0) ends.push_back(n);
  return ends;
}

Result<TaskItem> MakeNeedle(const TaskTokeniser& tokeniser, std::span<const Token> filler,
                            const NeedleSpec& spec) {
  CONDENSE_CHECK(spec.depth >= 0 && spec.depth <= 1);
  const FactSet set = MakeFacts(spec.seed, spec.fact, spec.n_distractors);
  TaskItem item;
  item.task = "needle";
  item.expected = {set.fact.value};
  item.answer = tokeniser.tokens(" " + set.fact.value);
  item.n_generate = std::max(spec.n_generate, static_cast<int>(item.answer.size()));

  std::vector<Insertion> insertions = {{0, tokeniser.tokens(" " + set.fact.Sentence())}};
  for (const Fact& distractor : set.distractors)
    insertions.push_back({0, tokeniser.tokens(" " + distractor.Sentence())});
  std::vector<Token> end = tokeniser.tokens("\n\nQuestion: " + set.fact.question);
  for (const auto& part :
       {tokeniser.Tail(), tokeniser.tokens(tokeniser.answer_space + set.fact.stem)}) {
    end.insert(end.end(), part.begin(), part.end());
  }
  size_t n_other = tokeniser.head.size() + end.size();
  for (const Insertion& insertion : insertions) n_other += insertion.tokens.size();
  const int n_text = spec.n_context - static_cast<int>(n_other);
  if (n_text < 1) {
    return Error{fmt::format(
        "a context of {} tokens has no room for text: fact, distractors, question and template "
        "take {}",
        spec.n_context, n_other)};
  }
  if (filler.size() < static_cast<size_t>(n_text)) {
    return Error{fmt::format("a context of {} tokens wants {} of text, which has {}",
                             spec.n_context, n_text, filler.size())};
  }
  const std::span<const Token> text = filler.first(n_text);
  const std::vector<int> ends = SentenceEnds(tokeniser, text);
  const double wanted = spec.depth * n_text;
  const auto nearest = std::min_element(ends.begin(), ends.end(), [&](int a, int b) {
    return std::abs(a - wanted) < std::abs(b - wanted);
  });
  if (std::abs(*nearest - wanted) > std::max(16.0, n_text / 10.0)) {
    return Error{fmt::format(
        "no sentence ends near depth {} of a text of {} tokens: the nearest end is behind token "
        "{}; take another text or offset",
        spec.depth, n_text, *nearest)};
  }
  insertions[0].at = *nearest;
  Draw draw({spec.seed, StreamOf("distractors"), static_cast<uint64_t>(spec.fact)});
  for (size_t i = 1; i < insertions.size(); ++i) insertions[i].at = draw.One(ends);
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const Insertion& a, const Insertion& b) { return a.at < b.at; });

  item.prompt = tokeniser.head;
  int n_done = 0;
  for (const Insertion& insertion : insertions) {
    item.prompt.insert(item.prompt.end(), text.begin() + n_done, text.begin() + insertion.at);
    item.prompt.insert(item.prompt.end(), insertion.tokens.begin(), insertion.tokens.end());
    n_done = insertion.at;
  }
  item.prompt.insert(item.prompt.end(), text.begin() + n_done, text.end());
  item.n_before_question = static_cast<int>(item.prompt.size());
  item.prompt.insert(item.prompt.end(), end.begin(), end.end());
  CONDENSE_CHECK(item.prompt.size() == static_cast<size_t>(spec.n_context));
  return item;
}

}  // namespace condense
