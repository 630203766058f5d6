#include "lab/kept.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/whole_file.h"

namespace condense {
namespace {

// How every file of records begins; what a stop left of a first line is a part of it.
const std::string& Beginning() {
  static const std::string text = R"({"schema":1,"record":"run")";
  return text;
}

// Of the `run` line, what decides whether figures are of the same run. Speeds depend on threads.
constexpr const char* kIdentity[] = {
    "schema",          "program",  "version",      "commit",     "llama_cpp_commit", "ggml_version",
    "instruction_set", "threads",  "model_sha256", "kv_type_k",  "kv_type_v",        "text_sha256",
    "offset",          "n_prompt", "n_generate",   "speed_pairs"};

double Figure(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : Mean({});
}

std::optional<int> Decision(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<int>();
}

std::optional<double> Share(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// What the table and its legend show.
PolicyRecord ReadPolicy(const Json& json) {
  PolicyRecord record;
  record.policy = json.value("policy", "");
  record.spec = json.value("spec", "");
  record.name = json.value("name", "");
  record.budget = Share(json, "budget");
  record.teacher = json.value("teacher", "");
  record.t_div = Decision(json, "t_div");
  record.t_sig = Decision(json, "t_sig");
  record.figures.n_decisions = json.value("n_decisions", 0);
  record.figures.match = Figure(json, "tf_match");
  record.figures.ppl_dense = Figure(json, "ppl_dense");
  record.figures.ppl_ratio = Figure(json, "ppl_ratio");
  record.figures.ppl_interval = {Figure(json, "ppl_ratio_low"), Figure(json, "ppl_ratio_high")};
  record.figures.kl_mean = Figure(json, "kl_mean");
  record.figures.kl_stderr = Figure(json, "kl_stderr");
  record.figures.kl_max = Figure(json, "kl_max");
  record.figures.omitted_mass_mean = Figure(json, "omitted_mass_mean");
  record.kv_read_share = Figure(json, "kv_read_share");
  record.unique_rows_per_kv_head = Figure(json, "unique_rows_per_kv_head");
  record.sparse_steps = json.value("sparse_steps", uint64_t{0});
  const Json fallbacks = json.value("fallbacks", Json::object());
  for (const auto& [reason, count] : fallbacks.items()) {
    record.fallbacks[reason] = count.get<uint64_t>();
  }
  record.select_share = Share(json, "select_share");
  record.speed.n_pairs = json.value("speed_pairs", 0);
  record.speed.sparse_tokens_per_second = Figure(json, "sparse_tokens_per_second");
  record.speed.dense_tokens_per_second = Figure(json, "dense_tokens_per_second");
  record.speed.ratio = {Figure(json, "speed_ratio_low"), Figure(json, "speed_ratio_median"),
                        Figure(json, "speed_ratio_high")};
  return record;
}

CellRecord ReadCell(const Json& json) {
  CellRecord cell;
  cell.policy = json.value("policy", "");
  cell.name = json.value("name", "");
  cell.budget = Share(json, "budget");
  cell.state = json.value("state", "");
  cell.reason = json.value("reason", "");
  cell.least_budget = Share(json, "least_budget");
  cell.seconds = json.value("seconds", 0.0);
  return cell;
}

PromptRecord ReadPrompt(const Json& json) {
  PromptRecord prompt;
  prompt.n_prompt = json.value("n_prompt", 0);
  prompt.prefill_seconds = json.value("prefill_seconds", 0.0);
  prompt.first_token = json.value("first_token", 0);
  prompt.dense_tokens = json.value("dense_tokens", std::vector<int>());
  return prompt;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  // A line with its end, `n_bytes` of the file so far.
  Status Take(const std::string& line, uint64_t n_bytes) try {
    ++n_lines_;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("schema", 0) != kRecordSchema)
      return Damaged("is no record of schema 1");
    const std::string kind = json.value("record", "");
    if ((kind == "run") != (n_lines_ == 1)) return Damaged("is no line of one run");
    if (kind == "run") kept_.run = json;
    if (kind == "prompt") kept_.prompt = ReadPrompt(json);
    if (kind == "policy") row_.teachers.push_back(ReadPolicy(json));
    if (kind == "cell") EndCell(ReadCell(json));
    if (kind == "run" || kind == "prompt" || kind == "cell") kept_.n_bytes = n_bytes;
    return Status();
  } catch (const Json::exception& wrong) {
    return Damaged(wrong.what());
  }

  KeptRecords Finish() { return std::move(kept_); }

 private:
  Status Damaged(const std::string& what) const {
    return Error{
        fmt::format("records '{}': line {} {}; remove the file, or name another with --records",
                    path_, n_lines_, what)};
  }

  void EndCell(CellRecord cell) {
    if (cell.state == "left_out") {
      kept_.left_out.push_back({cell.policy, cell.reason});
      return;
    }
    row_.cell = std::move(cell);
    kept_.rows.push_back(std::move(row_));
    row_ = CompareRow();
  }

  const std::string path_;
  int n_lines_ = 0;
  KeptRecords kept_;
  CompareRow row_;
};

std::string Shown(const Json& value) { return value.is_null() ? "nothing" : value.dump(); }

}  // namespace

Result<KeptRecords> ReadKept(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return KeptRecords();
  const Result<std::string> read = ReadWholeFile(path);
  if (!read.ok()) return Error{fmt::format("cannot read records '{}': {}", path, read.error())};
  const std::string& bytes = read.value();
  const size_t n = std::min(bytes.size(), Beginning().size());
  if (bytes.compare(0, n, Beginning(), 0, n) != 0) {
    return Error{
        fmt::format("'{}' holds no records of Condense; name another file with --records", path)};
  }
  Reader reader(path);
  for (size_t at = 0, end; (end = bytes.find('\n', at)) != std::string::npos; at = end + 1) {
    const Status status = reader.Take(bytes.substr(at, end - at), end + 1);
    if (!status.ok()) return Error{status.error()};
  }
  return reader.Finish();
}

Status CheckSameRun(const KeptRecords& kept, const RunRecord& run, const std::string& path) {
  const Json now = ToJson(run);
  for (const char* key : kIdentity) {
    const auto then = kept.run.find(key);
    const Json recorded = then == kept.run.end() ? Json(nullptr) : *then;
    if (recorded == now.at(key)) continue;
    return Error{fmt::format(
        "records '{}' are of another run: {} was {}, is {} now; remove the file, or name another "
        "with --records",
        path, key, Shown(recorded), Shown(now.at(key)))};
  }
  return Status();
}

}  // namespace condense
