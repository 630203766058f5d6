// Arms timed in turns: round by round, forwards and backwards, each after a pass of the stream
// yardstick, which also takes every older row out of the caches. A machine whose speed drifts moves
// all arms and the yardstick alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/record.h"
#include "bench/yardstick.h"

namespace condense {

struct Arm {
  std::string name;
  std::function<void(int round)> prepare;  // untimed, after the yardstick's pass; may be empty
  std::function<void(int round)> run;      // timed
  int every = 1;  // rounds from one timing to the next, for slow arms whose steps need not be whole
};

struct RoundTimes {
  std::vector<std::vector<double>> ns;  // [arm][round that was finished]; 0: not timed in it
  std::vector<double> stream, peak;     // [round]: bytes and operations a second
  bool stopped = false;

  int n_rounds() const { return static_cast<int>(stream.size()); }
};

RoundTimes RunInTurns(const std::vector<Arm>& arms, int n_rounds, Yard& yard, int n_threads,
                      const std::string& label, const BenchControl& control);

// Means of groups of `cycle` rounds that belong together; a group that is not whole is dropped.
// Rounds without a value are left out of the mean.
std::vector<double> GroupMeans(const std::vector<double>& values, int cycle);
// scale a / b, group by group.
Sample RatioOf(const std::vector<double>& a, const std::vector<double>& b, int cycle = 1,
               double scale = 1);

// Fills ns (of one unit, of `units` a round), stream_share and peak_share, and the yardstick.
// bytes and flops are set.
void FillTimes(const RoundTimes& times, size_t arm, int cycle, double units, const Yard& yard,
               BenchRecord& record);

}  // namespace condense
