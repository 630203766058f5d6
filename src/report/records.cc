// Reading records: one JSON object a line, types checked here so that nothing after this file meets
// a surprise. Unknown fields and kinds pass: a later program may write more within the same schema.
#include "report/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

namespace condense::report {
namespace {

constexpr std::array kTextFields = {"record",
                                    "policy",
                                    "teacher",
                                    "program",
                                    "version",
                                    "commit",
                                    "compiler",
                                    "cpu",
                                    "llama_cpp_commit",
                                    "instruction_set",
                                    "model",
                                    "model_sha256",
                                    "time_utc",
                                    "text_source",
                                    "ggml_version",
                                    "model_desc",
                                    "kv_type_k",
                                    "kv_type_v",
                                    "first_token_text",
                                    "text_sha256",
                                    "name",
                                    "state",
                                    "reason",
                                    "experiment",
                                    "cell",
                                    "task",
                                    "answer",
                                    "metric",
                                    "value",
                                    "setting",
                                    "source"};

constexpr std::array kNumberFields = {"threads",
                                      "n_layers",
                                      "n_query_heads",
                                      "n_kv_heads",
                                      "head_dim",
                                      "kv_bytes_per_token",
                                      "context",
                                      "offset",
                                      "n_prompt",
                                      "n_generate",
                                      "prefill_seconds",
                                      "prefill_tokens_per_second",
                                      "first_token",
                                      "n_decisions",
                                      "t_div",
                                      "t_sig",
                                      "tf_match",
                                      "tf_match_low",
                                      "tf_match_high",
                                      "ppl_dense",
                                      "ppl_sparse",
                                      "ppl_ratio",
                                      "kl_mean",
                                      "kl_median",
                                      "kl_p99",
                                      "kl_max",
                                      "kl_stderr",
                                      "same_top",
                                      "omitted_mass_mean",
                                      "omitted_mass_max",
                                      "kv_read_share",
                                      "k_bytes",
                                      "v_bytes",
                                      "summary_bytes",
                                      "dense_bytes",
                                      "unique_rows_per_kv_head",
                                      "nominal_rows_per_query_head",
                                      "visible_rows",
                                      "sparse_tokens_per_second",
                                      "dense_tokens_per_second",
                                      "speed_ratio_median",
                                      "speed_ratio_low",
                                      "speed_ratio_high",
                                      "sparse_steps",
                                      "dense_steps",
                                      "rebuilds",
                                      "layer",
                                      "bound_mean",
                                      "read_share",
                                      "unique_rows",
                                      "decision",
                                      "token_dense",
                                      "token_sparse",
                                      "nll_dense",
                                      "nll_sparse",
                                      "kl",
                                      "margin_dense",
                                      "delta",
                                      "margin_sparse",
                                      "omitted_mass",
                                      "budget",
                                      "least_budget",
                                      "ppl_ratio_low",
                                      "ppl_ratio_high",
                                      "select_share",
                                      "seconds",
                                      "n_positions",
                                      "positions_a_column",
                                      "decisions_a_line",
                                      "depth",
                                      "score",
                                      "low",
                                      "high",
                                      "gather_share",
                                      "attend_share",
                                      "base",
                                      "oracle",
                                      "oracle_recall",
                                      "policy_recall",
                                      "upkeep_share"};

bool IsText(const Json& value) { return value.is_string(); }
bool IsNumber(const Json& value) { return value.is_number(); }
bool IsInteger(const Json& value) { return value.is_number_integer(); }
bool IsBool(const Json& value) { return value.is_boolean() || value.is_number(); }
bool IsByte(const Json& value) { return value.is_number_integer() && value >= 0 && value <= 255; }
bool IsObject(const Json& value) { return value.is_object(); }
bool IsSpan(const Json& value) { return Number(value, "length") && Number(value, "share"); }

template <bool (*fits)(const Json&)>
bool IsListOf(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), fits);
}

bool IsPiece(const Json& value) { return value.is_string() || IsListOf<IsByte>(value); }

bool IsCounts(const Json& value) {
  return value.is_object() && std::all_of(value.begin(), value.end(), IsNumber);
}

struct Field {
  const char* key;
  bool (*fits)(const Json&);
  const char* kind;
};

