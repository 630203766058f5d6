// The lines of one experiment as its page shows them: by policy, setting (model and context) and
// teacher, and figures pooled over prefixes or items. Measures nothing: pools what is recorded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/lab_records.h"
#include "report/lab_speed.h"
#include "report/run_view.h"

namespace condense::report {

struct LabView {
  const LabRecords* lab = nullptr;
  RunView view;                         // dense, control, then policies; id "lab-NAME"
  std::vector<std::string> models{};    // by name
  std::vector<std::string> settings{};  // by model, then context
  std::vector<SpeedsByDepth> speeds{};  // by model; none without speeds

  bool several_models() const { return models.size() > 1; }
  // "2,048 tokens", with the model before it where there are several.
  std::string Setting(const Json& line) const;
  // Lines of this row, kind ("policy", "item") and setting; any setting where it is empty.
  std::vector<const Json*> Lines(const PolicyRow& row, const char* kind,
                                 const std::string& setting) const;
};

LabView MakeLabView(const LabRecords& lab);

// "SmolLM2-135M-Instruct.Q4_1" of a line that names its model as a file, or as a file and its hash.
std::string ModelName(const Json& line);
// Tokens before the first decision.
std::optional<double> ContextOf(const Json& line);

// Of what was measured once a cell and stands in both teachers' lines: the first line of each cell
// that has the field.
std::vector<const Json*> OncePerCell(const std::vector<const Json*>& lines, const char* field);
// Only the lines with this text in the field.
std::vector<const Json*> Having(const std::vector<const Json*>& lines, const char* field,
                                const std::string& text);

// A mean with its 95 % interval; without one where there are fewer than two values.
struct Pool {
  size_t n = 0;
  double mean = 0;
  std::optional<double> low{}, high{};
};

// Of items, found or not (or in part: 0 to 1), Wilson's interval; of prefixes the bootstrap's of
// their mean, whatever the values. Nothing where there is no value.
std::optional<Pool> PoolOf(const std::vector<double>& values, bool of_items);
std::optional<Pool> PoolField(const std::vector<const Json*>& lines, const char* field,
                              bool of_items);
// The mean alone.
std::optional<double> MeanField(const std::vector<const Json*>& lines, const char* field);

// "93.3 % to 99.2 %"; null without an interval.
Json IntervalText(const Pool& pool, std::string (*format)(double));
// "97.6 % (93.3 % to 99.2 %, n 5)"
std::string PoolText(const Pool& pool, std::string (*format)(double));

}  // namespace condense::report
