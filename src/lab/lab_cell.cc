#include "lab/lab_cell.h"

#include <algorithm>
#include <map>

namespace condense {
namespace {

bool IsPlain(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '"' && c != '\x7f';
  });
}

}  // namespace

std::string CellId(const Json& parameters) {
  std::map<std::string, std::string> by_name;
  for (const auto& [name, value] : parameters.items()) {
    const bool plain = value.is_string() && IsPlain(value.get_ref<const std::string&>());
    by_name[name] = plain ? value.get<std::string>()
                          : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string id;
  for (const auto& [name, value] : by_name) id += (id.empty() ? "" : " ") + name + "=" + value;
  return id;
}

Cell MakeCell(const std::string& experiment, const Json& shared, const Json& own, int n_rows) {
  Cell cell{experiment, "", CellId(shared), shared, n_rows, {}};
  for (const auto& [name, value] : own.items()) {
    CONDENSE_CHECK(!cell.parameters.contains(name));
    cell.parameters[name] = value;
  }
  cell.id = CellId(cell.parameters);
  return cell;
}

}  // namespace condense
