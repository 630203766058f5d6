// Each sentence has its own kind of record; one without records is left out.
#include "report/lab_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "metrics/stats.h"
#include "report/html.h"
#include "report/lab_charts.h"
#include "report/lab_decoding_findings.h"
#include "report/tables.h"

namespace condense::report {
namespace {

std::string Name(const PolicyRow& row) {
  if (!row.is_sparse()) return SpecHtml(row.policy);
  return row.budget ? EscapeHtml(row.Label()) : KeyHtml(row) + "&nbsp;" + SpecHtml(row.policy);
}

struct Runs {
  int64_t n = 0, n_survive = 0;
  std::vector<double> t_div{};  // of those that part
};

// Autonomous runs of a row, whatever the setting; both teachers' lines tell of the same run.
Runs RunsOf(const LabView& lab, const PolicyRow& row) {
  Runs runs;
  for (const Json* line : OncePerCell(lab.Lines(row, "policy", ""), "t_div")) {
    ++runs.n;
    if (const auto t_div = Number(*line, "t_div"))
      runs.t_div.push_back(*t_div);
    else
      ++runs.n_survive;
  }
  return runs;
}

std::string Parted(const std::vector<double>& t_div) {
  if (t_div.empty()) return "";
  const auto [first, last] = std::minmax_element(t_div.begin(), t_div.end());
  if (*first == *last) return "at decision " + FormatCount(*first);
  return fmt::format("at decision {} in the median ({} to {})",
                     fmt::format("{:g}", Quantile(t_div, 0.5)), FormatCount(*first),
                     FormatCount(*last));
}

std::string Autonomous(const LabView& lab) {
  Runs all;
  for (const PolicyRow* row : lab.view.SparseRows()) {
    const Runs runs = RunsOf(lab, *row);
    all.n += runs.n;
    all.n_survive += runs.n_survive;
    all.t_div.insert(all.t_div.end(), runs.t_div.begin(), runs.t_div.end());
  }
  if (all.n == 0) return "";
  const Interval share = WilsonInterval(all.n_survive, all.n);
  std::string out = fmt::format(
      "Writing freely, {} of {} sparse runs wrote dense’s text through all {} decisions ({} to {})",
      all.n_survive, all.n, FormatCount(lab.view.Horizon()), FormatPercent(share.low),
      FormatPercent(share.high));
  if (!all.t_div.empty()) out += "; the others parted " + Parted(all.t_div);
  out += ". ";
  const PolicyRow* control = lab.view.Row("control");
  const Runs floor = control ? RunsOf(lab, *control) : Runs{};
  if (floor.n == 0)
    return out +
           "These records hold no control, so how much of this is mere rounding is not known. ";
  out += fmt::format("The control, dense summed in another order, did so in {} of {}",
                     floor.n_survive, floor.n);
  if (!floor.t_div.empty()) out += " and parted otherwise " + Parted(floor.t_div);
  return out + ". ";
}

// A figure of runs under a teacher, or of items of a task.
struct Figure {
  const char* field;
  std::string series;
  bool of_items = false;
};

std::vector<const Json*> LinesOf(const LabView& lab, const PolicyRow& row, const Figure& figure) {
  return Having(lab.Lines(row, figure.of_items ? "item" : "policy", ""),
                figure.of_items ? "task" : "teacher", figure.series);
}

struct Ranked {
  const PolicyRow* row;
  Pool value;
  double share;
};

// Sparse rows by the mean of a figure over all settings, best first.
std::vector<Ranked> Rank(const LabView& lab, const Figure& figure) {
  std::vector<Ranked> ranked;
  for (const PolicyRow* row : lab.view.SparseRows()) {
    const std::vector<const Json*> lines = LinesOf(lab, *row, figure);
    const auto value = PoolField(lines, figure.field, figure.of_items);
    const auto share = MeanField(lines, "kv_read_share");
    if (value && share) ranked.push_back({row, *value, *share});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::pair(-a.value.mean, a.share) < std::pair(-b.value.mean, b.share);
  });
  return ranked;
}

std::optional<Pool> Reference(const LabView& lab, const char* policy, const Figure& figure) {
  const PolicyRow* row = lab.view.Row(policy);
  if (!row) return std::nullopt;
  return PoolField(LinesOf(lab, *row, figure), figure.field, figure.of_items);
}

// "X kept 97 % (…) reading 8 % of the KV bytes; the one that reads least, Y, …"
std::string BestAndLeast(const std::vector<Ranked>& ranked, const char* verb) {
  const Ranked& best = ranked.front();
  std::string out = fmt::format("{}{} {} {}, reading {} of the KV bytes", Name(*best.row),
                                ranked.size() > 1 ? " did best and" : "", verb,
                                PoolText(best.value, FormatPercent), FormatPercent(best.share));
  const auto least =
      std::min_element(ranked.begin(), ranked.end(),
                       [](const Ranked& a, const Ranked& b) { return a.share < b.share; });
  if (least->row != best.row)
    out += fmt::format("; {}, which reads least, {} {} with {}", Name(*least->row), verb,
                       PoolText(least->value, FormatPercent), FormatPercent(least->share));
  return out + ". ";
}

std::string StepByStep(const LabView& lab) {
  std::string out;
  for (const std::string& teacher : lab.view.Teachers()) {
    const Figure match{.field = "tf_match", .series = teacher};
    const std::vector<Ranked> ranked = Rank(lab, match);
    if (ranked.empty()) continue;
    out += fmt::format("{}Step by step, fed {}, ", out.empty() ? "" : "</p>\n<p>",
                       teacher == "text" ? "the texts’ own words" : "dense’s own tokens");
    out += BestAndLeast(ranked, "kept");
    const auto floor = Reference(lab, "control", match);
    if (floor) {
      out += fmt::format("The control kept {}", PoolText(*floor, FormatPercent));
      const auto within = std::count_if(ranked.begin(), ranked.end(), [&](const Ranked& r) {
        return floor->low && r.value.mean >= *floor->low;
      });
      if (floor->low && within == 0)
        out += "; every policy lies below that interval";
      else if (floor->low)
        out += fmt::format("; {} of {} lie within that interval, not to be told from rounding",
                           within, CountRows(lab.view, ranked.size()));
      out += ". ";
    }
    if (teacher != "greedy") continue;
    const RunsLost lost = CountLost(lab, teacher);
    if (lost.n > 0 && lost.n_match == 0)
      out += fmt::format("No run of {} kept less than 70 % of decisions. ", lost.n);
    else if (lost.n > 0)
      out += fmt::format(
          "{} of {} runs kept less than 70 % of decisions, {} of them with more than +100 % "
          "perplexity. ",
          lost.n_match, lost.n, lost.n_both);
    if (lost.n_ppl_alone > 0)
      out += fmt::format("{} kept 70 % or more and have more than +100 % perplexity. ",
                         lost.n_ppl_alone);
  }
  return out;
}

std::string Items(const LabView& lab) {
  std::set<std::string> tasks;
  for (const Json& line : lab.lab->records.policies)
    if (const std::string task = Text(line, "task"); !task.empty()) tasks.insert(task);
  std::string out;
  for (const std::string& task : tasks) {
    for (const auto& [field, what] : {std::pair("first_token_match", "first token of the answer"),
                                      std::pair("full_match", "whole answer")}) {
      const Figure found{.field = field, .series = task, .of_items = true};
      const auto dense = Reference(lab, "dense", found);
      const std::vector<Ranked> ranked = Rank(lab, found);
      if (ranked.empty()) continue;
      out +=
          fmt::format("{}<b>{}</b>, {}: ", out.empty() ? "" : "</p>\n<p>", EscapeHtml(task), what);
      if (dense) out += fmt::format("dense found {}. ", PoolText(*dense, FormatPercent));
      out += BestAndLeast(ranked, "found");
      if (const auto floor = Reference(lab, "control", found))
        out += fmt::format("The control found {}. ", PoolText(*floor, FormatPercent));
    }
  }
  return out;
}

// Which policies pass dense with depth, and which lie on one side of it throughout.
std::string Speed(const LabView& lab) {
  std::string passing, faster, slower, at_one_depth;
  for (const SpeedsByDepth& of : lab.speeds) {
    for (const Lead& lead : of.leads) {
      const bool is_named = lead.n_depths == 1 || !lead.turns.empty();
      std::string& list = lead.n_depths == 1    ? at_one_depth
                          : !lead.turns.empty() ? passing
                          : lead.faster         ? faster
                                                : slower;
      list += (list.empty() ? ""
               : is_named   ? "; "
                            : ", ") +
              EscapeHtml(lead.label) + (lab.several_models() ? " on " + EscapeHtml(of.model) : "");
      if (is_named) list += ", " + lead.Said();
    }
  }
  std::string out;
  const auto say = [&](const char* what, const std::string& list) {
    if (!list.empty()) out += fmt::format("{}: {}. ", what, list);
  };
  say("Where speed passes dense’s", passing);
  say("Faster than dense at every depth measured", faster);
  say("No faster than dense at any depth measured", slower);
  say("Speed beside dense’s at one depth alone", at_one_depth);
  return out;
}

std::string Masses(const LabView& lab) {
  std::map<std::string, std::vector<const Json*>> by_policy;
  for (const Json& line : lab.lab->masses)
    by_policy[Text(line["parameters"], "policy")].push_back(&line);
  std::string out;
  for (const auto& [policy, lines] : by_policy) {
    const auto base = MeanField(lines, "base"), with = MeanField(lines, "policy"),
               most = MeanField(lines, "oracle");
    if (!base || !with || !most) continue;
    out += fmt::format(
        "{} brought the attention mass from {} on the rows that are always read to {}, where the "
        "truly heaviest blocks bring it to {} (means over {} layers and probes). ",
        SpecHtml(policy), FormatPercent(*base), FormatPercent(*with), FormatPercent(*most),
        lines.size());
  }
  return out;
}

}  // namespace

