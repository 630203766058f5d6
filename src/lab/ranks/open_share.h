// Whether this process is one of several of a run, and its share of the work then.
#pragma once

#include <memory>

#include "base/result.h"
#include "lab/ranks/work_share.h"

namespace condense {

// Alone, unless a launcher (mpirun, srun) started this process as one of several: then MPI is
// opened from lib/condense-mpi.so, and nothing of it otherwise. `lost_after`: seconds of silence
// after which a rank counts as lost. Errors: a program that was built without MPI, or with another
// one than the launcher's.
Result<std::unique_ptr<WorkShare>> OpenWorkShare(double lost_after);

// Processes that the launcher says it started, from the environment; 1 where there is none.
int LaunchedRanks();

}  // namespace condense
