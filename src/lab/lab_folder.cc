#include "lab/lab_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/text.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// Of the `run` line, what decides whether figures belong together. Speeds depend on threads.
constexpr const char* kIdentity[] = {"program",          "version",      "commit",
                                     "llama_cpp_commit", "ggml_version", "instruction_set",
                                     "threads"};

bool IsRecordsFile(const std::string& name) {
  return name.starts_with("records-") && name.ends_with(".jsonl");
}

std::vector<std::string> RecordsFiles(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (IsRecordsFile(name)) names.push_back(name);
  }
  // records-2 before records-10.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  return names;
}

// Hands over the lines of one file that count, a cell's at once; gives the bytes up to the last.
Result<uint64_t> ReadFile(const std::string& path,
                          const std::function<Status(std::vector<Json>& lines)>& take) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{fmt::format("cannot read records {}: {}", Quote(path), strerror(errno))};
  std::vector<Json> lines;  // of the cell that is being read
  uint64_t at = 0, whole = 0;
  int number = 0;
  const auto damaged = [&](const std::string& what) {
    return Error{
        fmt::format("records {}: line {} {}; move the file away, or name another folder with --out",
                    Quote(path), number, what)};
  };
  for (std::string line; std::getline(in, line) && !in.eof();) {  // with its end only
    ++number;
    at += line.size() + 1;
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("schema") || !json.contains("record"))
      return damaged("is no record of Condense");
    if (json["schema"] != kRecordSchema) {
      return damaged(fmt::format("is of schema {}, and this program reads schema {}",
                                 json["schema"].dump(), kRecordSchema));
    }
    if (!json["record"].is_string()) return damaged("is no record of Condense");
    const std::string kind = json["record"];
    const bool of_cell = json.contains("cell");
    if (number == 1 && kind != "run") return damaged("is no `run` line, which comes first");
    if (of_cell && !(json["cell"].is_string() && json.contains("experiment") &&
                     json["experiment"].is_string()))
      return damaged("names no experiment");
    if (!of_cell) lines.clear();  // what a killed run left
    if (of_cell && !lines.empty() &&
        (lines[0]["cell"] != json["cell"] || lines[0]["experiment"] != json["experiment"])) {
      lines.clear();
    }
    lines.push_back(std::move(json));
    if (of_cell && kind != "cell") continue;
    const Status taken = take(lines);
    if (!taken.ok()) return damaged(taken.error());
    lines.clear();
    whole = at;
  }
  if (in.bad())
    return Error{fmt::format("cannot read records {}: {}", Quote(path), strerror(errno))};
  return whole;
}

}  // namespace

class LabFolderReader {
 public:
  Status Take(std::vector<Json>& lines) {
    const std::string kind = lines.back()["record"];
    if (kind == "run") kept_.runs.push_back(std::move(lines.back()));
    if (kind == "plan") kept_.plans.push_back(std::move(lines.back()));
    if (kind == "published") kept_.published.push_back(std::move(lines.back()));
    if (kind != "cell") return Status();
    Result<FinishedCell> cell = MakeFinishedCell(std::move(lines));
    if (!cell.ok()) return Error{cell.error()};
    kept_.Add(std::move(cell.value()));
    return Status();
  }
  LabFolder& kept() { return kept_; }

 private:
  LabFolder kept_;
};

Result<FinishedCell> MakeFinishedCell(std::vector<Json> lines) {
  FinishedCell cell;
  cell.end = std::move(lines.back());
  lines.pop_back();
  const auto parameters = cell.end.find("parameters");
  if (parameters == cell.end.end() || !parameters->is_object() ||
      !cell.end.value("state", Json()).is_string())
    return Error{"is a cell without state or parameters"};
  cell.parameters = *parameters;
  cell.experiment = cell.end["experiment"];
  cell.id = cell.end["cell"];
  cell.group = cell.end.value("group", "");
  for (Json& line : lines) {
    if (line["record"] != "step" && line["record"] != "rows") cell.lines.push_back(std::move(line));
  }
  return cell;
}

void LabFolder::Add(FinishedCell cell) {
  const auto [place, is_new] = places_.emplace(std::pair(cell.experiment, cell.id), cells.size());
  if (is_new) {
    cells.push_back(std::move(cell));
  } else if (cell.end["state"] != "failed" || cells[place->second].end["state"] == "failed") {
    cells[place->second] = std::move(cell);
  }
}

