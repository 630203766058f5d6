// Why sparse decisions part from dense's, cause by cause: the choice of blocks (a policy against
// the oracle at equal rows), the support (the oracle at growing S), the directions of values (the
// oracle by=value; the tail, which estimates what is left out), and recursive drift (rows that
// sparse steps wrote, kept or decoded again dense). Differences of pairs of rows that differ in one
// cause alone, by prefix; causes overlap, so they do not add up. An open question of arXiv
// 2602.06317 v3.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "lab/experiment.h"
#include "lab/prefix_rows.h"
#include "lab/row_figures.h"
#include "metrics/bootstrap.h"

namespace condense {
namespace {

constexpr const char* kDefaultSpec =
    R"(# Why sparse decisions part from dense's: retrieval, support, values, drift.
experiment = "causes"

# GGUF files. -m on the command line takes their place; none: the default model.
models = []

# Files of plain text: paths, or names within --texts or beside this spec.
texts = ["wikitext-2-raw-test.txt"]

# Tokens of a text before each of its prefixes.
offsets = [0, 100000, 200000]

# Tokens of a prefix. Rows decoded again and oracles make a cell here dearer than elsewhere.
contexts = [7600]

# Tokens after a prefix: the first by the dense prefill, the others decisions.
tokens = 48

# The policy whose error is taken apart: one that scores blocks and takes `tokens` and `tail`, as
# mean, quest, unique or mass; without keys of its budget.
policy = "mean"

# Rows that a query head reads: one anchor, a window of 64, blocks of 16.
supports = [97, 193, 385, 769]
)";

// What a row is made to tell; the parameter `part` of its cell.
constexpr const char* kPolicy = "policy";
constexpr const char* kOracle = "oracle";
constexpr const char* kByValue = "oracle by value";
constexpr const char* kTail = "policy with tail";
constexpr const char* kPolicyDense = "policy, rows dense";
constexpr const char* kOracleDense = "oracle, rows dense";

struct Part {
  const char* name;
  const char* keys;  // behind tokens=S
  bool of_oracle;
  bool rewrite_rows;
};
constexpr Part kParts[] = {{kPolicy, "", false, false},         {kOracle, "", true, false},
                           {kByValue, "by=value", true, false}, {kTail, "tail=on", false, false},
                           {kPolicyDense, "", false, true},     {kOracleDense, "", true, true}};

// A cause: what the row `with` loses against the row `without` it, at the same support.
struct Cause {
  const char* name;
  const char* with;
  const char* without;  // "control": the noise floor
};
constexpr Cause kCauses[] = {{"retrieval: policy, not oracle", kPolicy, kOracle},
                             {"support: oracle, not all rows", kOracle, "control"},
                             {"values: oracle by mass, not by value", kOracle, kByValue},
                             {"values: left out, not estimated (tail)", kPolicy, kTail},
                             {"drift: rows kept, not dense (policy)", kPolicy, kPolicyDense},
                             {"drift: rows kept, not dense (oracle)", kOracle, kOracleDense}};

class Causes : public Experiment {
 public:
  void Read(SpecReader& spec) override {
    prefixes_ = ReadPrefixSpec(spec);
    policy_ = spec.Policy("policy");
    supports_ = spec.Ints("supports", 1, 1 << 20);
    if (const std::string key = BudgetKeyOf(policy_); !key.empty())
      spec.Fail("policy",
                fmt::format("policy {} has a budget of its own: `supports` sets it, leave "
                            "{} out",
                            Quote(policy_), Quote(key + "=")));
    if (PolicyName(policy_) == "oracle")
      spec.Fail("policy", "the oracle is what the policy is compared with: name another");
  }

  Result<std::vector<Cell>> Plan(LabModel& model) override {
    std::vector<PrefixRow> rows;
    for (int64_t support : supports_) {
      for (const Part& part : kParts) {
        const Result<PrefixRow> row = MakeRow(model, support, part);
        if (!row.ok()) return Error{row.error()};
        rows.push_back(row.value());
      }
    }
    if (model.model().has_recurrent_state())
      return Error{
          "rows of models with recurrent state cannot be decoded again: drift cannot be measured"};
    return rows_.Plan(model, prefixes_, rows, /*n_speed_pairs=*/0);
  }

  Status RunGroup(GroupRun& run, std::span<const Cell> cells) override {
    return rows_.RunGroup(run, cells);
  }

