#include "lab/exact_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/lab_cell.h"
#include "lab/row_figures.h"

namespace condense {
namespace {

constexpr size_t kPlaces[] = {1, 2, 4, 8, 16};  // of a draft, as the table shows them

// One source at one length on one kind of text, over its prefixes.
struct DraftRow {
  std::string kind, source, length;  // length "": dense
  std::string made;                  // how its prompts were made, as one text
  int n_prefixes = 0, n_identical = 0;
  bool shortened = false;  // fewer rows are equal than the draft wanted
  int64_t drafted = 0, accepted = 0, verifications = 0, undrafted = 0, near_ties = 0;
  std::vector<int64_t> drafted_at, accepted_at;
  std::vector<double> exact, dense, ratios;  // tokens a second

  // Tokens of a call behind a draft; 0: there was none.
  double PerVerification() const {
    if (verifications == 0) return 0;
    return static_cast<double>(accepted + verifications) / static_cast<double>(verifications);
  }
};

struct DraftSetting {
  Json shared;
  std::vector<DraftRow> rows;
};

void Add(const std::vector<int64_t>& more, std::vector<int64_t>& sums) {
  sums.resize(std::max(sums.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
}

void AddNumber(const Json& line, const char* key, std::vector<double>& values) {
  const auto found = line.find(key);
  if (found != line.end() && found->is_number()) values.push_back(found->get<double>());
}

void AddLine(const Json& line, DraftRow& row) {
  ++row.n_prefixes;
  row.n_identical += line.value("identical", false);
  row.shortened = row.shortened || line.value("equal_rows", 0) < line.value("probed_rows", 0);
  row.drafted += line.value("drafted", int64_t{0});
  row.accepted += line.value("accepted", int64_t{0});
  row.verifications += line.value("verifications", int64_t{0});
  row.undrafted += line.value("undrafted", int64_t{0});
  row.near_ties += line.value("near_ties", int64_t{0});
  Add(line.value("drafted_at", std::vector<int64_t>()), row.drafted_at);
  Add(line.value("accepted_at", std::vector<int64_t>()), row.accepted_at);
  AddNumber(line, "exact_tokens_per_second", row.exact);
  AddNumber(line, "dense_tokens_per_second", row.dense);
  AddNumber(line, "speed_ratio_median", row.ratios);
}

// By kind, then in the order of the cells.
std::vector<DraftSetting> Collect(std::span<const FinishedCell> cells) {
  std::vector<DraftSetting> settings;
  for (const FinishedCell& cell : cells) {
    Json shared = cell.parameters;
    Json made = Json::object();
    for (const char* varies : {"text", "offset", "kind", "policy", "draft_tokens"})
      shared.erase(varies);
    for (const char* of_kind : {"passage_tokens", "form", "question"}) {
      if (shared.contains(of_kind)) made[of_kind] = shared[of_kind];
      shared.erase(of_kind);
    }
    auto setting = std::find_if(settings.begin(), settings.end(), [&](const DraftSetting& known) {
      return CellId(known.shared) == CellId(shared);
    });
    if (setting == settings.end()) setting = settings.insert(setting, {std::move(shared), {}});
    DraftRow wanted;
    wanted.kind = cell.parameters.value("kind", "");
    wanted.source = cell.parameters.value("policy", "");
    wanted.length = cell.parameters.value("draft_tokens", "");
    wanted.made = CellId(made);
    auto row = std::find_if(setting->rows.begin(), setting->rows.end(), [&](const DraftRow& known) {
      return known.kind == wanted.kind && known.source == wanted.source &&
             known.length == wanted.length && known.made == wanted.made;
    });
    if (row == setting->rows.end()) row = setting->rows.insert(row, std::move(wanted));
    for (const Json& line : cell.lines) {
      if (line.value("record", "") == "exact") AddLine(line, *row);
    }
  }
  for (DraftSetting& setting : settings)
    std::erase_if(setting.rows, [](const DraftRow& row) { return row.n_prefixes == 0; });
  std::erase_if(settings, [](const DraftSetting& setting) { return setting.rows.empty(); });
  return settings;
}

std::string Title(const DraftSetting& setting) {
  return fmt::format("exact: {}, context {}, {} tokens", setting.shared.value("model", ""),
                     setting.shared.value("context", 0), setting.shared.value("tokens", 0));
}

std::string ShareText(int64_t part, int64_t whole) {
  return whole == 0 ? "-" : PercentText(static_cast<double>(part) / static_cast<double>(whole));
}

std::string MedianText(const std::vector<double>& values) {
  return values.empty() ? "-" : fmt::format("{:.1f}", Quantile(values, 0.5));
}

std::string RangeText(const std::vector<double>& ratios) {
  if (ratios.empty()) return "-";
  const std::string median = fmt::format("{:.2f}", Quantile(ratios, 0.5));
  if (ratios.size() == 1) return median;
  return fmt::format("{} ({:.2f} to {:.2f})", median,
                     *std::min_element(ratios.begin(), ratios.end()), Maximum(ratios));
}

std::string IdenticalText(const DraftRow& row) {
  const std::string ties =
      row.near_ties > 0 ? fmt::format(", {} near ties", row.near_ties) : std::string();
  if (row.n_identical == row.n_prefixes) return "yes" + ties;
  return fmt::format("NO, {} of {}", row.n_prefixes - row.n_identical, row.n_prefixes) + ties;
}

LabTable SpeedTable(const DraftSetting& setting) {
  LabTable table;
  table.title = Title(setting);
  table.columns = {{"text", true, 0},    {"draft", true, 0},     {"k", false, 0},
                   {"n", false, 2},      {"drafted", false, 2},  {"accepted", false, 0},
                   {"a call", false, 1}, {"identical", true, 0}, {"tokens/s", false, 1},
                   {"dense", false, 2},  {"over dense", true, 0}};
  bool shortened = false;
  for (const DraftRow& row : setting.rows) {
    shortened = shortened || row.shortened;
    table.rows.push_back(
        {row.kind, row.source, row.length + (row.shortened ? "*" : ""),
         fmt::format("{}", row.n_prefixes), fmt::format("{}", row.drafted),
         ShareText(row.accepted, row.drafted),
         row.verifications == 0 ? "-" : fmt::format("{:.2f}", row.PerVerification()),
         IdenticalText(row), MedianText(row.exact), MedianText(row.dense), RangeText(row.ratios)});
  }
  table.notes =
      "k          tokens of a draft; auto: chosen by measured cost and acceptance\n"
      "accepted   drafted tokens that dense attention confirmed, of all prefixes together; a call: "
      "tokens a verification\n"
      "identical  every token is dense decoding's: compared on every prefix\n"
      "tokens/s   medians over prefixes, dense and exact runs of the same tokens in turns; over "
      "dense with its range;\n"
      "           the dense row, against itself, shows what timing alone does\n";
  if (shortened) {
    table.notes +=
        "*          so many rows of one call are not computed to the bits of single ones here: "
        "drafts are shorter;\n"
        "           where not even two rows are, they are as asked for and the text may part\n";
  }
  table.notes +=
      "llama.cpp's own dense decoding stands beside the plug-in's in `condense lab run "
      "matched-speed`. Its n-gram speculation\n"
      "is in llama-cli and llama-server alone, on chats: llama-cli -m MODEL -f PROMPT -st -n 64 "
      "--temp 0 --spec-type ngram-simple\n"
      "prints its tokens a second; no figure of it is here\n";
  return table;
}

// Of each kind and source the row with the longest drafts.
std::vector<const DraftRow*> Longest(const DraftSetting& setting) {
  std::vector<const DraftRow*> longest;
  for (const DraftRow& row : setting.rows) {
    if (row.drafted_at.empty()) continue;
    const auto known = std::find_if(longest.begin(), longest.end(), [&](const DraftRow* other) {
      return other->kind == row.kind && other->made == row.made && other->source == row.source;
    });
    if (known == longest.end()) {
      longest.push_back(&row);
    } else if (row.drafted_at.size() > (*known)->drafted_at.size()) {
      *known = &row;
    }
  }
  return longest;
}

LabTable PlaceTable(const DraftSetting& setting) {
  LabTable table;
  table.title = Title(setting) + ": confirmed by place in the draft";
  table.columns = {{"text", true, 0}, {"draft", true, 0}, {"k", false, 1}, {"drafts", false, 1}};
  for (size_t place : kPlaces) table.columns.push_back({fmt::format("{}.", place), false, 0});
  for (const DraftRow* row : Longest(setting)) {
    std::vector<std::string> texts = {row->kind, row->source, row->length,
                                      fmt::format("{}", row->drafted_at[0])};
    for (size_t place : kPlaces) {
      const bool there = place <= row->drafted_at.size();
      texts.push_back(there ? ShareText(row->accepted_at[place - 1], row->drafted_at[place - 1])
                            : "-");
    }
    table.rows.push_back(std::move(texts));
  }
  table.notes =
      "of the drafts that long, those whose first tokens up to this place were all confirmed; of "
      "each source its longest drafts\n";
  return table;
}

}  // namespace

std::vector<LabTable> ExactTables(std::span<const FinishedCell> cells) {
  std::vector<LabTable> tables;
  for (const DraftSetting& setting : Collect(cells)) {
    tables.push_back(SpeedTable(setting));
    LabTable places = PlaceTable(setting);
    if (!places.rows.empty()) tables.push_back(std::move(places));
  }
  return tables;
}

}  // namespace condense
