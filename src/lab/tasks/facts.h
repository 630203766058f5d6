// Facts that no model can know, and distractors of the same form: invented places, sentences of
// our own. Pure functions of seed and index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace condense {

struct Fact {
  std::string stem;   // "The watchword of the Corvane observatory is the"
  std::string value;  // "amber lantern": two words, the first of them of few tokens
  std::string question;

  std::string Sentence() const { return stem + " " + value + "."; }
};

struct FactSet {
  Fact fact;
  // The same relation of other places, with other values: no word of a value is the fact's.
  std::vector<Fact> distractors;
};

// `index` >= 0: successive facts differ in relation, place and value; 0 <= n_distractors <=
// kMostDistractors.
inline constexpr int kMostDistractors = 8;
FactSet MakeFacts(uint64_t seed, int index, int n_distractors);

}  // namespace condense
