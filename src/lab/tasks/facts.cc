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

}  // namespace

FactSet MakeFacts(uint64_t seed, int index, int n_distractors) {
  CONDENSE_CHECK(index >= 0 && n_distractors >= 0 && n_distractors <= kMostDistractors);
  const Relation& relation = kRelations[index % kRelations.size()];
  Draw draw({seed, StreamOf("fact"), static_cast<uint64_t>(index)});
  const int n = 1 + n_distractors;
  const std::vector<int> places = draw.Several(n, static_cast<int>(kPlaces.size()));
  const std::vector<int> adjectives = draw.Several(n, static_cast<int>(kAdjectives.size()));
  const std::vector<int> nouns = draw.Several(n, static_cast<int>(kNouns.size()));
  FactSet set;
  for (int i = 0; i < n; ++i) {
    Fact fact =
        MakeFact(relation, kPlaces[places[i]], kAdjectives[adjectives[i]] + " " + kNouns[nouns[i]]);
    if (i == 0) {
      set.fact = std::move(fact);
    } else {
      set.distractors.push_back(std::move(fact));
    }
  }
  return set;
}

}  // namespace condense