 private:
  Result<PrefixRow> MakeRow(const LabModel& model, int64_t support, const Part& part) const {
    const std::string base = part.of_oracle ? "oracle" : policy_;
    std::string spec = WithKeys(base, fmt::format("tokens={}", support));
    spec = WithKeys(spec, part.keys);
    const Result<std::string> canonical = model.Canonical(spec);
    if (!canonical.ok()) return Error{canonical.error()};
    PrefixRow row;
    row.cell.policy = canonical.value() + (part.rewrite_rows ? " with dense rows" : "");
    row.cell.name = PolicyName(canonical.value());
    row.cell.spec = canonical.value();
    row.cell.rewrite_rows = part.rewrite_rows;
    row.own = {{"support", support}, {"part", part.name}, {"of", policy_}};
    return row;
  }

  PrefixSpec prefixes_;
  std::string policy_;
  std::vector<int64_t> supports_;
  PrefixRows rows_{"causes"};
};

// The rows of one setting, by support and part.
struct Parts {
  const RowSetting* setting;
  std::vector<int64_t> supports;

  explicit Parts(const RowSetting& of) : setting(&of) {
    for (const RowRuns& row : of.rows) {
      const int64_t support = row.parameters.value("support", int64_t{0});
      if (support > 0 && std::find(supports.begin(), supports.end(), support) == supports.end())
        supports.push_back(support);
    }
    std::sort(supports.begin(), supports.end());
  }
  // Null where it is not finished.
  const RowRuns* Find(int64_t support, const std::string& part) const {
    if (IsBaseline(part)) return setting->Find(part);
    for (const RowRuns& row : setting->rows) {
      if (row.parameters.value("support", int64_t{0}) == support &&
          row.parameters.value("part", "") == part && !row.runs.empty())
        return &row;
    }
    return nullptr;
  }
};

double GreedyKl(const RowRun& run) { return run.greedy->kl; }
double TextKl(const RowRun& run) { return run.text ? run.text->kl : std::nan(""); }
double MassOf(const RowRun& run) { return run.Hardest().mass; }

bool HasText(const RowSetting& setting) {
  return std::any_of(setting.rows.begin(), setting.rows.end(), [](const RowRuns& row) {
    return !row.runs.empty() && row.runs.front().text.has_value();
  });
}

LabTable RowsTable(const Parts& parts, bool has_text) {
  const RowSetting& setting = *parts.setting;
  LabTable table;
  table.title = "causes: " + setting.Title() + ", rows";
  table.columns = {{"S", false, 0},         {"row", true, 0},
                   {"n", false, 1},         {"mass left out", false, 2},
                   {"TF, greedy", true, 2}, {"KL, greedy", true, 1},
                   {"TF, text", true, 1},   {"KL, text", true, 0}};
  const auto add = [&](const std::string& support, const std::string& name, const RowRuns& row) {
    table.rows.push_back({support, name, fmt::format("{}", row.runs.size()),
                          PercentText(Mean(row.All(MassOf))), MatchText(PoolMatch(row, GreedyOf)),
                          MeanText(row.All(GreedyKl)), MatchText(PoolMatch(row, TextOf)),
                          has_text ? MeanText(row.All(TextKl)) : "-"});
  };
  for (const char* baseline : kBaselines) {
    if (const RowRuns* row = setting.Find(baseline)) add("-", baseline, *row);
  }
  for (int64_t support : parts.supports) {
    for (const Part& part : kParts) {
      if (const RowRuns* row = parts.Find(support, part.name))
        add(fmt::format("{}", support), part.name, *row);
    }
  }
  table.notes =
      "rows dense  each row is decoded again dense once its decision is made: no drift\n"
      "KL nats, means over prefixes (95 %: bootstrap); TF all prefixes together (95 %: Wilson)\n";
  return table;
}

// Of one cause at one support.
struct Effect {
  const Cause* cause = nullptr;
  std::vector<double> kl, match;  // by prefix: KL gained, share of equal decisions lost

