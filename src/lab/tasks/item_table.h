// Tables of answered items: policies by columns of items, counted. A column in which dense itself
// hardly answers is at its floor: there a policy has nothing to lose, so it is marked and left out
// of sums and means. Pure.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment.h"

namespace condense {

// Below this share of dense's answers a column is at its floor.
inline constexpr double kFloorShare = 0.2;

// Items of one policy in one column.
struct ItemCounts {
  int n = 0, n_first = 0, n_full = 0;
  double scores = 0, read_shares = 0;  // sums

  void Add(const Json& item);  // an `item` line
  void Add(const ItemCounts& other);
  double ReadShare() const { return read_shares / n; }
};

struct ItemGrid {
  std::string title;  // the parameters that all its cells share, of interest
  std::vector<std::string> policies, columns;                        // as they came
  std::map<std::pair<std::string, std::string>, ItemCounts> counts;  // by policy and column

  const ItemCounts& At(const std::string& policy, const std::string& column) const;
  // By full answers (`scored`: by scores) of dense; false where dense has no items there.
  bool AtFloor(const std::string& column, bool scored) const;
  // A policy's items of all columns that are not at their floor.
  ItemCounts Together(const std::string& policy, bool scored) const;
};

// The items of `cells`, a grid for each title, a column for each name; an empty name: not taken. A
// cell whose budget cannot be met counts none.
std::vector<ItemGrid> ItemGrids(std::span<const FinishedCell> cells,
                                const std::function<std::string(const Json& parameters)>& title,
                                const std::function<std::string(const Json& parameters)>& column);

// A cell's model, and its cache's types where they are not f16: "m.gguf@1a2b3c4d, q8_0 keys".
std::string ModelText(const Json& parameters);

// "24/45"; "–" of none.
std::string CountText(int n_right, int n);
// "53 (39 to 67)": per cent with Wilson's interval at 95 %; "–" of none.
std::string WilsonText(int n_right, int n);
// A column's title, "*" behind it where it is at its floor; and the line below the table that says
// what that means, "" where none is.
std::string FloorMarked(const ItemGrid& grid, const std::string& column, bool scored);
std::string FloorNote(const ItemGrid& grid, bool scored);
// The line below the table that says what the published figures are of, "" where there are none.
std::string PublishedNote(const ExperimentInfo& info);

}  // namespace condense
