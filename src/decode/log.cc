#include "decode/log.h"

#include <mutex>

#include "base/result.h"
#include "llama.h"

namespace condense {
namespace {

struct LogState {
  std::mutex mutex;
  LogSink sink;
  LogLevel last_level = LogLevel::kInfo;
  bool collecting = false;
  std::string collected;
};

LogState& State() {
  static LogState* state = new LogState;  // outlives every static of the host
  return *state;
}

void OnHostLog(ggml_log_level level, const char* text, void*) {
  LogState& state = State();
  std::lock_guard lock(state.mutex);
  switch (level) {
    case GGML_LOG_LEVEL_ERROR:
      state.last_level = LogLevel::kError;
      break;
    case GGML_LOG_LEVEL_WARN:
      state.last_level = LogLevel::kWarning;
      break;
    case GGML_LOG_LEVEL_INFO:
      state.last_level = LogLevel::kInfo;
      break;
    case GGML_LOG_LEVEL_CONT:  // goes on with the line before
      break;
    default:
      state.last_level = LogLevel::kDebug;
  }
  if (state.collecting && state.last_level == LogLevel::kError) {
    state.collected += text;
  } else if (state.sink) {
    state.sink(state.last_level, text);
  }
}

}  // namespace

void SetLogSink(LogSink sink) {
  {
    std::lock_guard lock(State().mutex);
    State().sink = std::move(sink);
  }
  llama_log_set(OnHostLog, nullptr);
  ggml_log_set(OnHostLog, nullptr);
}

ErrorLines::ErrorLines() {
  std::lock_guard lock(State().mutex);
  CONDENSE_CHECK(!State().collecting);
  State().collecting = true;
  State().collected.clear();
}

ErrorLines::~ErrorLines() {
  std::lock_guard lock(State().mutex);
  State().collecting = false;
}

std::string ErrorLines::First() const {
  std::lock_guard lock(State().mutex);
  std::string line = State().collected.substr(0, State().collected.find('\n'));
  const size_t colon = line.find(": ");
  if (colon != std::string::npos && line.find(' ') > colon) line = line.substr(colon + 2);
  return line;
}

}  // namespace condense
