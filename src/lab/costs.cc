#include "lab/costs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "metrics/stats.h"

namespace condense {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Of a row's steps: before, what its own pace says is no better than others' rows.
constexpr double kTelling = 0.2;

// Parts that tell the pace, at least and at most; parts of a kind that tell its base.
constexpr size_t kFew = 3, kRecent = 8, kRemembered = 5;
constexpr int kTurns = 16;

double Median(const std::vector<double>& values) {
  return values.empty() ? kUnknown : Quantile(values, 0.5);
}

// Of a row of this policy, else of all; NaN without any.
double ExpectedRow(const CostHistory& done, const std::string& name) {
  const double own = done.Expected({name}, 1);
  return std::isnan(own) ? done.ExpectedLike([](const CostHistory::Kind&) { return true; }, 1)
                         : own;
}

}  // namespace

void CostHistory::Record(const Kind& kind, double size, double seconds) {
  Take(kind, size, seconds, /*recorded=*/true);
}

void CostHistory::Add(const Kind& kind, double size, double seconds) {
  Take(kind, size, seconds, /*recorded=*/false);
}

void CostHistory::Take(const Kind& kind, double size, double seconds, bool recorded) {
  // Parts of no time were done together with others.
  if (!(size > 0) || !(seconds > 0)) return;
  auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& known) {
    return known.kind == kind && known.size == size;
  });
  if (row == rows_.end()) row = rows_.insert(row, Row{.kind = kind, .size = size});
  row->parts.push_back(parts_.size());
  parts_.push_back({static_cast<size_t>(row - rows_.begin()), std::log(seconds / size), recorded});
  fitted_ = false;
}

// By turns the bases, given the paces, and the paces, given the bases (Tukey's median polish, with
// a window over time for one of its two effects).
void CostHistory::Fit() const {
  if (fitted_) return;
  fitted_ = true;
  std::vector<double> paces(parts_.size(), 0);
  // Of the parts from `begin` to `end` that can tell, which have others of their row.
  const auto pace_of = [&](size_t begin, size_t end, bool recorded) {
    std::vector<double> over_base;
    for (size_t i = begin; i < end; ++i) {
      const Row& row = rows_[parts_[i].row];
      if (parts_[i].recorded == recorded && row.parts.size() > 1)
        over_base.push_back(parts_[i].rate - row.base);
    }
    return over_base.size() < kFew ? 0 : Median(over_base);
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Row& row : rows_) {
      std::vector<double> at_pace;
      const size_t n = std::min(row.parts.size(), kRemembered);
      for (size_t i : std::span(row.parts).last(n)) at_pace.push_back(parts_[i].rate - paces[i]);
      row.base = Median(at_pace);
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      paces[i] = pace_of(i - std::min(i, kRecent / 2), std::min(parts_.size(), i + kRecent / 2 + 1),
                         parts_[i].recorded);
    }
  }
  pace_ = pace_of(parts_.size() - std::min(parts_.size(), kRecent), parts_.size(), false);
}

double CostHistory::Expected(const Kind& kind, double size) const {
  Fit();
  double nearest = std::numeric_limits<double>::infinity(), rate = kUnknown;
  for (const Row& row : rows_) {
    if (row.kind != kind) continue;
    const double distance = std::abs(std::log(row.size / size));
    if (distance >= nearest) continue;
    nearest = distance;
    rate = std::exp(row.base + pace_);
  }
  return size * rate;
}

double CostHistory::ExpectedLike(const std::function<bool(const Kind&)>& like, double size) const {
  std::set<Kind> kinds;
  for (const Row& row : rows_) {
    if (like(row.kind)) kinds.insert(row.kind);
  }
  std::vector<double> seconds;
  for (const Kind& kind : kinds) seconds.push_back(Expected(kind, size));
  return Median(seconds);
}

void AddCost(const CellRecord& cell, bool recorded, CostHistory& done) {
  if (cell.state != CellRecord().state) return;
  if (recorded) {
    done.Record({cell.name}, 1, cell.seconds);
  } else {
    done.Add({cell.name}, 1, cell.seconds);
  }
}

double EstimateLeft(const CostHistory& done, const RowCost& under_way, double share,
                    const std::vector<std::string>& pending) {
  CostHistory known = done;
  const double whole = share > 0 ? under_way.seconds / share : kUnknown;
  if (known.empty() || share >= kTelling) known.Add({under_way.name}, 1, whole);
  const double own = share >= kTelling ? whole : ExpectedRow(known, under_way.name);
  double left = std::max(0.0, own - under_way.seconds);
  if (std::isnan(own)) left = kUnknown;
  for (const std::string& name : pending) left += ExpectedRow(known, name);
  return left;
}

}  // namespace condense
