#include "lab/tasks/ruler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <set>

#include "base/text.h"
#include "lab/tasks/draw.h"
#include "lab/tasks/ruler_words.h"

namespace condense {
namespace {

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// What a task's text is at a size: sentences, lines or words, whatever it counts in.
struct RulerText {
  std::string question;  // the user's words
  std::string lead;      // the beginning of the answer
  std::vector<std::string> expected;
};
using MakeText = std::function<RulerText(int size)>;

std::string Join(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

// --- Needles: niah_* -------------------------------------------------------------------------

enum class Hay { kRepeated, kNeedles };

std::string NiahKey(Draw& draw, bool uuids) {
  if (!uuids) return draw.One(RulerAdjectives()) + "-" + draw.One(RulerNouns());
  const uint64_t high = draw.Bits(), low = draw.Bits();
  // Version 4, variant 1.
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xFFFF,
                     high & 0xFFF, (low >> 48 & 0x3FFF) | 0x8000, low & 0xFFFFFFFFFFFF);
}

std::string NiahValue(Draw& draw, bool uuids) {
  return uuids ? NiahKey(draw, true) : std::to_string(1000000 + draw.Below(9000000));
}

RulerText Niah(Draw draw, Hay hay, bool uuids, int n_lines) {
  const char* kind = uuids ? "uuid" : "number";
  const auto needle = [&](const std::string& key, const std::string& value) {
    return fmt::format("One of the special magic {}s for {} is: {}.", kind, key, value);
  };
  const std::string key = NiahKey(draw, uuids), value = NiahValue(draw, uuids);
  const size_t at = draw.Below(n_lines);
  std::vector<std::string> lines;
  for (int i = 0; i < n_lines; ++i) {
    if (hay == Hay::kRepeated) {
      lines.emplace_back(kNoise);
      continue;
    }
    std::string other = NiahKey(draw, uuids);
    while (other == key) other = NiahKey(draw, uuids);
    lines.push_back(needle(other, NiahValue(draw, uuids)));
  }
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), needle(key, value));
  return {fmt::format("A special magic {0} is hidden within the following text. Make sure to "
                      "memorize it. I will quiz you about the {0} afterwards.\n{1}\nWhat is the "
                      "special magic {0} for {2} mentioned in the provided text?",
                      kind, Join(lines, "\n"), key),
          fmt::format("The special magic {} for {} mentioned in the provided text is", kind, key),
          {value}};
}

// --- Variable tracking: vt -------------------------------------------------------------------

constexpr int kHops = 4;
constexpr int kVtTokens = 30;

