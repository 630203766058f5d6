// A lab folder's records as CSV (RFC 4180), one file a kind of record, for spreadsheets and data
// frames: a column a key, nested objects with dots, lists as JSON. Every line of a cell carries the
// cell's parameters in columns `parameters.NAME`.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace condense {

// Writes `folder`/csv/KIND.csv over what is there and gives the files' paths. Errors: a folder
// without records or with damaged ones, a file that cannot be written.
Result<std::vector<std::string>> ExportCsv(const std::string& folder);

}  // namespace condense