  double size() const { return Mean(kl); }
  // Whether these prefixes tell it from none.
  bool IsClear() const { return kl.size() > 1 && BootstrapInterval(kl, Mean).low > 0; }
};

std::vector<Effect> EffectsAt(const Parts& parts, int64_t support) {
  std::vector<Effect> effects;
  for (const Cause& cause : kCauses) {
    const RowRuns* with = parts.Find(support, cause.with);
    const RowRuns* without = parts.Find(support, cause.without);
    if (with == nullptr || without == nullptr) continue;
    Effect effect{&cause, PairedDifferences(*with, *without, KlOf),
                  PairedDifferences(*without, *with, MatchOf)};
    if (!effect.kl.empty()) effects.push_back(std::move(effect));
  }
  return effects;
}

std::string PointsText(std::vector<double> shares) {
  for (double& share : shares) share *= 100;
  return SignedMeanText(shares);
}

// "S = 97: retrieval dominates, …"
std::string Verdict(int64_t support, const std::vector<Effect>& effects) {
  const Effect* largest = nullptr;
  for (const Effect& effect : effects) {
    if (effect.IsClear() && (largest == nullptr || effect.size() > largest->size()))
      largest = &effect;
  }
  if (largest == nullptr) {
    const bool one = !effects.empty() && effects.front().kl.size() < 2;
    return fmt::format(
        "S = {}: {}\n", support,
        one ? "one prefix: no interval, so no cause is named" : "no cause's interval is above 0");
  }
  const Effect* next = nullptr;
  for (const Effect& effect : effects) {
    if (&effect != largest && (next == nullptr || effect.size() > next->size())) next = &effect;
  }
  return fmt::format(
      "S = {}: largest is {}, KL {}{}\n", support, largest->cause->name,
      SignedMeanText(largest->kl),
      next == nullptr ? ""
                      : fmt::format("; next {}, {}", next->cause->name, SignedMeanText(next->kl)));
}

LabTable CausesTable(const Parts& parts, bool has_text) {
  LabTable table;
  table.title = "causes: " + parts.setting->Title() + ", what each costs";
  table.columns = {{"S", false, 0},
                   {"cause", true, 0},
                   {"n", false, 1},
                   {"KL", true, 0},
                   {"of the policy's KL above the floor", false, 1},
                   {"TF, points lost", true, 0}};
  std::string verdicts;
  for (int64_t support : parts.supports) {
    const std::vector<Effect> effects = EffectsAt(parts, support);
    const RowRuns* policy = parts.Find(support, kPolicy);
    const RowRuns* control = parts.Find(support, "control");
    const double above = policy != nullptr && control != nullptr
                             ? Mean(PairedDifferences(*policy, *control, KlOf))
                             : std::nan("");
    for (const Effect& effect : effects) {
      table.rows.push_back({fmt::format("{}", support), effect.cause->name,
                            fmt::format("{}", effect.kl.size()), SignedMeanText(effect.kl),
                            above > 0 ? PercentText(effect.size() / above, 0) : "-",
                            PointsText(effect.match)});
    }
    if (!effects.empty()) verdicts += Verdict(support, effects);
  }
  table.notes = fmt::format(
      "{}differences between two rows that differ in that cause alone, mean over prefixes (95 %: "
      "bootstrap over\n"
      "prefixes), on {}; a cause whose interval holds 0 is not told from none. Causes overlap and "
      "do "
      "not add up\n",
      verdicts, has_text ? "the text's own tokens" : "dense's continuation");
  return table;
}

std::vector<LabTable> Tables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  // `of` sets settings apart; baselines, which no policy is of, are in each.
  std::vector<std::string> policies;
  for (const FinishedCell& cell : cells) {
    const std::string of = cell.parameters.value("of", "");
    if (!of.empty() && std::find(policies.begin(), policies.end(), of) == policies.end())
      policies.push_back(of);
  }
  const std::string own[] = {"support", "part", "of"};
  for (const std::string& policy : policies) {
    std::vector<FinishedCell> its;
    for (const FinishedCell& cell : cells) {
      const std::string of = cell.parameters.value("of", "");
      if (of.empty() || of == policy) its.push_back(cell);
    }
    for (RowSetting& setting : CollectSettings(its, own)) {
      setting.shared["policy"] = policy;
      const Parts parts(setting);
      if (parts.supports.empty()) continue;
      const bool has_text = HasText(setting);
      tables.push_back(RowsTable(parts, has_text));
      tables.push_back(CausesTable(parts, has_text));
    }
  }
  return tables;
}

CONDENSE_REGISTER_EXPERIMENT(
    causes,
    ExperimentInfo{.name = "causes",
                   .title = "why sparse decisions part from dense's: retrieval, support, values, "
                            "drift",
                   .repeats = "nothing: arXiv 2602.06317 v3 names the causes and leaves open which "
                              "dominates",
                   .default_spec = kDefaultSpec,
                   .make = [] { return std::make_unique<Causes>(); },
                   .tables = Tables});

}  // namespace
}  // namespace condense
