#include "report/lab_decoding_findings.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <vector>

#include "metrics/stats.h"
#include "report/html.h"

namespace condense::report {
namespace {

constexpr double kEachSide = 0.975;  // of a two-sided 95 % interval

}  // namespace

std::string DraftsSaid(const LabView& lab) {
  int n = 0, n_identical = 0;
  struct Best {
    double ratio = 0;
    std::string draft, length;
  };
  // By setting and kind of text; ratios of prefixes by draft and length.
  std::map<std::pair<std::string, std::string>,
           std::map<std::pair<std::string, std::string>, std::vector<double>>>
      speeds;
  for (const PolicyRow* row : lab.view.SparseRows()) {
    for (const Json* line : lab.Lines(*row, "exact", "")) {
      ++n;
      n_identical += line->value("identical", false) ? 1 : 0;
      if (const auto ratio = Number(*line, "speed_ratio_median")) {
        speeds[{lab.Setting(*line), Text(*line, "kind")}]
              [{row->policy, Text(*line, "draft_tokens")}]
                  .push_back(*ratio);
      }
    }
  }
  if (n == 0) return "";
  std::string out = n_identical == n
                        ? fmt::format("All {} runs from drafts wrote dense’s text. ", n)
                        : fmt::format("{} of {} runs from drafts did NOT write dense’s text. ",
                                      n - n_identical, n);
  std::string said;
  for (const auto& [of, drafts] : speeds) {
    Best best;
    for (const auto& [draft, ratios] : drafts) {
      const double ratio = Quantile(ratios, 0.5);
      if (ratio > best.ratio) best = {ratio, draft.first, draft.second};
    }
    const std::string drafts_of = best.length == "auto"
                                      ? "drafts of chosen length"
                                      : fmt::format("drafts of {}", EscapeHtml(best.length));
    said += fmt::format("{}{} on {} ({}), {}: {:.2f} times dense", said.empty() ? "" : "; ",
                        SpecHtml(best.draft), EscapeHtml(of.second), EscapeHtml(of.first),
                        drafts_of, best.ratio);
  }
  return said.empty() ? out : out + "Fastest of the drafts: " + said + ". ";
}

std::string GuardsSaid(const LabView& lab) {
  struct Seen {
    int64_t n = 0, n_differ = 0;
    double promised = 0;
    bool certified = false;
  };
  // By policy, setting, text and teacher.
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Seen> guards;
  for (const PolicyRow* row : lab.view.SparseRows()) {
    for (const Json* line : lab.Lines(*row, "guard", "")) {
      Seen& seen =
          guards[{row->policy, lab.Setting(*line), Text(*line, "text"), Text(*line, "teacher")}];
      seen.n += static_cast<int64_t>(Number(*line, "n_decisions").value_or(0));
      seen.n_differ += static_cast<int64_t>(Number(*line, "n_differ").value_or(0));
      seen.promised = Number(*line, "risk").value_or(0);
      seen.certified = line->value("certified", false);
    }
  }
  int n_certified = 0, n_above = 0, n_within = 0;
  for (const auto& [of, seen] : guards) {
    if (!seen.certified || seen.n == 0) continue;
    ++n_certified;
    n_above += 1 - BinomialUpperBound(seen.n - seen.n_differ, seen.n, kEachSide) > seen.promised &&
               seen.n_differ > 0;
    n_within += BinomialUpperBound(seen.n_differ, seen.n, kEachSide) <= seen.promised;
  }
  if (guards.empty()) return "";
  if (n_certified == 0) return "No guard was certified, so none promised anything. ";
  return fmt::format(
      "Of {} certified guards, counted by text and teacher, {} took more tokens that are not "
      "dense’s than they promise, {} fewer, each beyond the 95 % interval; of the others these "
      "texts do not tell. ",
      n_certified, n_above, n_within);
}

}  // namespace condense::report