// Fields that are neither a text nor a number.
constexpr Field kOtherFields[] = {
    {"match", IsBool, "true or false"},
    {"survived", IsBool, "true or false"},
    {"first_token_match", IsBool, "true or false"},
    {"full_match", IsBool, "true or false"},
    {"expected", IsListOf<IsText>, "a list of texts"},
    {"parameters", IsObject, "an object"},
    {"at", IsObject, "an object"},
    {"cells", IsListOf<IsText>, "a list of cells"},
    {"dense_text", IsListOf<IsPiece>, "a list of pieces"},
    {"autonomous_text", IsListOf<IsPiece>, "a list of pieces"},
    {"dense_tokens", IsListOf<IsInteger>, "a list of token ids"},
    {"autonomous_tokens", IsListOf<IsInteger>, "a list of token ids"},
    {"omitted_mass_heads", IsListOf<IsNumber>, "a list of numbers"},
    {"survival", IsListOf<IsSpan>, "a list of spans"},
    {"map", IsListOf<IsText>, "a list of lines"},
    {"fallbacks", IsCounts, "an object of counts"},
};

// What is wrong with a record's fields, or nothing.
std::optional<std::string> WrongField(const Json& record) {
  const auto wrong = [&](const Field& field) {
    const auto it = record.find(field.key);
    return it != record.end() && !it->is_null() && !field.fits(*it)
               ? std::optional(fmt::format("field '{}' is not {}", field.key, field.kind))
               : std::nullopt;
  };
  // In the mass of a layer `policy` is the policy's mass.
  const bool of_mass = Text(record, "record") == "layer_mass";
  for (const std::string_view key : kTextFields) {
    if (of_mass && key == "policy") continue;
    if (auto what = wrong({key.data(), IsText, "a string"})) return what;
  }
  for (const char* key : kNumberFields)
    if (auto what = wrong({key, IsNumber, "a number"})) return what;
  for (const Field& field : kOtherFields)
    if (auto what = wrong(field)) return what;
  return std::nullopt;
}

struct Needed {
  const char* kind;
  const char* key;
};

// What a line of a kind cannot do without.
constexpr Needed kNeeded[] = {
    {"policy", "policy"},    {"layer", "policy"},     {"layer", "teacher"},   {"layer", "layer"},
    {"step", "policy"},      {"step", "teacher"},     {"step", "decision"},   {"rows", "policy"},
    {"rows", "map"},         {"cell", "state"},       {"item", "policy"},     {"item", "task"},
    {"published", "metric"}, {"layer_mass", "layer"}, {"published", "value"}, {"plan", "cells"},
};

// The first that the record lacks, or nothing.
const char* MissingField(const std::string& kind, const Json& record) {
  for (const Needed& needed : kNeeded)
    if (kind == needed.kind && (!record.contains(needed.key) || record[needed.key].is_null()))
      return needed.key;
  return nullptr;
}

// A policy line that comes twice (a run that was resumed) counts once: the later one.
void AddPolicy(RunRecords& run, Json record) {
  for (Json& known : run.policies) {
    if (Text(known, "policy") == Text(record, "policy") &&
        Text(known, "teacher") == Text(record, "teacher")) {
      run.notes.push_back(
          fmt::format("'{}' with teacher '{}' is recorded twice; the later one is shown.",
                      Text(record, "policy"), Text(record, "teacher")));
      known = std::move(record);
      return;
    }
  }
  run.policies.push_back(std::move(record));
}

void NoteUnfinished(RunRecords& run) {
  std::set<std::string> finished;
  for (const Json& record : run.policies) finished.insert(Text(record, "policy"));
  std::set<std::string> begun;
  for (const auto* records : {&run.layers, &run.steps})
    for (const Json& record : *records) begun.insert(Text(record, "policy"));
  for (const std::string& policy : begun)
    if (!finished.contains(policy))
      run.notes.push_back(fmt::format(
          "'{}' was begun but not finished: it is in no table and no paragraph.", policy));
  if (run.prompt.is_null())
    run.notes.push_back("The records hold no 'prompt' line: the dense text is not known.");
  if (run.policies.empty()) run.notes.push_back("No policy was finished.");
}

}  // namespace

bool IsRecordsFileName(const std::string& name) {
  return name.starts_with("records-") && name.ends_with(".jsonl");
}

bool IsRecordsFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  if (in.peek() != '{' || !std::getline(in, line)) return false;
  const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("schema") && record.contains("record");
}

