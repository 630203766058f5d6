#include "lab/tasks/facts.h"

#include "lab/tasks/draw.h"

namespace condense {
namespace {

struct Relation {
  const char *before, *after;  // of the place, in the statement
  const char *asks_before, *asks_after;
};

const std::vector<Relation> kRelations = {
    {"The watchword of the ", " observatory is the", "What is the watchword of the ",
     " observatory?"},
    {"The ferry captain of ", " calls his boat the", "What does the ferry captain of ",
     " call his boat?"},
    {"The oldest exhibit in the museum of ", " is the",
     "What is the oldest exhibit in the museum of ", "?"},
    {"The innkeeper of ", " named her tavern the", "What did the innkeeper of ",
     " name her tavern?"},
    {"The guild of ", " meets under the sign of the", "Under which sign does the guild of ",
     " meet?"},
    {"The winning kite at the ", " fair was called the", "What was the winning kite at the ",
     " fair called?"},
};

const std::vector<std::string> kPlaces = {
    "Corvane",  "Tellwick", "Ostrey",  "Halden",   "Merrowby", "Brask",    "Dunmere",  "Quillon",
    "Sarnford", "Vintle",   "Pelham",  "Grisdale", "Lorrimer", "Anselby",  "Thornick", "Wexley",
    "Cadmoor",  "Fenwold",  "Iverley", "Jarrow",   "Kelstow",  "Marchena", "Norrish",  "Oakhurst",
};

// Common words, so that a value's first word is one token, or few, in most vocabularies.
const std::vector<std::string> kAdjectives = {
    "amber",  "silver", "painted", "copper", "wooden", "crimson", "velvet",  "broken", "marble",
    "hollow", "golden", "frozen",  "quiet",  "rusty",  "purple",  "ancient", "clever", "humble",
};
const std::vector<std::string> kNouns = {
    "lantern", "heron",  "drum",  "bell",    "compass", "fox",    "harp",   "mirror",  "owl",
    "anchor",  "button", "crown", "dolphin", "feather", "kettle", "ladder", "penguin", "violin",
};

Fact MakeFact(const Relation& relation, const std::string& place, std::string value) {
  return {relation.before + place + relation.after, std::move(value),
          relation.asks_before + place + relation.asks_after};
}

std::vector<std::string> Shuffled(Draw& draw, std::vector<std::string> words) {
  draw.Shuffle(words);
  return words;
}

}  // namespace

FactSet MakeFacts(uint64_t seed, int index, int n_distractors) {
  CONDENSE_CHECK(index >= 0 && n_distractors >= 0 && n_distractors <= kMostDistractors);
  const Relation& relation = kRelations[index % kRelations.size()];
  Draw draw({seed, StreamOf("facts")});
  const std::vector<std::string> places = Shuffled(draw, kPlaces),
                                 adjectives = Shuffled(draw, kAdjectives),
                                 nouns = Shuffled(draw, kNouns);
  const auto at = [](const std::vector<std::string>& words, int i) {
    return words[i % words.size()];
  };
  FactSet set;
  for (int i = index; i <= index + n_distractors; ++i) {
    // Another noun for an adjective that comes round again.
    const int turn = i / static_cast<int>(adjectives.size());
    Fact fact = MakeFact(relation, at(places, i), at(adjectives, i) + " " + at(nouns, i + turn));
    if (i == index) {
      set.fact = std::move(fact);
    } else {
      set.distractors.push_back(std::move(fact));
    }
  }
  return set;
}

}  // namespace condense