// One chain of kHops assignments among noise. `n_letters`: of a variable's name.
RulerText Chain(Draw& draw, int n_letters, int n_noise) {
  std::vector<std::string> names;
  while (names.size() < kHops + 1) {
    std::string name = draw.Letters(n_letters, 'A');
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const std::string value = std::to_string(10000 + draw.Below(90000));
  std::vector<std::string> sentences(n_noise, std::string(kNoise) + "\n");
  std::vector<int> places = draw.Several(kHops + 1, n_noise);
  std::sort(places.begin(), places.end());
  for (int i = 0; i <= kHops; ++i) {
    sentences.insert(sentences.begin() + places[i] + i,
                     i == 0 ? fmt::format("VAR {} = {}", names[0], value)
                            : fmt::format("VAR {} = VAR {} ", names[i], names[i - 1]));
  }
  return {fmt::format("Memorize and track the chain(s) of variable assignment hidden in the "
                      "following text.\n\n{}\nQuestion: Find all variables that are assigned the "
                      "value {} in the text above.",
                      Join(sentences, " "), value),
          fmt::format("Answer: According to the chain(s) of variable assignment in the text "
                      "above, {} variables are assigned the value {}, they are:",
                      kHops + 1, value),
          names};
}

// A solved example stands before the question: names of three letters, 500 tokens.
RulerText VariableTracking(const TaskTokeniser& tokeniser, Draw draw, int n_noise) {
  constexpr int kExampleTokens = 500, kStep = 5;
  RulerText example;
  for (int n = kStep;; n += kStep) {
    Draw same = draw;
    RulerText longer = Chain(same, 3, n);
    const size_t n_tokens = tokeniser.tokens(longer.question + " " + longer.lead).size();
    if (n > kStep && n_tokens + kVtTokens > kExampleTokens) break;
    example = std::move(longer);
  }
  draw.Bits();  // the question's draws are others than the example's
  RulerText text = Chain(draw, 5, n_noise);
  text.question = fmt::format("{} {} {}\n\n\n\n{}", example.question, example.lead,
                              Join(example.expected, " "), text.question);
  return text;
}

// --- Frequent words: fwe ---------------------------------------------------------------------

RulerText FrequentWords(Draw draw, int n_context, int n_words) {
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;  // of the exponent 2
  const int n_vocabulary = std::max(4, n_context / 50);
  std::set<std::string> unlike;
  while (unlike.size() < static_cast<size_t>(n_vocabulary)) unlike.insert(draw.Letters(6, 'a'));
  std::vector<std::string> vocabulary(unlike.begin(), unlike.end());
  draw.Shuffle(vocabulary);
  vocabulary[0] = "...";  // the commonest is noise
  std::vector<std::string> words;
  for (int k = 1; k <= n_vocabulary; ++k) {
    const int n = static_cast<int>(n_words / (static_cast<double>(k) * k * kZeta2));
    words.insert(words.end(), n, vocabulary[k - 1]);
  }
  draw.Shuffle(words);
  return {fmt::format("Read the following coded text and track the frequency of each coded word. "
                      "Find the three most frequently appeared coded words. {}\nQuestion: Do not "
                      "provide any explanation. Please ignore the dots '....'. What are the three "
                      "most frequently appeared words in the above coded text?",
                      Join(words, " ")),
          "Answer: According to the coded text above, the three most frequently appeared words "
          "are:",
          {vocabulary[1], vocabulary[2], vocabulary[3]}};
}

// --- Any of them -----------------------------------------------------------------------------

struct RulerTask {
  int n_generate = 0;
  int least = 1;  // size of the smallest text
  MakeText make;
};

RulerTask TaskOf(const TaskTokeniser& tokeniser, const RulerSpec& spec) {
  const Draw draw({spec.seed, StreamOf(spec.task), static_cast<uint64_t>(spec.n_context),
                   static_cast<uint64_t>(spec.sample)});
  const int n_context = spec.n_context;
  if (spec.task == "vt") {
    return {kVtTokens, kHops + 2,
            [&tokeniser, draw](int n) { return VariableTracking(tokeniser, draw, n); }};
  }
  // 30 words and more: the three that are asked for appear at all, and unlike often.
  if (spec.task == "fwe")
    return {50, 60, [draw, n_context](int n) { return FrequentWords(draw, n_context, n); }};
  const Hay hay = spec.task == "niah_single_1" ? Hay::kRepeated : Hay::kNeedles;
  const bool uuids = spec.task == "niah_multikey_3";
  return {128, 1, [draw, hay, uuids](int n) { return Niah(draw, hay, uuids, n); }};
}

std::vector<Token> Prompt(const TaskTokeniser& tokeniser, const RulerText& text) {
  std::vector<Token> prompt = tokeniser.head;
  for (const auto& part : {tokeniser.tokens(text.question), tokeniser.tail,
                           tokeniser.tokens(tokeniser.answer_space + text.lead)}) {
    prompt.insert(prompt.end(), part.begin(), part.end());
  }
  return prompt;
}

}  // namespace

const std::vector<std::string>& RulerTasks() {
  static const std::vector<std::string> tasks = {"niah_single_1", "niah_multikey_2",
                                                 "niah_multikey_3", "vt", "fwe"};
  return tasks;
}

Status CheckRulerTask(const std::string& task) {
  if (std::count(RulerTasks().begin(), RulerTasks().end(), task) == 1) return Status();
  return Error{"task " + Quote(task) + " is unknown" + DidYouMean(task, RulerTasks()) +
               "; there are " + JoinNames(RulerTasks())};
}

Result<TaskItem> MakeRuler(const TaskTokeniser& tokeniser, const RulerSpec& spec) {
  CONDENSE_CHECK(CheckRulerTask(spec.task).ok());
  const RulerTask task = TaskOf(tokeniser, spec);
  const int n_most = spec.n_context - task.n_generate;  // of the prompt
  const auto fits = [&](int size) {
    return static_cast<int>(Prompt(tokeniser, task.make(size)).size()) <= n_most;
  };
  if (!fits(task.least)) {
    return Error{fmt::format(
        "task {} does not fit a context of {} tokens with {} for the answer: its smallest prompt "
        "takes {}",
        spec.task, spec.n_context, task.n_generate,
        Prompt(tokeniser, task.make(task.least)).size())};
  }
  int fit = task.least, too_much = std::max(spec.n_context, task.least + 1);
  while (too_much - fit > 1) {
    const int middle = fit + (too_much - fit) / 2;
    (fits(middle) ? fit : too_much) = middle;
  }
  RulerText text = task.make(fit);
  TaskItem item;
  item.task = spec.task;
  item.prompt = Prompt(tokeniser, text);
  item.expected = std::move(text.expected);
  item.n_generate = task.n_generate;
  return item;
}

}  // namespace condense
