// A cell's lines are held back until its `cell` line ends it, and the cell until all is read: a
// later one may take its place.
#include "report/lab_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

namespace condense::report {
namespace {

namespace fs = std::filesystem;

// What tells two runs apart: figures of unlike ones stand under unlike provenance.
constexpr const char* kProvenance[] = {
    "program",         "version", "commit",  "llama_cpp_commit", "ggml_version", "compiler",
    "instruction_set", "cpu",     "threads", "model_sha256",     "kv_type_k",    "kv_type_v"};

bool IsSameRun(const Json& a, const Json& b) {
  return std::all_of(std::begin(kProvenance), std::end(kProvenance),
                     [&](const char* key) { return a.value(key, Json()) == b.value(key, Json()); });
}

// Lines of a cell that a page shows.
bool IsShown(const std::string& kind) {
  return kind == "policy" || kind == "item" || kind == "exact" || kind == "guard" ||
         kind == "layer" || kind == "layer_mass";
}

void AddOnce(std::vector<std::string>& list, const std::string& text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
}

class Reader {
 public:
  Status ReadFile(const std::string& path) {
    path_ = path;
    run_.reset();
    const Result<RecordsEnd> end =
        ForEachRecord(path, [&](const std::string& kind, Json record, const std::string& where) {
          return Take(kind, std::move(record), where);
        });
    if (!end.ok()) return Error{end.error()};
    DropHeld();
    return {};
  }

  std::vector<LabRecords> Finish() {
    for (Cell& cell : cells_) Add(Of(cell.key.first), cell);
    for (const Key& key : begun_)
      if (const auto place = places_.find(key);
          place == places_.end() || !cells_[place->second].is_done())
        Of(key.first).records.notes.push_back(fmt::format(
            "Cell “{}” was begun but not finished: it is in no table and no chart.", key.second));
    return std::move(experiments_);
  }

 private:
  using Key = std::pair<std::string, std::string>;  // experiment, cell

  struct Cell {
    Key key;
    Json end;                   // its `cell` line
    std::vector<Json> lines{};  // that a page shows
    std::shared_ptr<const Json> run{};
    std::string path{};
    int n_recorded = 1;  // times, failures apart

    bool is_done() const { return Text(end, "state") == "done"; }
    bool failed() const { return Text(end, "state") == "failed"; }
  };

  LabRecords& Of(const std::string& experiment) {
    const auto known =
        std::find_if(experiments_.begin(), experiments_.end(),
                     [&](const LabRecords& lab) { return lab.experiment == experiment; });
    if (known != experiments_.end()) return *known;
    experiments_.push_back({.experiment = experiment});
    return experiments_.back();
  }

  Status Take(const std::string& kind, Json record, const std::string& where) {
    if (kind == "run") {
      DropHeld();
      run_ = std::make_shared<const Json>(std::move(record));
      return {};
    }
    const Key key{Text(record, "experiment"), Text(record, "cell")};
    const bool of_all_cells = kind == "published" || kind == "plan";
    if (key.first.empty() || (key.second.empty() && !of_all_cells))
      return Error{fmt::format("{}: a '{}' record without '{}': not a line of the lab", where, kind,
                               key.first.empty() ? "experiment" : "cell")};
    if (!run_) return Error{fmt::format("{}: a '{}' record before any 'run' record", where, kind)};
    LabRecords& lab = Of(key.first);
    AddOnce(lab.files, path_);
    if (kind == "plan") {
      for (const Json& cell : record["cells"]) lab.planned.insert(cell.get<std::string>());
    } else if (kind == "published") {
      if (std::find(lab.published.begin(), lab.published.end(), record) == lab.published.end())
        lab.published.push_back(std::move(record));
    } else if (kind == "cell") {
      Close({.key = key, .end = std::move(record), .run = run_, .path = path_});
    } else {
      std::vector<Json>& lines = held_[key];
      if (IsShown(kind)) lines.push_back(std::move(record));
    }
    return {};
  }

  void Close(Cell cell) {
    cell.lines = std::move(held_[cell.key]);
    held_.erase(cell.key);
    const auto [place, is_new] = places_.emplace(cell.key, cells_.size());
    if (is_new) {
      cells_.push_back(std::move(cell));
      return;
    }
    Cell& known = cells_[place->second];
    if (cell.failed() && !known.failed()) return;
    if (!known.failed()) cell.n_recorded += known.n_recorded;
    known = std::move(cell);
  }

  static void Add(LabRecords& lab, Cell& cell) {
    if (cell.n_recorded > 1)
      lab.records.notes.push_back(
          fmt::format("Cell “{}” is recorded {}; the last is shown.", cell.key.second,
                      cell.n_recorded == 2 ? "twice" : fmt::format("{} times", cell.n_recorded)));
    if (!cell.is_done()) {
      lab.open.push_back({cell.key.second, Text(cell.end, "state"), Text(cell.end, "reason")});
      return;
    }
    ++lab.n_done;
    auto run = std::find_if(lab.runs.begin(), lab.runs.end(),
                            [&](const LabRun& known) { return IsSameRun(known.run, *cell.run); });
    if (run == lab.runs.end()) run = lab.runs.insert(run, {.run = *cell.run});
    AddOnce(run->files, cell.path);
    for (Json& line : cell.lines) Keep(lab, cell.end, std::move(line));
  }

  static void Keep(LabRecords& lab, const Json& end, Json line) {
    const std::string kind = Text(line, "record");
    if (kind == "layer_mass") {
      line["parameters"] = end.value("parameters", Json::object());
      lab.masses.push_back(std::move(line));
      return;
    }
    for (const char* bulky : {"autonomous_text", "autonomous_tokens"}) line.erase(bulky);
    if (const auto it = end.find("parameters"); it != end.end() && it->is_object())
      for (const auto& [name, value] : it->items())
        if (!line.contains(name)) line[name] = value;
    (kind == "layer" ? lab.records.layers : lab.records.policies).push_back(std::move(line));
  }

  // A run was stopped here, and what it left open counts nowhere.
  void DropHeld() {
    for (const auto& [key, lines] : held_) begun_.insert(key);
    held_.clear();
  }

  std::vector<LabRecords> experiments_;
  std::vector<Cell> cells_;  // each once, in the order in which they were first ended
  std::map<Key, size_t> places_;
  std::map<Key, std::vector<Json>> held_;
  std::string path_;
  std::shared_ptr<const Json> run_;  // nearest before, in this file
  std::set<Key> begun_;
};

// A rank has a file of its own.
Result<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (IsRecordsFileName(name)) files.push_back(it->path());
  }
  if (error) return Error{fmt::format("cannot read folder '{}': {}", folder, error.message())};
  if (files.empty())
    return Error{fmt::format(
        "folder '{}' holds no records-*.jsonl: name one that `condense lab run` wrote", folder)};
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  return files;
}

}  // namespace

Result<std::vector<LabRecords>> ReadLabFolders(const std::vector<std::string>& folders) {
  Reader reader;
  for (const std::string& folder : folders) {
    const Result<std::vector<std::string>> files = FilesOf(folder);
    if (!files.ok()) return Error{files.error()};
    for (const std::string& file : files.value())
      if (Status status = reader.ReadFile(file); !status.ok()) return Error{status.error()};
  }
  return reader.Finish();
}

}  // namespace condense::report
