#include "lab/tasks/needle_items.h"

#include <fmt/format.h>

#include "base/text.h"
#include "lab/tasks/facts.h"
#include "lab/tasks/item_table.h"
#include "lab/tasks/needle.h"

namespace condense {

NeedleGrid ReadNeedleGrid(SpecReader& spec) {
  constexpr int64_t kMaxTokens = int64_t{1} << 30;
  NeedleGrid grid;
  grid.text = spec.Text("text");
  grid.offset = spec.Int("offset", 0, kMaxTokens);
  grid.contexts = spec.Ints("contexts", 1, kMaxTokens);
  grid.depths = spec.Numbers("depths", 0, 1);
  grid.n_facts = static_cast<int>(spec.Int("facts", 1, 1000));
  grid.n_distractors = static_cast<int>(spec.Int("distractors", 0, kMostDistractors));
  grid.seed = static_cast<uint64_t>(spec.Int("seed", 0, kMaxTokens));
  grid.form = spec.Choice("form", {"chat", "plain"});
  grid.sparse_from = spec.Texts("sparse_from");
  for (const std::string& from : grid.sparse_from) {
    const Result<SparseFrom> known = ParseSparseFrom(from);
    if (!known.ok()) spec.Fail("sparse_from", known.error());
  }
  grid.n_generate = static_cast<int>(spec.Int("tokens", 1, 1000));
  grid.policies = spec.Policies("policies", 0);
  return grid;
}

std::string NeedleSetting(const Json& parameters) {
  return fmt::format("{}, sparse from the {}, {} distractors, {} form, {} tokens",
                     ModelText(parameters), parameters["sparse_from"].get<std::string>(),
                     parameters["distractors"].get<int>(), parameters["form"].get<std::string>(),
                     parameters["tokens"].get<int>());
}

Status PlanNeedles(LabModel& model, const NeedleGrid& grid, bool unlike, ItemPlan& plan,
                   std::vector<Cell>& cells) {
  const Result<std::vector<std::string>> rows = RowsOf(model, grid.policies);
  if (!rows.ok()) return Error{rows.error()};
  const Result<TaskTokeniser> tokeniser = TokeniserOf(model.model(), grid.form);
  if (!tokeniser.ok()) return Error{tokeniser.error()};
  const Result<const LabText*> text = model.Text(grid.text);
  if (!text.ok()) return Error{text.error()};
  const std::span<const Token> tokens = text.value()->tokens;
  if (grid.offset >= static_cast<int64_t>(tokens.size())) {
    return Error{fmt::format("text {} has {} tokens, none behind offset {}: give a smaller one",
                             Quote(text.value()->path), tokens.size(), grid.offset)};
  }
  for (const std::string& from : grid.sparse_from) {
    for (const int64_t context : grid.contexts) {
      for (size_t d = 0; d < grid.depths.size(); ++d) {
        for (int i = 0; i < grid.n_facts; ++i) {
          const int fact = unlike ? static_cast<int>(d) * grid.n_facts + i : i;
          const Result<TaskItem> item = MakeNeedle(tokeniser.value(), tokens.subspan(grid.offset),
                                                   {.seed = grid.seed,
                                                    .n_context = static_cast<int>(context),
                                                    .depth = grid.depths[d],
                                                    .fact = fact,
                                                    .n_distractors = grid.n_distractors,
                                                    .n_generate = grid.n_generate});
          if (!item.ok())
            return Error{fmt::format("text {}: {}", Quote(text.value()->path), item.error())};
          Json shared = model.Parameters();
          shared["text"] = LabModel::TextParameter(*text.value());
          shared["offset"] = grid.offset;
          shared["form"] = grid.form;
          shared["seed"] = grid.seed;
          shared["distractors"] = grid.n_distractors;
          shared["tokens"] = grid.n_generate;
          shared["sparse_from"] = from;
          shared["context"] = context;
          shared["depth"] = grid.depths[d];
          shared["fact"] = fact;
          const Status added = plan.Add(model, shared, item.value(), ParseSparseFrom(from).value(),
                                        rows.value(), cells);
          if (!added.ok()) return added;
        }
      }
    }
  }
  return Status();
}

}  // namespace condense
