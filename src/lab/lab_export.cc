#include "lab/lab_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>

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

using Columns = std::vector<std::pair<std::string, std::string>>;

// The line's columns by name, nested objects flattened.
void Flatten(const Json& json, const std::string& prefix, Columns& columns) {
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

// Of one of the lines of a cell, or the line of none: with the parameters of the cell, whose end is
// the last.
Columns ColumnsOf(const Json& line, std::span<const Json> lines) {
  Columns columns;
  Flatten(line, "", columns);
  if (&line != &lines.back()) Flatten(lines.back()["parameters"], "parameters.", columns);
  return columns;
}

// Lines with other columns, which a run has written since these were collected, are left out.
Status WriteRowOf(Kind& kind, const Columns& columns) {
  std::vector<std::string> cells(kind.columns.size());
  for (const auto& [name, text] : columns) {
    const auto place = kind.places.find(name);
    if (place == kind.places.end()) return Status();
    cells[place->second] = text;
  }
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) row += (i > 0 ? "," : "") + cells[i];
  *kind.out << row << "\r\n";
  if (*kind.out) return Status();
  return Error{fmt::format("cannot write {}: {}", Quote(kind.path), std::strerror(errno))};
}

}  // namespace

Result<std::vector<std::string>> ExportCsv(const std::string& folder) {
  Kinds kinds;
  Status status = ForEachCell(folder, [&](std::span<const Json> lines) {
    for (const Json& line : lines) {
      Kind& kind = kinds[line["record"]];
      for (const auto& [name, text] : ColumnsOf(line, lines)) {
        if (kind.places.emplace(name, kind.columns.size()).second) kind.columns.push_back(name);
      }
    }
    return Status();
  });
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
    Columns titles;
    for (const std::string& column : kind.columns) titles.emplace_back(column, Quoted(column));
    status = WriteRowOf(kind, titles);
    if (!status.ok()) return Error{status.error()};
    paths.push_back(kind.path);
  }
  status = ForEachCell(folder, [&](std::span<const Json> lines) {
    for (const Json& line : lines) {
      const auto kind = kinds.find(line["record"]);
      if (kind == kinds.end()) continue;  // likewise
      const Status written = WriteRowOf(kind->second, ColumnsOf(line, lines));
      if (!written.ok()) return written;
    }
    return Status();
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
