// ggml's and llama.cpp's log lines, as one stream that a sink takes. The room itself prints
// nothing: the sink belongs to the program. Errors that a call raises can be collected into its own
// message.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace condense {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `text` is a piece of the log as the host hands it over: usually one line with its newline.
using LogSink = std::function<void(LogLevel, std::string_view text)>;

// Takes over the host's log for the process. Call before any other use of the host.
void SetLogSink(LogSink sink);

// While it lives, error lines go into its text instead of the sink. Not nested, one thread.
class ErrorLines {
 public:
  ErrorLines();
  ~ErrorLines();
  ErrorLines(const ErrorLines&) = delete;
  ErrorLines& operator=(const ErrorLines&) = delete;
  // The first error line, without the name of the host's function before it; "" where none came.
  std::string First() const;
};

}  // namespace condense
