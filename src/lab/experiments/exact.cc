// Exact decoding in the lab: how many tokens that a source drafts dense attention confirms, by
// source, length, context and kind of text; whether the text is dense decoding's; tokens a second
// beside dense decoding's. A cell is one draft source at one length (lab/exact_run.h). There is no
// control: a text is dense's or it is not. llama.cpp itself is another process.
#include "decode/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/text.h"
#include "lab/cells.h"
#include "lab/exact_run.h"
#include "lab/exact_table.h"
#include "lab/experiment.h"
#include "lab/lab_records.h"
#include "lab/prefix_spec.h"
#include "lab/runs.h"
#include "lab/tasks/tokeniser.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# What drafts are worth: acceptance and speed of exact decoding, by source, length and text.
experiment = "exact"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of prose: paths, or names within --texts or beside this spec.
texts = ["wikitext-2-raw-test.txt"]

# Files of program text, likewise; none by default.
code_texts = []

# Prompts made of each of `texts`: "repetition", a passage over and over; "question", a question
# about the text in the model's chat template, whose answer is decoded to its end.
made = ["repetition", "question"]
passage_tokens = 300         # of what is repeated
question = "Which persons and places does this text name? Quote the sentences that name them."
form = "chat"                # the model's chat template; or "plain"

# Tokens of a text before each of its prefixes.
offsets = [0, 100000]

# Tokens of a prefix; a question stands behind it.
contexts = [2000]

# Tokens after a prefix, the first by the dense prefill.
tokens = 64

# Draft sources: policies, "lookup", "lookup+POLICY". `random` is the level of chance.
drafts = ["lookup", "condense:budget=8%", "lookup+condense:budget=8%", "mean:budget=8%",
          "random:budget=8%"]

# Tokens of a draft, 1 to 16; "auto": chosen by measured cost, so that its counts are of the clock.
draft_tokens = ["auto", "4", "16"]

# Pairs of a dense and an exact run of all tokens, in turns, a cell.
speed_pairs = 2
)";

constexpr const char* kName = "exact";
constexpr const char* kDense = "dense";
constexpr const char* kRepetition = "repetition";
constexpr const char* kQuestion = "question";

// "lookup+condense:budget=8%,…" with the policy as the plug-in spells it.
Result<std::string> CanonicalDraft(const LabModel& model, const std::string& draft) {
  const Result<DraftText> read = ReadDraft(draft);
  if (!read.ok()) return Error{read.error()};
  if (read->policy.empty()) return draft;
  const Result<std::string> canonical = model.Canonical(read->policy);
  if (!canonical.ok()) return canonical;
  if (IsDense(canonical.value()))
    return Error{"draft " + Quote(draft) + " reads everything: it drafts nothing"};
  return (read->looks_up ? "lookup+" : "") + canonical.value();
}

std::string LengthText(int length) { return length == 0 ? "auto" : std::to_string(length); }