std::optional<double> Number(const Json& record, const char* key) {
  if (!record.is_object()) return std::nullopt;
  const auto it = record.find(key);
  if (it == record.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

std::optional<double> Share(const Json& record, const char* key) {
  if (!record.is_object()) return std::nullopt;
  const auto it = record.find(key);
  return it != record.end() && it->is_boolean() ? std::optional(it->get<bool>() ? 1.0 : 0.0)
                                                : Number(record, key);
}

std::string Text(const Json& record, const char* key) {
  if (!record.is_object()) return "";
  const auto it = record.find(key);
  return it == record.end() || !it->is_string() ? "" : it->get<std::string>();
}

std::vector<std::string> Pieces(const Json& record, const char* key) {
  std::vector<std::string> pieces;
  if (!record.is_object() || !record.contains(key)) return pieces;
  for (const Json& piece : record[key]) {
    if (piece.is_string()) {
      pieces.push_back(piece.get<std::string>());
      continue;
    }
    std::string bytes;
    for (const Json& byte : piece) bytes.push_back(static_cast<char>(byte.get<int>()));
    pieces.push_back(std::move(bytes));
  }
  return pieces;
}

std::vector<int64_t> Tokens(const Json& record, const char* key) {
  if (!record.is_object() || !record.contains(key) || record[key].is_null()) return {};
  return record[key].get<std::vector<int64_t>>();
}

Result<RecordsEnd> ForEachRecord(const std::string& path, const RecordSink& sink) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{fmt::format("cannot read records '{}': {}", path, std::strerror(errno))};
  RecordsEnd end;
  for (std::string line; std::getline(in, line);) {
    const bool unterminated = in.eof();
    ++end.n_lines;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, end.n_lines);

    Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded() && unterminated) {
      end.cut = true;
      return end;
    }
    if (record.is_discarded()) return Error{where + ": not a JSON object on one line"};
    if (!record.is_object()) return Error{where + ": not a JSON object"};
    if (!record.contains("schema")) return Error{where + ": no 'schema': not a record of Condense"};
    if (record["schema"] != kRecordSchema)
      return Error{fmt::format("{}: records of schema {} are unknown; this program reads schema {}",
                               where, record["schema"].dump(), kRecordSchema)};
    if (auto what = WrongField(record)) return Error{fmt::format("{}: {}", where, *what)};
    const std::string kind = Text(record, "record");
    if (kind.empty()) return Error{where + ": no 'record': the kind of line is not said"};
    if (const char* key = MissingField(kind, record))
      return Error{fmt::format("{}: a '{}' record without '{}'", where, kind, key)};
    if (Status status = sink(kind, std::move(record), where); !status.ok())
      return Error{status.error()};
  }
  if (in.bad())
    return Error{fmt::format("cannot read records '{}': {}", path, std::strerror(errno))};
  return end;
}

Status ReadRecords(const std::string& path, std::vector<RunRecords>& runs) {
  const size_t first_run = runs.size();
  std::map<std::string, int> unknown_kinds;
  const Result<RecordsEnd> end = ForEachRecord(
      path, [&](const std::string& kind, Json record, const std::string& where) -> Status {
        if (kind == "run") {
          runs.push_back({.file = path, .run = std::move(record)});
          return {};
        }
        if (runs.size() == first_run)
          return Error{fmt::format("{}: a '{}' record before any 'run' record", where, kind)};
        RunRecords& run = runs.back();
        if (kind == "prompt") {
          run.prompt = std::move(record);
        } else if (kind == "policy") {
          AddPolicy(run, std::move(record));
        } else if (kind == "layer") {
          run.layers.push_back(std::move(record));
        } else if (kind == "step") {
          run.steps.push_back(std::move(record));
        } else if (kind == "rows") {
          run.maps.push_back(std::move(record));
        } else if (kind == "cell") {
          if (Text(record, "state") != "done") run.cells.push_back(std::move(record));
        } else {
          ++unknown_kinds[kind];
        }
        return {};
      });
  if (!end.ok()) return Error{end.error()};
  if (runs.size() == first_run)
    return Error{fmt::format("records '{}' hold no 'run' line: nothing to report", path)};
  for (const auto& [kind, n] : unknown_kinds)
    runs.back().notes.push_back(fmt::format("{} lines of kind '{}' are not shown.", n, kind));
  if (end->cut)
    runs.back().notes.push_back(fmt::format(
        "The last line of the records (line {}) is cut: the run was interrupted.", end->n_lines));
  for (size_t i = first_run; i < runs.size(); ++i) NoteUnfinished(runs[i]);
  return {};
}

}  // namespace condense::report
