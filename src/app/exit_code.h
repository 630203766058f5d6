// What the command's exit tells a script.
#pragma once

namespace condense {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,  // the work began and did not finish: a failure, or a stop by the user
  kExitUsage = 2,   // found before any work: flags, policies, texts, models, sizes
  kExitUnmet = 3,   // the work was done, and no setting meets the target (`tune`, `calibrate`)
};

}  // namespace condense
