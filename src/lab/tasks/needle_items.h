// Needles as experiments ask for them: the keys of a spec, and a grid of contexts, depths and facts
// as planned items.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/lab_model.h"
#include "lab/spec_reader.h"
#include "lab/tasks/item_run.h"

namespace condense {

struct NeedleGrid {
  std::string text;
  int64_t offset = 0;  // tokens of the text before the haystack
  std::vector<int64_t> contexts;
  std::vector<double> depths;
  int n_facts = 0;  // a context and depth
  int n_distractors = 0;
  uint64_t seed = 0;
  std::string form;
  std::vector<std::string> sparse_from;
  int n_generate = 0;
  std::vector<std::string> policies;
};

// Reads the keys text, offset, contexts, depths, facts, distractors, seed, form, sparse_from,
// tokens and policies.
NeedleGrid ReadNeedleGrid(SpecReader& spec);

// What needles in one table have in common, its title: "m.gguf@1a2b3c4d, sparse from the question,
// 2 distractors, chat form, 8 tokens". Contexts, depths, facts and where they stand in which text
// are what a table counts over.
std::string NeedleSetting(const Json& parameters);

// Every context × depth × fact × sparse_from. Where `unlike`, no two items of a context ask for the
// same fact; else each depth has the same ones. Errors: a text that is too short or is not there, a
// policy that the plug-in refuses, a context beyond what the model takes.
Status PlanNeedles(LabModel& model, const std::string& experiment, const NeedleGrid& grid,
                   bool unlike, ItemPlan& plan);

}  // namespace condense
