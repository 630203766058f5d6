// Records of schema 1 as the report reads them: JSON objects whose known fields have been checked
// for their type, gathered by run. docs/RECORDS.md says what each field means.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace condense::report {

using Json = nlohmann::json;

inline constexpr int kRecordSchema = 1;

struct RunRecords {
  std::string file;
  Json run;
  Json prompt{};  // null where the run ended before its prefill did
  std::vector<Json> policies{}, layers{}, steps{};
  std::vector<Json> maps{};   // which rows were read over time
  std::vector<Json> cells{};  // of rows that were not run: the budget is not met, or left out
  std::vector<std::string> notes{};  // what the reader of the page must know about these records
};

// Where the reading of a file ended.
struct RecordsEnd {
  int n_lines = 0;
  bool cut = false;  // the last line is not whole
};
// Given each record with its kind and "FILE:LINE"; an error ends the reading.
using RecordSink =
    std::function<Status(const std::string& kind, Json record, const std::string& where)>;
// Reads lines one after another, checked. A last line that is cut is no error. Errors name file and
// line.
Result<RecordsEnd> ForEachRecord(const std::string& path, const RecordSink& sink);

// Appends the runs of `path` to `runs`.
Status ReadRecords(const std::string& path, std::vector<RunRecords>& runs);

// "records-0.jsonl": what a lab folder names the records of a rank.
bool IsRecordsFileName(const std::string& name);
// Whether the file's first line is a record, of whatever schema.
bool IsRecordsFile(const std::string& path);

// The value of a numeric field; nothing where it is absent or null.
std::optional<double> Number(const Json& record, const char* key);
// As Number; true is 1 and false 0.
std::optional<double> Share(const Json& record, const char* key);
// The value of a string field; empty where it is absent or null.
std::string Text(const Json& record, const char* key);
// A list of pieces as bytes. A piece is a string, or a list of byte values where it is no valid
// UTF-8.
std::vector<std::string> Pieces(const Json& record, const char* key);
// A list of token ids.
std::vector<int64_t> Tokens(const Json& record, const char* key);

}  // namespace condense::report
