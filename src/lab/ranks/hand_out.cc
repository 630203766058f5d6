#include "lab/ranks/hand_out.h"

#include <algorithm>

namespace condense {

void HandOut::Add(std::vector<std::string> cells, std::vector<FinishedCell> finished) {
  groups_.push_back({std::move(cells), std::move(finished)});
}

std::optional<HandedGroup> HandOut::Next(int rank) {
  At& at = at_[rank];
  if (at.group) {
    // What the rank did not finish of it, though it lives, nobody will.
    groups_[*at.group].cells.clear();
    groups_[*at.group].finished.clear();  // nobody asks again
    groups_[*at.group].is_out = false;
  }
  at = {};
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.is_out || group.cells.empty()) continue;
    group.is_out = true;
    at.group = i;
    return HandedGroup{i, group.cells, group.finished};
  }
  return std::nullopt;
}

void HandOut::Working(int rank, const std::string& cell) { at_[rank].cell = cell; }

void HandOut::Finished(int rank, FinishedCell cell) {
  At& at = at_[rank];
  if (!at.group) return;
  if (at.cell == cell.id) at.cell.clear();
  std::erase(groups_[*at.group].cells, cell.id);
  groups_[*at.group].finished.push_back(std::move(cell));
}

HandOut::Loss HandOut::Lose(int rank) {
  At& at = at_[rank];
  Loss loss;
  if (!at.group) return loss;
  loss.group = *at.group;
  Group& group = groups_[*at.group];
  group.is_out = false;
  if (++group.n_losses >= kMostLosses) {
    loss.failed.swap(group.cells);
  } else if (std::erase(group.cells, at.cell) > 0) {
    loss.failed.push_back(at.cell);
  }
  at = {};
  return loss;
}

std::optional<size_t> HandOut::GroupOf(int rank) const {
  const auto at = at_.find(rank);
  return at == at_.end() ? std::nullopt : at->second.group;
}

bool HandOut::all_done() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return !group.is_out && group.cells.empty(); });
}

}  // namespace condense
