#include "app/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"
#include "decode/log.h"

namespace condense {
namespace {

constexpr double kQuietSeconds = 2;
constexpr double kTerminalSeconds = 0.1, kPipeSeconds = 10;

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO)) { Stage(); }
Progress::~Progress() { Clear(); }

void Progress::Stage() { stage_start_ = last_shown_ = Clock::now(); }

void Progress::Update(const std::string& label, int64_t n_done, int64_t n_total) {
  const double elapsed = SecondsSince(stage_start_);
  if (n_done <= 0 || n_total <= 0 || !IsDue()) return;
  const double left = elapsed * static_cast<double>(n_total - n_done) / static_cast<double>(n_done);
  Show(fmt::format("{:3.0f} %  about {} left  {}", 100.0 * n_done / n_total, FormatDuration(left),
                   label));
}

bool Progress::IsDue() const {
  const auto since = [now = Clock::now()](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  return since(stage_start_) >= kQuietSeconds &&
         since(last_shown_) >= (terminal_ ? kTerminalSeconds : kPipeSeconds);
}

void Progress::Show(const std::string& text) {
  if (!IsDue()) return;
  last_shown_ = Clock::now();
  if (terminal_) {
    std::fputs(fmt::format("\r{:<79.79}", text).c_str(), stderr);
    shown_ = true;
  } else {
    std::fputs((text + "\n").c_str(), stderr);
  }
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!shown_) return;
  std::fputs(fmt::format("\r{:79}\r", "").c_str(), stderr);
  std::fflush(stderr);
  shown_ = false;
}

void PrintError(std::string_view text) { fmt::print(stderr, "condense: {}\n", text); }
int Fail(ExitCode code, std::string_view message) {
  PrintError(message);
  return code;
}

int Fail(const Failure& failure) { return Fail(failure.code, failure.message); }
void PrintWarning(std::string_view text) { fmt::print(stderr, "condense: warning: {}\n", text); }
void PrintNote(std::string_view text) { fmt::print(stderr, "condense: {}\n", text); }

void RouteHostLog(bool verbose) {
  SetLogSink([verbose](LogLevel level, std::string_view text) {
    if (verbose || level == LogLevel::kError) std::fwrite(text.data(), 1, text.size(), stderr);
  });
}

int OutputWidth() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const Result<int64_t> width = ParseInt(columns);
    if (width.ok() && width.value() > 0)
      return static_cast<int>(std::min<int64_t>(width.value(), kNoWidthLimit));
  }
  if (winsize size = {}; ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  return kNoWidthLimit;
}

std::string FormatDuration(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(std::max(0.0, seconds)));
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string FormatCount(int64_t n) {
  std::string text = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > static_cast<int64_t>(first); at -= 3) {
    text.insert(at, ",");
  }
  return text;
}

}  // namespace condense