class Exact : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    code_texts_ = spec.Texts("code_texts", 0);
    made_ = spec.Texts("made", 0);
    n_passage_ = static_cast<int>(spec.Int("passage_tokens", 8, 1 << 20));
    question_ = spec.Text("question");
    form_ = spec.Choice("form", {"chat", "plain"});
    drafts_ = spec.Texts("drafts");
    for (const std::string& draft : drafts_) {
      const Result<DraftText> read = ReadDraft(draft);
      if (!read.ok()) {
        spec.Fail("drafts", draft, read.error());
      } else if (!read->policy.empty()) {
        spec.CheckPolicy("drafts", draft, read->policy);
      }
    }
    const std::vector<std::string> lengths = spec.Texts("draft_tokens");
    n_speed_pairs_ = static_cast<int>(spec.Int("speed_pairs", 1, 1000));
    if (!spec.ok()) return;
    for (const std::string& made : made_) {
      if (made != kRepetition && made != kQuestion)
        spec.Fail("made", Quote(made) + " is neither \"repetition\" nor \"question\"");
      for (int64_t context : prefixes_.contexts) {
        if (made != kRepetition || context >= int64_t{2} * n_passage_) continue;
        spec.Fail("passage_tokens",
                  fmt::format("{} tokens do not hold a passage of {} twice", context, n_passage_));
      }
    }
    if (question_.empty()) spec.Fail("question", "is empty");
    for (const std::string& text : lengths) {
      const Result<int64_t> n = text == "auto" ? Result<int64_t>(0) : ParseInt(text);
      if (!n.ok() || n.value() > ExactOptions::kMostDrafted || (n.value() < 1 && text != "auto")) {
        spec.Fail("draft_tokens", fmt::format("{} is neither \"auto\" nor \"1\" to \"{}\"",
                                              Quote(text), ExactOptions::kMostDrafted));
        return;
      }
      lengths_.push_back(static_cast<int>(n.value()));
    }
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    const Status can = CheckRowsCanBeRemoved(model.model());
    if (!can.ok()) return Error{can.error()};
    std::vector<ExactDraft> drafts = {{kDense, 0}};
    for (const std::string& draft : drafts_) {
      const Result<std::string> canonical = CanonicalDraft(model, draft);
      if (!canonical.ok()) return Error{canonical.error()};
      const bool known = std::any_of(drafts.begin(), drafts.end(), [&](const ExactDraft& other) {
        return other.source == canonical.value();
      });
      if (known) continue;  // spelled otherwise
      for (int length : lengths_) drafts.push_back({canonical.value(), length});
    }
    Result<std::vector<Planned>> prompts = PlanPrompts(model);
    if (!prompts.ok()) return Error{prompts.error()};
    std::vector<Cell> cells;
    for (Planned& prompt : prompts.value()) {
      prompt.prefix.shared["tokens"] = prefixes_.n_generate;
      prompt.prefix.shared["speed_pairs"] = n_speed_pairs_;
      for (const ExactDraft& draft : drafts) {
        Json own{{"policy", draft.source}};
        if (draft.source != kDense) own["draft_tokens"] = LengthText(draft.length);
        cells.push_back(MakeCell(kName, prompt.prefix.shared, own, prompt.prefix.n_rows));
        prompt.drafts[cells.back().id] = draft;
        if (draft.source != kDense)
          prompt.policies.push_back(ReadDraft(draft.source).value().policy);
      }
      std::erase(prompt.policies, "");
      groups_[cells.back().group] = std::move(prompt);
    }
    return cells;
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    const Planned& planned = groups_.at(cells[0].group);
    const LabPrefix& prefix = planned.prefix;
    const Result<Session*> opened = run.OpenSession();
    if (!opened.ok()) return Error{opened.error()};
    Session& session = *opened.value();
    Json dense_cell = prefix.shared;
    dense_cell["policy"] = kDense;
    const Result<DenseReference> reference = DecodeReference(run, session, prefix,
                                                             {.policies = planned.policies,
                                                              .n_tokens = prefixes_.n_generate,
                                                              .to_end = planned.to_end,
                                                              .dense_cell = CellId(dense_cell)});
    if (!reference.ok()) return Error{reference.error()};
    const Result<IdentityProbe> probe = Probe(run, session, prefix.prompt);
    if (!probe.ok()) return Error{probe.error()};
    for (const Cell& cell : cells) {
      const Clock::time_point start = Clock::now();
      run.Working(cell, 0);
      const ExactDraft& draft = planned.drafts.at(cell.id);
      const Result<ExactFigures> figures =
          MeasureExact(session, run.plugin(), prefix.prompt, reference.value(), probe.value(),
                       draft, n_speed_pairs_, [&](double share) { run.Working(cell, share); });
      if (!figures.ok()) return Error{figures.error()};
      const Status written =
          Write(run, cell, prefix, reference->prompt, draft, figures.value(), SecondsSince(start));
      if (!written.ok()) return written;
    }
    return Status();
  }

 private:
  struct Planned {
    LabPrefix prefix;
    bool to_end = false;                         // an answer, which may end early
    std::map<std::string, ExactDraft> drafts{};  // by cell
    std::vector<std::string> policies{};         // that draft
  };

  // Behind the group's prefill, of as many rows as any draft wants.
  static Result<IdentityProbe> Probe(GroupRun& run, Session& session,
                                     const std::vector<Token>& prompt) {
    const Status begun = BeginRun(session, run.plugin(), kDense);
    if (!begun.ok()) return Error{begun.error()};
    const Clock::time_point start = Clock::now();
    const std::vector<Token> tokens = ProbeTokens(prompt, ExactOptions::kMostDrafted + 1);
    Result<IdentityProbe> probe = ProbeIdentity(session, tokens, [&](int n_done, int n_total) {
      run.Preparing("comparing several rows with single ones", n_done, n_total);
    });
    run.Spent("comparing several rows with single ones", SecondsSince(start));
    return probe;
  }

  static Status Write(GroupRun& run, const Cell& cell, const LabPrefix& prefix,
                      const PromptRecord& prompt, const ExactDraft& draft,
                      const ExactFigures& figures, double seconds) {
    CellRecord end;
    end.policy = draft.source;
    end.name = PolicyName(draft.source);
    end.seconds = seconds;
    std::vector<Json> lines;
    if (draft.source == kDense) lines.push_back(PromptLine(prefix, prompt));
    if (!figures.was_sparse) {
      end.state = "unmet";
      end.reason = "the budget cannot be met at this depth: every drafted step was dense";
    } else {
      lines.push_back(ToJson(figures, draft));
    }
    if (figures.first_difference) {
      run.Warn(
          fmt::format("{}: token {} is not dense decoding's, with {} rows of one call equal "
                      "to single ones",
                      cell.id, *figures.first_difference, figures.equal_rows));
    }
    return run.Finish(cell, lines, end);
  }

  // Prose and code as they are, then what is made of the prose.
  Result<std::vector<Planned>> PlanPrompts(LabModel& model) const {
    std::vector<Planned> all;
    PrefixSpec code = prefixes_;
    code.texts = code_texts_;
    const Result<std::vector<LabPrefix>> prose = PlanPrefixes(model, prefixes_);
    if (!prose.ok()) return Error{prose.error()};
    const Result<std::vector<LabPrefix>> of_code = PlanPrefixes(model, code);
    if (!of_code.ok()) return Error{of_code.error()};
    const auto add = [&](const LabPrefix& prefix, const char* kind) -> LabPrefix& {
      all.push_back({.prefix = prefix, .to_end = std::string_view(kind) == kQuestion});
      all.back().prefix.shared["kind"] = kind;
      return all.back().prefix;
    };
    for (const LabPrefix& prefix : prose.value()) add(prefix, "prose");
    for (const LabPrefix& prefix : of_code.value()) add(prefix, "code");
    for (const std::string& made : made_) {
      for (const LabPrefix& prefix : prose.value()) {
        LabPrefix& own = add(prefix, made == kQuestion ? kQuestion : kRepetition);
        if (made == kRepetition) {
          Repeat(model, own);
          continue;
        }
        const Status asked = Ask(model, own);
        if (!asked.ok()) return Error{asked.error()};
      }
    }
    // The probe decodes behind the prompt too.
    for (Planned& planned : all) {
      LabPrefix& prefix = planned.prefix;
      prefix.n_rows = std::max(
          prefix.n_rows, static_cast<int>(prefix.prompt.size()) + ExactOptions::kMostDrafted + 1);
      const int n_positions = model.model().n_positions();
      if (n_positions == 0 || prefix.n_rows <= n_positions) continue;
      return Error{fmt::format(
          "a prompt of {} tokens and what is decoded behind it make {} positions, but {} takes {}: "
          "give shorter contexts in the spec",
          prefix.prompt.size(), prefix.n_rows, model.Name(), n_positions)};
    }
    return all;
  }

  // The prefix's first tokens over and over, to its length.
  void Repeat(const LabModel& model, LabPrefix& prefix) const {
    const size_t begin = model.model().add_bos() ? 1 : 0;
    for (size_t i = begin + n_passage_; i < prefix.prompt.size(); ++i)
      prefix.prompt[i] = prefix.prompt[i - n_passage_];
    prefix.shared["passage_tokens"] = n_passage_;
  }

  Status Ask(const LabModel& model, LabPrefix& prefix) const {
    const Result<TaskTokeniser> tokeniser = TokeniserOf(model.model(), form_);
    if (!tokeniser.ok()) return Error{tokeniser.error()};
    const size_t begin = model.model().add_bos() ? 1 : 0;
    const std::vector<Token> text(prefix.prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                                  prefix.prompt.end());
    prefix.prompt = tokeniser->head;
    for (const auto& part :
         {text, tokeniser->tokens("\n\nQuestion: " + question_), tokeniser->Tail()}) {
      prefix.prompt.insert(prefix.prompt.end(), part.begin(), part.end());
    }
    prefix.n_rows = static_cast<int>(prefix.prompt.size()) + prefixes_.n_generate;
    prefix.shared["form"] = form_;
    prefix.shared["question"] = question_;
    return Status();
  }

  PrefixSpec prefixes_;
  std::vector<std::string> code_texts_, made_, drafts_;
  int n_passage_ = 0, n_speed_pairs_ = 0;
  std::string question_, form_;
  std::vector<int> lengths_;  // 0: auto
  std::map<std::string, Planned> groups_;
};

CONDENSE_REGISTER_EXPERIMENT(
    exact,
    ExperimentInfo{.name = kName,
                   .title = "what drafts are worth: acceptance and speed of exact decoding",
                   .repeats = "nothing: self-speculation as in arXiv 2408.11049 and 2404.11912 and "
                              "prompt lookup, here with dense decoding's own text",
                   .default_spec = kDefaultSpec,
                   .make = [] { return std::make_unique<Exact>(); },
                   .tables = ExactTables});

}  // namespace
}  // namespace condense
