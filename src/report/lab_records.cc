// A cell's lines are held back until its `cell` line says that it is done.
#include "report/lab_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
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

class Reader {
 public:
  Status ReadFile(const std::string& path) {
    runs_.clear();
    const Result<RecordsEnd> end =
        ForEachRecord(path, [&](const std::string& kind, Json record, const std::string& where) {
          return Take(path, kind, std::move(record), where);
        });
    if (!end.ok()) return Error{end.error()};
    DropHeld();
    return {};
  }

  std::vector<LabRecords> Finish() {
    for (const Key& key : begun_)
      if (!done_.contains(key))
        Of(key.first).records.notes.push_back(fmt::format(
            "Cell “{}” was begun but not finished: it is in no table and no chart.", key.second));
    return std::move(experiments_);
  }

 private:
  using Key = std::pair<std::string, std::string>;  // experiment, cell

  LabRecords& Of(const std::string& experiment) {
    const auto known =
        std::find_if(experiments_.begin(), experiments_.end(),
                     [&](const LabRecords& lab) { return lab.experiment == experiment; });
    if (known != experiments_.end()) return *known;
    experiments_.push_back({.experiment = experiment});
    return experiments_.back();
  }

  Status Take(const std::string& path, const std::string& kind, Json record,
              const std::string& where) {
    if (kind == "run") {
      DropHeld();
      runs_.push_back(std::move(record));
      return {};
    }
    const Key key{Text(record, "experiment"), Text(record, "cell")};
    const bool of_all_cells = kind == "published" || kind == "plan";
    if (key.first.empty() || (key.second.empty() && !of_all_cells))
      return Error{fmt::format("{}: a '{}' record without '{}': not a line of the lab", where, kind,
                               key.first.empty() ? "experiment" : "cell")};
    if (runs_.empty())
      return Error{fmt::format("{}: a '{}' record before any 'run' record", where, kind)};
    if (of_all_cells) {
      LabRecords& lab = Of(key.first);
      if (kind == "plan")
        for (const Json& cell : record["cells"]) lab.planned.insert(cell.get<std::string>());
      else if (std::find(lab.published.begin(), lab.published.end(), record) == lab.published.end())
        lab.published.push_back(std::move(record));
      return {};
    }
    if (kind != "cell") {
      held_[key].push_back(std::move(record));
      return {};
    }
    std::vector<Json> lines = std::move(held_[key]);
    held_.erase(key);
    Close(path, key, record, std::move(lines));
    return {};
  }

  void Close(const std::string& path, const Key& key, const Json& end, std::vector<Json> lines) {
    LabRecords& lab = Of(key.first);
    if (lab.files.empty() || lab.files.back() != path) lab.files.push_back(path);
    std::erase_if(lab.open, [&](const OpenCell& cell) { return cell.cell == key.second; });
    if (done_.contains(key)) {
      lab.records.notes.push_back(
          fmt::format("Cell “{}” is recorded twice; the first is shown.", key.second));
      return;
    }
    if (Text(end, "state") != "done") {
      lab.open.push_back({key.second, Text(end, "state"), Text(end, "reason")});
      return;
    }
    done_.insert(key);
    ++lab.n_done;
    for (const Json& run : runs_)
      if (std::none_of(lab.runs.begin(), lab.runs.end(),
                       [&](const Json& known) { return IsSameRun(known, run); }))
        lab.runs.push_back(run);
    for (Json& line : lines) Keep(lab, end, std::move(line));
  }

  static void Keep(LabRecords& lab, const Json& end, Json line) {
    const std::string kind = Text(line, "record");
    if (kind == "layer_mass") {
      line["parameters"] = end.value("parameters", Json::object());
      lab.masses.push_back(std::move(line));
      return;
    }
    const bool is_layer = kind == "layer";
    const bool is_of_policy =
        kind == "policy" || kind == "item" || kind == "exact" || kind == "guard";
    if (!is_layer && !is_of_policy) return;
    for (const char* bulky : {"autonomous_text", "autonomous_tokens"}) line.erase(bulky);
    if (const auto it = end.find("parameters"); it != end.end() && it->is_object())
      for (const auto& [name, value] : it->items())
        if (!line.contains(name)) line[name] = value;
    (is_layer ? lab.records.layers : lab.records.policies).push_back(std::move(line));
  }

  // A run was stopped here, and what it left open counts nowhere.
  void DropHeld() {
    for (const auto& [key, lines] : held_) begun_.insert(key);
    held_.clear();
  }

  std::vector<LabRecords> experiments_;
  std::map<Key, std::vector<Json>> held_;
  std::vector<Json> runs_;  // of this file
  std::set<Key> done_, begun_;
};

// A rank has a file of its own.
Result<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.starts_with("records-") && name.ends_with(".jsonl")) files.push_back(it->path());
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
