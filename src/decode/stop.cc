#include "decode/stop.h"

#include <atomic>
#include <csignal>

namespace condense {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the flag is set in a signal handler");

void HandleSignal(int signal_number) {
  stop_requested.store(true);
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

void InstallStopHandler() {
  std::signal(SIGINT, HandleSignal);
  std::signal(SIGTERM, HandleSignal);
}

bool StopRequested() { return stop_requested.load(); }
void RequestStop() { stop_requested.store(true); }
void ClearStop() { stop_requested.store(false); }

}  // namespace condense
