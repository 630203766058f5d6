// What people see while they wait: progress on stderr, warnings, the host's log. A terminal gets
// one line that is rewritten; a pipe or file gets plain lines, far between. Nothing shows in the
// first two seconds.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "app/exit_code.h"
#include "base/clock.h"

namespace condense {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `label`: what is being done. The estimate is of this stage: it begins when Stage is called.
  void Stage();
  void Update(const std::string& label, int64_t n_done, int64_t n_total);
  // The line as it is, for work whose pace differs from part to part.
  void Show(const std::string& text);
  // Takes the line away, so that other text can be written.
  void Clear();

 private:
  // Whether the stage is old enough for a line, and the last line too.
  bool IsDue() const;
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point stage_start_, last_shown_;
};

void PrintError(std::string_view text);
void PrintWarning(std::string_view text);
void PrintNote(std::string_view text);
// What ends a command, with the exit code that tells what kind it is.
struct Failure {
  ExitCode code;
  std::string message;
};
// Prints the error; the exit code to return.
int Fail(ExitCode code, std::string_view message);
int Fail(const Failure& failure);

// The host's log: errors always, all of it where `verbose`.
void RouteHostLog(bool verbose);

// Characters that a line of a table may take on stdout: $COLUMNS where it is a whole number above
// 0, else the terminal's columns; a pipe, a file or a terminal that does not say has no limit.
inline constexpr int kNoWidthLimit = std::numeric_limits<int>::max();
int OutputWidth();

// "1:05" or "2:03:10".
std::string FormatDuration(double seconds);

// "7,639"
std::string FormatCount(int64_t n);

}  // namespace condense
