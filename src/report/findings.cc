// Sentences over the figures. Compares by the recorded intervals and never calls a difference found
// that the control's own interval holds.
#include "report/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/html.h"
#include "report/tables.h"

namespace condense::report {
namespace {

// A policy with its spec where it is first named, after that by its letter alone.
class Names {
 public:
  std::string operator()(const PolicyRow& row) {
    // A letter of a grid stands for all budgets.
    if (!row.is_sparse() || row.budget) return SpecHtml(row.policy);
    std::string name = KeyHtml(row);
    if (named_.insert(row.policy).second) name += "&nbsp;" + SpecHtml(row.policy);
    return name;
  }

 private:
  std::set<std::string> named_;
};

// "97.6 % (93.3 % to 99.2 %) of 127"
std::string Match(const Json& line) {
  std::string out = FormatPercent(*Number(line, "tf_match"));
  if (Number(line, "tf_match_low") && Number(line, "tf_match_high"))
    out += fmt::format(" ({} to {})", FormatPercent(*Number(line, "tf_match_low")),
                       FormatPercent(*Number(line, "tf_match_high")));
  if (const auto n = Number(line, "n_decisions")) out += fmt::format(" of {}", FormatCount(*n));
  return out;
}

std::string Share(const PolicyRow& row) {
  const auto share = Number(row.Main(), "kv_read_share");
  return share ? FormatPercent(*share) + " of the KV bytes" : "an unrecorded share of the KV bytes";
}

// Rows with a tf_match under this teacher, best first; of equals, the one that reads less.
std::vector<const PolicyRow*> Ranked(const RunView& view, const std::string& teacher) {
  std::vector<const PolicyRow*> rows;
  for (const PolicyRow* row : view.SparseRows())
    if (const Json* line = row->Line(teacher); line && Number(*line, "tf_match"))
      rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(), [&](const PolicyRow* a, const PolicyRow* b) {
    const double match_a = *Number(*a->Line(teacher), "tf_match");
    const double match_b = *Number(*b->Line(teacher), "tf_match");
    if (match_a != match_b) return match_a > match_b;
    return Number(a->Main(), "kv_read_share").value_or(1) <
           Number(b->Main(), "kv_read_share").value_or(1);
  });
  return rows;
}

const char* Fed(const std::string& teacher) {
  return teacher == "text" ? "fed the file’s own words" : "fed dense’s own tokens";
}

std::string Quality(const RunView& view, const std::string& teacher, Names& name) {
  const std::vector<const PolicyRow*> ranked = Ranked(view, teacher);
  if (ranked.empty()) return "";
  const PolicyRow& best = *ranked.front();
  std::string out = fmt::format("Step by step, {}, {} kept {}dense’s decisions: {}, reading {}",
                                Fed(teacher), name(best), ranked.size() > 1 ? "the most of " : "",
                                Match(*best.Line(teacher)), Share(best));
  if (const auto speed = Number(best.Main(), "speed_ratio_median"))
    out += fmt::format(" at {} dense’s speed", FormatTimes(*speed));
  out += ". ";
  const PolicyRow* least =
      *std::min_element(ranked.begin(), ranked.end(), [](const PolicyRow* a, const PolicyRow* b) {
        return Number(a->Main(), "kv_read_share").value_or(2) <
               Number(b->Main(), "kv_read_share").value_or(2);
      });
  if (least != &best && Number(least->Main(), "kv_read_share"))
    out += fmt::format("The one that reads least, {}, kept {} with {}. ", name(*least),
                       Match(*least->Line(teacher)), Share(*least));
  return out;
}

std::string Autonomous(const RunView& view, Names& name) {
  const PolicyRow *first = nullptr, *last = nullptr;
  std::string survivors;
  int n_survivors = 0, n_known = 0;
  for (const PolicyRow* row : view.SparseRows()) {
    const Json& line = row->Main();
    if (!line.contains("t_div")) continue;
    ++n_known;
    const auto t_div = Number(line, "t_div");
    if (!t_div) {
      ++n_survivors;
      if (!view.is_grid()) survivors += (survivors.empty() ? "" : ", ") + name(*row);
      continue;
    }
    if (!first || *t_div < *Number(first->Main(), "t_div")) first = row;
    if (!last || *t_div > *Number(last->Main(), "t_div")) last = row;
  }
  if (n_known == 0) return "";
  const std::string horizon = FormatCount(view.Horizon());
  if (!first) {
    return fmt::format(
        "Writing freely, {} wrote dense’s text through all {} decisions. ",
        n_known == 1 ? "the policy" : fmt::format("each of {}", CountRows(view, n_known)), horizon);
  }
  std::string out = fmt::format(
      "Writing freely, {} departed from dense’s text within {} decisions",
      n_known == 1 ? "the policy"
                   : fmt::format("{} of {}", n_known - n_survivors, CountRows(view, n_known)),
      horizon);
  const double t_first = *Number(first->Main(), "t_div"), t_last = *Number(last->Main(), "t_div");
  if (first == last) {
    out += fmt::format(": {} at decision {}", name(*first), FormatCount(t_first));
  } else if (t_first == t_last) {
    out += fmt::format(", all at decision {}", FormatCount(t_first));
  } else {
    out += fmt::format(": the first difference is {}’s at decision {}, the last {}’s at {}",
                       name(*first), FormatCount(t_first), name(*last), FormatCount(t_last));
  }
  if (view.is_grid() && n_survivors > 0) survivors = CountRows(view, n_survivors);
  out += n_survivors ? fmt::format("; {} wrote the same to the end. ", survivors) : ". ";
  return out;
}

// The policies that the control's own interval holds cannot be told from rounding.
std::string NoiseFloor(const RunView& view, const std::string& teacher, Names& name) {
  const PolicyRow* control = view.Row("control");
  const Json* line = control ? control->Line(teacher) : nullptr;
  if (!line && control && !control->lines.empty()) line = &control->Main();
  if (!line || !Number(*line, "tf_match"))
    return "<strong>Noise floor:</strong> these records hold no control, so how much of this is "
           "mere "
           "rounding is not known.";
  std::string out = fmt::format(
      "<strong>Noise floor:</strong> dense attention, summed in another order, kept {} itself",
      Match(*line));
  const Json& main = control->Main();
  if (const auto t_div = Number(main, "t_div"))
    out += fmt::format(" and, writing freely, departed from dense’s text at decision {}",
                       FormatCount(*t_div));
  else if (main.contains("t_div"))
    out += " and, writing freely, wrote dense’s text to the end";
  out += ". ";
  const auto floor = Number(*line, "tf_match_low");
  std::string same;
  size_t n_same = 0;
  const std::vector<const PolicyRow*> ranked = Ranked(view, Text(*line, "teacher"));
  for (const PolicyRow* row : ranked) {
    if (!floor || *Number(*row->Line(Text(*line, "teacher")), "tf_match") < *floor) continue;
    ++n_same;
    if (!view.is_grid()) same += (same.empty() ? "" : ", ") + name(*row);
  }
  if (view.is_grid() && n_same > 0)
    same = fmt::format("{} of {}", n_same, CountRows(view, ranked.size()));
  if (floor && same.empty() && !view.SparseRows().empty())
    out += "Every policy lies below that interval: sparsity, not rounding, changed decisions.";
  else if (!same.empty())
    out += fmt::format(
        "Within that interval, and by this measure not to be told from rounding: {}.", same);
  return out;
}

}  // namespace

