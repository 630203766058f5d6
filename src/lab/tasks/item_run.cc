#include "lab/tasks/item_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "decode/sha256.h"
#include "lab/cells.h"
#include "lab/compare.h"
#include "lab/runs.h"
#include "lab/tasks/score.h"

namespace condense {
namespace {

// Tokens of the prompt that the prefill takes.
int PrefillTokens(const TaskItem& item, SparseFrom from) {
  const int n = from == SparseFrom::kAnswer ? static_cast<int>(item.prompt.size()) - 1
                                            : item.n_before_question;
  CONDENSE_CHECK(n > 0 && n < static_cast<int>(item.prompt.size()));
  return n;
}

std::string TextOf(const Model& model, const std::vector<Token>& tokens) {
  std::string text;
  for (const std::string& piece : model.Pieces(tokens)) text += piece;
  return text;
}

std::string PromptSha256(const std::vector<Token>& prompt) {
  return TextSha256(
      std::string(reinterpret_cast<const char*>(prompt.data()), prompt.size() * sizeof(Token)));
}

// Dense answers are no figure of a policy whose budget is too small for what it always reads.
bool BudgetUnmet(const ItemRecord& record) {
  return record.sparse_steps == 0 &&
         record.fallbacks.contains(FallbackName(CONDENSE_FALLBACK_BUDGET));
}

// What came, against what was wanted.
void Judge(const TaskItem& item, ItemRecord& record) {
  record.score = StringMatchAll(record.answer, item.expected);
  const std::vector<Token>& came = record.answer_tokens;
  if (item.answer.empty()) {
    record.full_match = record.score == 1;
    return;
  }
  record.first_token_expected = item.answer[0];
  record.first_token_match = !came.empty() && came[0] == item.answer[0];
  record.full_match = came.size() >= item.answer.size() &&
                      std::equal(item.answer.begin(), item.answer.end(), came.begin());
}

}  // namespace

const std::vector<std::string>& SparseFromNames() {
  static const std::vector<std::string> names = {"answer", "question"};
  return names;
}

Result<SparseFrom> ParseSparseFrom(const std::string& name) {
  if (name == "answer") return SparseFrom::kAnswer;
  if (name == "question") return SparseFrom::kQuestion;
  return Error{"sparse decoding begins with the answer or the question, not with " + Quote(name) +
               DidYouMean(name, SparseFromNames())};
}

std::string SpecOfRow(const std::string& policy) {
  return policy == "control" ? kControlSpec : policy;
}

Status PrefillItem(Session& session, const Plugin& plugin, const TaskItem& item, SparseFrom from,
                   std::span<const std::string> policies, const Session::Progress& progress) {
  const std::vector<Token> prefix(item.prompt.begin(),
                                  item.prompt.begin() + PrefillTokens(item, from));
  const Result<DensePrefillResult> prefill =
      DensePrefill(session, plugin, prefix, policies, progress);
  return prefill.ok() ? Status() : Status(Error{prefill.error()});
}

Result<ItemRecord> AnswerItem(Session& session, const Plugin& plugin, const TaskItem& item,
                              SparseFrom from, const std::string& policy,
                              const std::function<void(double share)>& on_step) {
  ItemRecord record;
  record.policy = policy;
  record.spec = SpecOfRow(policy);
  record.task = item.task;
  record.prompt_sha256 = PromptSha256(item.prompt);
  record.n_prompt = static_cast<int>(item.prompt.size());
  record.expected = item.expected;
  const Status begun = BeginRun(session, plugin, record.spec);
  if (!begun.ok()) return Error{begun.error()};

  const Model& model = session.model();
  const int n_prefilled = PrefillTokens(item, from);
  const int n_steps = record.n_prompt - n_prefilled + item.n_generate - 1;
  int n_done = 0;
  for (int i = n_prefilled; i < record.n_prompt - 1; ++i) {
    const Result<Logits> logits = session.Step(item.prompt[i]);
    if (!logits.ok()) return Error{logits.error()};
    if (on_step) on_step(static_cast<double>(++n_done) / n_steps);
  }
  Token token = item.prompt.back();
  for (int i = 0; i < item.n_generate; ++i) {
    const Result<Logits> logits = session.Step(token);
    if (!logits.ok()) return Error{logits.error()};
    if (on_step) on_step(static_cast<double>(++n_done) / n_steps);
    token = GreedyToken(logits.value());
    if (i == 0) record.first_token = token;
    ++record.n_decisions;
    if (model.IsEndOfGeneration(token)) break;
    record.answer_tokens.push_back(token);
    // Of text alone: more of it never lowers the score (StringMatchAll).
    if (item.answer.empty() &&
        StringMatchAll(TextOf(model, record.answer_tokens), item.expected) == 1) {
      break;
    }
  }
  const CounterSnapshot counters = plugin.Counters();
  const bool sparse = !IsDense(record.spec);
  const Status measured = CheckCounters(policy, sparse, counters);
  if (!measured.ok()) return Error{measured.error()};
  record.Count(counters);
  record.answer = TextOf(model, record.answer_tokens);
  Judge(item, record);
  return record;
}

Status ItemPlan::Add(const LabModel& model, const std::string& experiment, const Json& shared,
                     TaskItem item, SparseFrom from, std::span<const std::string> policies) {
  const int n_rows = static_cast<int>(item.prompt.size()) + item.n_generate;
  const int n_positions = model.model().n_positions();
  if (n_positions > 0 && n_rows > n_positions) {
    return Error{fmt::format(
        "a prompt of {} tokens and {} of an answer make {} positions, but {} takes {}: give "
        "shorter contexts in the spec, or another model",
        item.prompt.size(), item.n_generate, n_rows, model.Name(), n_positions)};
  }
  for (const std::string& policy : policies)
    cells_.push_back(MakeCell(experiment, shared, Json{{"policy", policy}}, n_rows));
  CONDENSE_CHECK(!policies.empty());
  const bool is_new = items_.emplace(cells_.back().group, Planned{std::move(item), from}).second;
  CONDENSE_CHECK(is_new);
  return Status();
}

Status ItemPlan::RunGroup(GroupRun& run, std::span<const Cell> cells) const {
  const auto planned = items_.find(cells[0].group);
  CONDENSE_CHECK(planned != items_.end());
  const auto& [item, from] = planned->second;
  const Result<Session*> opened = run.OpenSession();
  if (!opened.ok()) return Error{opened.error()};
  Session& session = *opened.value();
  std::vector<std::string> specs;
  for (const Cell& cell : cells) specs.push_back(SpecOfRow(cell.parameters["policy"]));
  const Clock::time_point start = Clock::now();
  const Status prefilled = PrefillItem(
      session, run.plugin(), item, from, specs,
      [&](int n_done, int n_total) { run.Preparing("dense prefill", n_done, n_total); });
  if (!prefilled.ok()) return prefilled;
  run.Spent("prefill", SecondsSince(start));
  for (const Cell& cell : cells) {
    const Clock::time_point begin = Clock::now();
    run.Working(cell, 0);
    const Result<ItemRecord> record =
        AnswerItem(session, run.plugin(), item, from, cell.parameters["policy"],
                   [&](double share) { run.Working(cell, share); });
    if (!record.ok()) return Error{record.error()};
    CellRecord end;
    end.policy = record->policy;
    end.name = PolicyName(record->policy);
    end.seconds = SecondsSince(begin);
    run.Spent("answers", end.seconds);
    std::vector<Json> lines;
    if (BudgetUnmet(record.value())) {
      end.state = "unmet";
      end.reason = fmt::format("the budget cannot be met with {} tokens: every step was dense",
                               record->n_prompt);
    } else {
      lines.push_back(ToJson(record.value()));
    }
    const Status finished = run.Finish(cell, lines, std::move(end));
    if (!finished.ok()) return finished;
  }
  return Status();
}

Result<std::vector<std::string>> RowsOf(const LabModel& model,
                                        std::span<const std::string> policies) {
  std::vector<std::string> rows = {"dense", "control"};
  for (const std::string& policy : policies) {
    const Result<std::string> canonical = model.Canonical(policy);
    if (!canonical.ok()) return Error{canonical.error()};
    if (std::find(rows.begin(), rows.end(), canonical.value()) == rows.end())
      rows.push_back(canonical.value());
  }
  return rows;
}

}  // namespace condense
