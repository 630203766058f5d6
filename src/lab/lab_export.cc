#include "lab/lab_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "base/text.h"
#include "lab/lab_folder.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string Shown(const Json& value) {
  if (value.is_null()) return "";
  return Quoted(value.is_string() ? value.get<std::string>() : value.dump());
}

// The line's columns by name, nested objects flattened.
void Flatten(const Json& json, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& columns) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object() && key != "at") {
      Flatten(value, prefix + key + ".", columns);
    } else {
      columns.emplace_back(prefix + key, Shown(value));
    }
  }
}

// One kind's file: the columns of all its lines first, since not every line has every one.
struct Kind {
  std::vector<std::string> columns;
  std::map<std::string, size_t> places;
  std::unique_ptr<std::ofstream> out;
  std::string path;
};

using Kinds = std::map<std::string, Kind>;
using Parameters = std::map<std::pair<std::string, std::string>, Json>;

// A line with the parameters of its cell.
std::vector<std::pair<std::string, std::string>> ColumnsOf(const Json& line,
                                                           const Parameters& parameters) {
  std::vector<std::pair<std::string, std::string>> columns;
  Flatten(line, "", columns);
  if (!line.contains("cell") || line["record"] == "cell") return columns;
  const auto known = parameters.find({line["experiment"], line["cell"]});
  if (known != parameters.end()) Flatten(Json{{"parameters", known->second}}, "", columns);
  return columns;
}

Status WriteRowOf(Kind& kind, const std::vector<std::pair<std::string, std::string>>& columns) {
  std::vector<std::string> cells(kind.columns.size());
  for (const auto& [name, text] : columns) cells[kind.places.at(name)] = text;
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) row += (i > 0 ? "," : "") + cells[i];
  *kind.out << row << "\r\n";
  if (*kind.out) return Status();
  return Error{fmt::format("cannot write {}: {}", Quote(kind.path), std::strerror(errno))};
}

}  // namespace

Result<std::vector<std::string>> ExportCsv(const std::string& folder) {
  Parameters parameters;
  Status status = ForEachLine(folder, [&](const Json& line) {
    if (line["record"] == "cell")
      parameters[{line["experiment"], line["cell"]}] = line.value("parameters", Json::object());
    return Status();
  });
  Kinds kinds;
  if (status.ok()) {
    status = ForEachLine(folder, [&](const Json& line) {
      Kind& kind = kinds[line["record"]];
      for (const auto& [name, text] : ColumnsOf(line, parameters)) {
        if (kind.places.emplace(name, kind.columns.size()).second) kind.columns.push_back(name);
      }
      return Status();
    });
  }
  if (!status.ok()) return Error{status.error()};
  if (kinds.empty()) {
    return Error{fmt::format("{} holds no records of the lab: name what `condense lab run` wrote",
                             Quote(folder))};
  }
  const fs::path csv = fs::path(folder) / "csv";
  std::error_code error;
  fs::create_directories(csv, error);
  if (error) return Error{fmt::format("cannot make {}: {}", Quote(csv.string()), error.message())};
  std::vector<std::string> paths;
  for (auto& [name, kind] : kinds) {
    kind.path = (csv / (name + ".csv")).string();
    kind.out = std::make_unique<std::ofstream>(kind.path, std::ios::binary);
    std::vector<std::pair<std::string, std::string>> titles;
    for (const std::string& column : kind.columns) titles.emplace_back(column, Quoted(column));
    status = WriteRowOf(kind, titles);
    if (!status.ok()) return Error{status.error()};
    paths.push_back(kind.path);
  }
  status = ForEachLine(folder, [&](const Json& line) {
    return WriteRowOf(kinds.at(line["record"]), ColumnsOf(line, parameters));
  });
  for (auto& [name, kind] : kinds) {
    kind.out->close();
    if (status.ok() && !*kind.out)
      status = Error{fmt::format("cannot write {}: {}", Quote(kind.path), std::strerror(errno))};
  }
  if (!status.ok()) return Error{status.error()};
  return paths;
}

}  // namespace condense
