// A needle in a haystack: a fact somewhere in a long text, distractors of its form elsewhere, and a
// question behind (G. Kamradt's test; arXiv 2602.06317 v3, table 2, names contexts, depths and
// first-token match, not its facts: these are ours). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "lab/tasks/item.h"
#include "lab/tasks/tokeniser.h"

namespace condense {

struct NeedleSpec {
  uint64_t seed = 0;
  int n_context = 0;  // tokens of the whole prompt, BOS and template among them: met exactly
  double depth = 0;   // share of the text before the fact, [0, 1]
  int fact = 0;       // which one
  int n_distractors = 0;
  int n_generate = 0;  // tokens of an answer; at least the right one's
};

// `filler`: tokens of a text; as many of them from the beginning are taken as the prompt wants. The
// fact stands behind the sentence's end that is nearest to its depth, distractors behind others
// that the seed draws. Errors: a text that is too short, a context that holds no text, no
// sentence's end within a tenth of the text from the depth asked for.
Result<TaskItem> MakeNeedle(const TaskTokeniser& tokeniser, std::span<const Token> filler,
                            const NeedleSpec& spec);

// Places of `text` behind which a sentence ends, ascending, 0 and the text's length among them. A
// full stop behind a single capital letter or a short title ("Mr.") ends none.
std::vector<int> SentenceEnds(const TaskTokeniser& tokeniser, std::span<const Token> text);

}  // namespace condense
