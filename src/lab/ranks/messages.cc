#include "lab/ranks/messages.h"

namespace condense {

Json ToJson(const FinishedCell& cell) {
  Json lines = cell.lines;
  lines.push_back(cell.end);
  return lines;
}

std::vector<FinishedCell> FinishedFromJson(const Json& cells) {
  std::vector<FinishedCell> all;
  if (!cells.is_array()) return all;
  for (const Json& lines : cells) {
    if (!lines.is_array() || lines.empty()) continue;
    Result<FinishedCell> cell = MakeFinishedCell(lines.get<std::vector<Json>>());
    if (cell.ok()) all.push_back(std::move(cell.value()));
  }
  return all;
}

Json ToJson(const HandedGroup& group) {
  Json message = Say("group");
  message["group"] = group.group;
  message["cells"] = group.cells;
  message["finished"] = Json::array();
  for (const FinishedCell& cell : group.finished) message["finished"].push_back(ToJson(cell));
  return message;
}

HandedGroup HandedFromJson(const Json& message) {
  HandedGroup group;
  group.group = message.value("group", size_t{0});
  group.cells = message.value("cells", std::vector<std::string>());
  group.finished = FinishedFromJson(message.value("finished", Json::array()));
  return group;
}

}  // namespace condense
