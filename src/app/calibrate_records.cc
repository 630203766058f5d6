#include "app/calibrate_records.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/whole_file.h"

namespace condense {
namespace {

// How every file of these records begins.
constexpr std::string_view kBeginning = R"({"record":"calibrate")";

// Whether `text` is of the run at hand, as far as it goes: a stop may have cut it anywhere.
Status CheckBeginning(const std::string& path, std::string_view text, const Json& identity) {
  const std::string own = RecordLine(identity);
  if (text.substr(0, own.size()) == std::string_view(own).substr(0, text.size())) return Status();
  if (text.substr(0, kBeginning.size()) != kBeginning) {
    return Error{fmt::format(
        "'{}' holds no records of `condense calibrate`: name another file with --records", path)};
  }
  return Error{fmt::format(
      "records '{}' are of another run (model, text, policy, lengths, risk or program): name "
      "another file with --records, or remove it",
      path)};
}

}  // namespace

Result<CalibrateRecords> CalibrateRecords::Open(const std::string& path, const Json& identity) {
  CalibrateRecords records;
  records.path_ = path;
  if (path.empty()) return records;
  std::string text;
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    Result<std::string> read = ReadWholeFile(path);
    if (!read.ok()) return Error{fmt::format("records '{}': {}", path, read.error())};
    text = std::move(read.value());
  }
  const Status same = CheckBeginning(path, text, identity);
  if (!same.ok()) return Error{same.error()};
  size_t kept = 0;
  for (size_t end; (end = text.find('\n', kept)) != std::string::npos; kept = end + 1) {
    if (kept == 0) continue;
    const Json line = Json::parse(std::string_view(text).substr(kept, end - kept), nullptr, false);
    const auto prefix = line.is_object() ? line.find("prefix") : line.end();
    if (prefix == line.end() || !prefix->is_number_integer())
      return Error{fmt::format("records '{}' are damaged: remove the file", path)};
    (line.contains("thresholds") ? records.tried_ : records.searched_)[prefix->get<int>()] = line;
  }
  Result<RecordWriter> writer =
      kept == 0 ? RecordWriter::Create(path) : RecordWriter::GoOn(path, kept);
  if (!writer.ok()) return Error{writer.error()};
  records.writer_ = std::move(writer.value());
  if (kept == 0) {
    const Status status = records.writer_->WriteLine(identity);
    if (!status.ok()) return Error{status.error()};
  }
  return records;
}

const Json* CalibrateRecords::Searched(int prefix) const {
  const auto found = searched_.find(prefix);
  return found == searched_.end() ? nullptr : &found->second;
}

const Json* CalibrateRecords::Tried(int prefix, const std::vector<double>& thresholds) const {
  const auto found = tried_.find(prefix);
  if (found == tried_.end() || found->second["thresholds"] != Json(thresholds)) return nullptr;
  return &found->second;
}

Status CalibrateRecords::WriteSearched(int prefix, Json found) {
  return Write("searched", prefix, std::move(found));
}

Status CalibrateRecords::WriteTried(int prefix, const std::vector<double>& thresholds, Json found) {
  found["thresholds"] = thresholds;
  return Write("tried", prefix, std::move(found));
}

Status CalibrateRecords::Write(const char* record, int prefix, Json found) {
  if (!writer_) return Status();
  Json line = {{"record", record}, {"prefix", prefix}};
  line.update(found);
  return writer_->WriteLine(line);
}

}  // namespace condense
