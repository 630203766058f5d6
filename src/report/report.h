// A report: records (JSON Lines, schema 1) in, one self-contained HTML file out. The file opens
// offline and asks for nothing over a network: styles, script and the Vega bundle lie inside it.
// Measures nothing and computes no metric: every figure is a record's, rounded for reading.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

// Reads every file of `record_files` (one or more runs each) and writes `out_html`, replacing it
// only when the whole page was written. Errors name the file and the line: unreadable file,
// malformed line, unknown schema, field of a wrong type, a file without a run. A cut last line (an
// interrupted run) is tolerated and noted in the page.
Status WriteReport(const std::vector<std::string>& record_files, const std::string& out_html);

}  // namespace condense