RunsLost CountLost(const LabView& lab, const std::string& teacher) {
  RunsLost lost;
  for (const PolicyRow* row : lab.view.SparseRows()) {
    for (const Json* line : Having(lab.Lines(*row, "policy", ""), "teacher", teacher)) {
      const auto match = Number(*line, "tf_match"), ratio = Number(*line, "ppl_ratio");
      if (!match || !ratio) continue;
      const bool by_match = *match<kLostMatch, by_ppl = *ratio> kLostPplRatio;
      ++lost.n;
      lost.n_match += by_match;
      lost.n_both += by_match && by_ppl;
      lost.n_ppl_alone += by_ppl && !by_match;
    }
  }
  return lost;
}

std::string LabFindingsHtml(const LabView& lab) {
  std::string out;
  for (const std::string& said : {Items(lab), StepByStep(lab), Autonomous(lab), Masses(lab),
                                  Speed(lab), DraftsSaid(lab), GuardsSaid(lab)})
    if (!said.empty()) out += "<p>" + said + "</p>\n";
  if (!out.empty()) return out;
  return lab.lab->n_done == 0
             ? "<p>No cell of this experiment is finished: there is nothing to report yet.</p>\n"
             : "<p>Its figures stand below.</p>\n";
}

}  // namespace condense::report