std::string FindingsHtml(const RunView& view) {
  const std::string model = EscapeHtml(Text(view.run(), "model"));
  const auto n_prompt = Number(view.run(), "n_prompt");
  Names name;
  std::string out = "<p class=\"found\">";
  if (view.SparseRows().empty()) {
    out += "No policy was finished in these records, so there is nothing to compare yet. ";
  } else {
    out += fmt::format(
        "<b class=\"model\">{}</b> read {} tokens and then decided with only part of its KV "
        "cache. ",
        model, n_prompt ? FormatCount(*n_prompt) : "its prompt’s");
    const std::vector<std::string> teachers = view.Teachers();
    if (!teachers.empty()) out += Quality(view, teachers.front(), name);
    out += Autonomous(view, name);
  }
  const std::string first_teacher = view.Teachers().empty() ? "" : view.Teachers().front();
  out += fmt::format("</p>\n<p>{} ", NoiseFloor(view, first_teacher, name));
  if (first_teacher != "text" && view.Teachers().size() > 1)
    if (const auto ranked = Ranked(view, "text"); !ranked.empty())
      out +=
          fmt::format("Fed the file’s own words instead, {} kept {}{}. ", name(*ranked.front()),
                      ranked.size() > 1 ? "the most: " : "", Match(*ranked.front()->Line("text")));
  out += "This is one text: n counts decisions, not texts.</p>\n";
  return out;
}

}  // namespace condense::report
