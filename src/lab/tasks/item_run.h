// Items put to a model: one dense prefill each, then every policy answers from it, greedily. What
// is decoded under the policy is the answer, from its first token on, or the question before it as
// well. Prints nothing and keeps nothing.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/experiment.h"
#include "lab/lab_records.h"
#include "lab/tasks/item.h"

namespace condense {

// Where one-row steps under the policy begin. kAnswer: with the prompt's last token, so that the
// answer's first token is the first sparse decision, and the prefill has read the question.
// kQuestion: with the question's first token, so that text and question meet under the policy
// alone.
enum class SparseFrom { kAnswer, kQuestion };

// "answer", "question".
Result<SparseFrom> ParseSparseFrom(const std::string& name);
const std::vector<std::string>& SparseFromNames();

// The dense prefill that the item's answers share. `policies`: specs of those that will answer, for
// what they want kept of prompts.
Status PrefillItem(Session& session, const Plugin& plugin, const TaskItem& item, SparseFrom from,
                   std::span<const std::string> policies, const Session::Progress& progress);

// A policy's answer behind PrefillItem, whatever answered before: up to n_generate tokens, to the
// end of generation, or until nothing could change the score. `policy`: canonical, "dense" or
// "control". `on_step` gets the share of its steps that is done. Errors: decoding fails, or the
// counters are no measurement of the policy (CheckCounters).
Result<ItemRecord> AnswerItem(Session& session, const Plugin& plugin, const TaskItem& item,
                              SparseFrom from, const std::string& policy,
                              const std::function<void(double share)>& on_step);

// The plug-in's spec of a row: the control has one of its own.
std::string SpecOfRow(const std::string& policy);

// An experiment's items, of all models: planned once, run by group.
class ItemPlan {
 public:
  explicit ItemPlan(std::string experiment) : experiment_(std::move(experiment)) {}

  // Appends a cell for each policy to `cells`. `shared` names the item and all that its prefill
  // depends on. Errors: the model takes fewer positions.
  Status Add(const LabModel& model, const Json& shared, TaskItem item, SparseFrom from,
             std::span<const std::string> policies, std::vector<Cell>& cells);

  // Runs the cells, of one group that was added, for whichever model.
  Status RunGroup(GroupRun& run, std::span<const Cell> cells) const;

 private:
  struct Planned {
    TaskItem item;
    SparseFrom from = SparseFrom::kAnswer;
  };
  const std::string experiment_;
  std::map<std::string, Planned> items_;  // by group
};

// "dense", "control", then the policies as the plug-in spells them, each once.
Result<std::vector<std::string>> RowsOf(const LabModel& model,
                                        std::span<const std::string> policies);

}  // namespace condense
