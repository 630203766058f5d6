// How long the rest of a run takes, from what its parts took so far: policies differ by far more
// than budgets or places of a text do. The machine's pace is told apart from what parts cost: parts
// that were done while it was busy, by this process or by an earlier one that recorded them,
// mislead only until a few are done at another pace. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/records.h"

namespace condense {

// Seconds of parts of work by kind. Cost is taken to grow with a part's size. Each part is taken to
// cost base × pace: the base is of its kind and size, a median over its latest parts; the pace is
// of the machine when it was done, a median over the parts done around it. One disturbed part moves
// neither.
class CostHistory {
 public:
  using Kind = std::vector<std::string>;  // what it is of, the most general name first

  // Of an earlier process.
  void Record(const Kind& kind, double size, double seconds);
  // Of this one, in the order in which parts were done.
  void Add(const Kind& kind, double size, double seconds);

  bool empty() const { return parts_.empty(); }
  // Seconds at the pace of this process's latest parts; NaN where nothing of this kind is known. Of
  // parts of other sizes the nearest tell.
  double Expected(const Kind& kind, double size) const;
  // The median over the kinds that `like` takes.
  double ExpectedLike(const std::function<bool(const Kind&)>& like, double size) const;

 private:
  // Parts of one kind and size. Rates are logarithms of seconds a size.
  struct Row {
    Kind kind;
    double size;
    std::vector<size_t> parts{};  // their places
    double base = 0;              // of the rate, as fitted
  };
  struct Part {
    size_t row;
    double rate;
    bool recorded;
  };
  void Take(const Kind& kind, double size, double seconds, bool recorded);
  void Fit() const;

  std::vector<Part> parts_;
  mutable std::vector<Row> rows_;
  mutable double pace_ = 0;  // likewise
  mutable bool fitted_ = false;
};

struct RowCost {
  std::string name;    // the policy's name
  double seconds = 0;  // a whole row
};

// What a finished cell says of the cost of others goes into `done`: nothing where its budget could
// not be met, since it was not run. `recorded`: by an earlier process.
void AddCost(const CellRecord& cell, bool recorded, CostHistory& done);

// Seconds left, of the row under way and the rows after it; NaN where nothing is known yet.
// `share`: of the row under way's steps, [0, 1].
double EstimateLeft(const CostHistory& done, const RowCost& under_way, double share,
                    const std::vector<std::string>& pending);

}  // namespace condense