Result<LabLock> LabLock::Take(const std::string& folder, const std::string& note) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return Error{fmt::format("cannot make the folder {}: {}; name another with --out",
                             Quote(folder), error.message())};
  }
  const std::string path = (fs::path(folder) / "lock").string();
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return Error{fmt::format("cannot write into the folder {}: {}; name another with --out",
                             Quote(folder), std::strerror(errno))};
  }
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    char who[256] = {};
    const ssize_t n = read(file, who, sizeof(who) - 1);
    close(file);
    std::string other(who, n > 0 ? static_cast<size_t>(n) : 0);
    while (!other.empty() && other.back() == '\n') other.pop_back();
    return Error{fmt::format(
        "another run is at work in the folder {} ({}): wait for it, stop it, or name another "
        "folder with --out",
        Quote(folder), other.empty() ? "it does not say which" : other)};
  }
  const std::string me =
      fmt::format("process {} since {:%Y-%m-%d %H:%M:%S} UTC{}{}\n", getpid(),
                  fmt::gmtime(std::time(nullptr)), note.empty() ? "" : ", ", note);
  // To the disk: a network's file system shows it to other machines only then.
  if (ftruncate(file, 0) != 0 || pwrite(file, me.data(), me.size(), 0) < 0 || fsync(file) != 0) {
    // Only the words for a second run are lost, as on a full disk: the records will say so.
  }
  return LabLock(file);
}

LabLock::~LabLock() {
  if (file_ >= 0) close(file_);
}

const FinishedCell* LabFolder::Find(const std::string& experiment, const std::string& id) const {
  const auto place = places_.find({experiment, id});
  return place == places_.end() ? nullptr : &cells[place->second];
}

std::vector<FinishedCell> LabFolder::Done(const std::string& experiment) const {
  std::vector<FinishedCell> done;
  std::map<std::string, bool> taken;
  for (const Json& plan : plans) {
    if (plan.value("experiment", "") != experiment) continue;
    for (const Json& id : plan.value("cells", Json::array())) {
      const FinishedCell* cell = id.is_string() ? Find(experiment, id) : nullptr;
      if (cell == nullptr || cell->end["state"] == "failed" || taken[cell->id]) continue;
      taken[cell->id] = true;
      done.push_back(*cell);
    }
  }
  return done;
}

Result<LabFolder> ReadLabFolder(const std::string& folder) {
  LabFolderReader reader;
  for (const std::string& name : RecordsFiles(folder)) {
    const Result<uint64_t> n_bytes =
        ReadFile((fs::path(folder) / name).string(),
                 [&](std::vector<Json>& lines) { return reader.Take(lines); });
    if (!n_bytes.ok()) return Error{n_bytes.error()};
    reader.kept().n_bytes[name] = n_bytes.value();
  }
  return std::move(reader.kept());
}

Status ForEachLine(const std::string& folder, const std::function<Status(const Json& line)>& take) {
  for (const std::string& name : RecordsFiles(folder)) {
    const Result<uint64_t> n_bytes =
        ReadFile((fs::path(folder) / name).string(), [&](std::vector<Json>& lines) {
          for (const Json& line : lines) {
            const Status status = take(line);
            if (!status.ok()) return status;
          }
          return Status();
        });
    if (!n_bytes.ok()) return Error{n_bytes.error()};
  }
  return Status();
}

std::string RecordsFileName(int rank) { return fmt::format("records-{}.jsonl", rank); }

Json RunIdentity(const Json& run) {
  Json identity = Json::object();
  for (const char* key : kIdentity) identity[key] = run.value(key, Json());
  return identity;
}

Status CheckSameProgram(const LabFolder& kept, const Json& run, const std::string& folder) {
  const auto shown = [](const Json& line, const char* key) {
    const auto value = line.find(key);
    return value == line.end() ? "nothing" : value->dump();
  };
  for (const Json& then : kept.runs) {
    for (const char* key : kIdentity) {
      if (shown(then, key) == shown(run, key)) continue;
      return Error{fmt::format(
          "the records in {} were made by another program or machine: {} was {}, is {} now; name "
          "another folder with --out",
          Quote(folder), key, shown(then, key), shown(run, key))};
    }
  }
  return Status();
}

}  // namespace condense
