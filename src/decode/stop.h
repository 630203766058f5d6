// A polite stop: the first Ctrl-C (SIGINT) or SIGTERM asks the work to end after the current step,
// a second one kills the process as if nobody had asked.
#pragma once

namespace condense {

// Installs the handlers. Once, from the main thread.
void InstallStopHandler();

// Whether a stop was asked for, by a signal or by RequestStop.
bool StopRequested();
void RequestStop();
void ClearStop();

}  // namespace condense
