// A report: records (JSON Lines, schema 1) in, one self-contained HTML file out. The file opens
// offline and asks for nothing over a network: styles, script and the Vega bundle lie inside it.
// Measures nothing and computes no metric: every figure is a record's, rounded for reading.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

// A table as the experiment itself prints it: a text for each column, the first one the row's head.
struct ReportTable {
  struct Column {
    std::string title;
    bool left = false;  // of words, not of figures
  };
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;
  std::string notes{};
};

// What an experiment of the lab says of itself, which its records do not hold.
struct ExperimentNotes {
  std::string name;     // as the records spell it
  std::string title;    // one line
  std::string repeats;  // what of which paper
  std::vector<ReportTable> tables{};
};

// Whether a page may be written there: not over a file of records, be it one of `paths` or any
// other, nor into a folder of `paths` under a name that its records have.
Status CheckReportPlace(const std::vector<std::string>& paths, const std::string& out_html);

// Reads every one of `paths`, a file of records (one or more runs) or a folder of `condense lab
// run`, and writes `out_html`, replacing it only when the whole page was written. Errors name the
// file and the line: unreadable file, malformed line, unknown schema, field of a wrong type, a file
// without a run, a folder without records; or CheckReportPlace. A cut last line (an interrupted
// run) is tolerated and noted in the page.
Status WriteReport(const std::vector<std::string>& paths, const std::string& out_html,
                   const std::vector<ExperimentNotes>& notes = {});

}  // namespace condense
