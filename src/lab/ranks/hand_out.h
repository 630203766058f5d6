// The books of rank 0: which rank runs which group of cells, what is finished, and what a lost rank
// leaves behind. Groups are handed out whole, in the order of planning (their cells share a
// prefill, and the order keeps a model loaded). No threads, no messages.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment.h"

namespace condense {

// A group as it goes to a rank.
struct HandedGroup {
  size_t group = 0;                // index in the plan
  std::vector<std::string> cells;  // ids of those to run
  // The group's cells that are finished, by this run or one before, whoever has them on disk.
  std::vector<FinishedCell> finished;
};

class HandOut {
 public:
  // After so many ranks were lost at a group, what is left of it fails: it may be what killed them.
  static constexpr int kMostLosses = 2;

  // The next group of the plan, with the ids of what is to run and what is finished of it.
  void Add(std::vector<std::string> cells, std::vector<FinishedCell> finished);

  // A group for this rank, which has done with the one it had; none where none is waiting.
  std::optional<HandedGroup> Next(int rank);
  // The cell that a rank has under way; "": none.
  void Working(int rank, const std::string& cell);
  // By whichever rank has the cell's group, done or failed.
  void Finished(int rank, FinishedCell cell);

  struct Loss {
    size_t group = 0;
    std::vector<std::string> failed;  // cells that are not handed out again
  };
  // The rank is gone: its cell under way fails, the others of its group wait again.
  Loss Lose(int rank);

  // The group that a rank has.
  std::optional<size_t> GroupOf(int rank) const;
  // No group is waiting, and none is with a rank.
  bool all_done() const;

 private:
  struct Group {
    std::vector<std::string> cells;  // to run
    std::vector<FinishedCell> finished;
    bool is_out = false;
    int n_losses = 0;
  };
  struct At {
    std::optional<size_t> group;
    std::string cell;  // under way
  };
  std::vector<Group> groups_;
  std::map<int, At> at_;  // by rank
};

}  // namespace condense
