#include "lab/ranks/open_share.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "decode/plugin.h"
#include "lab/ranks/ranked_share.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// Open MPI's mpirun; MPICH's and Slurm's own wire-up.
constexpr const char* kSizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

Result<std::unique_ptr<Transport>> OpenMpi() {
  const std::string path =
      (fs::path(ExecutableDirectory()).parent_path() / "lib" / "condense-mpi.so").string();
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    return Error{fmt::format(
        "this is one of {} processes that mpirun started, and Condense was built without MPI ({} "
        "is not there): install Open MPI (Debian's openmpi-bin and libopenmpi-dev) and build "
        "again, or start it without mpirun",
        LaunchedRanks(), Quote(path))};
  }
  // Never closed: MPI leaves threads and handlers behind. Global: its own plug-ins look for it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return Error{fmt::format("cannot load {}", dlerror())};
  const auto open = reinterpret_cast<OpenTransportFn>(dlsym(library, kOpenTransportName));
  if (open == nullptr) return Error{fmt::format("{} is not of this program", Quote(path))};
  std::string error;
  std::unique_ptr<Transport> transport = open(error);
  if (!transport) return Error{"MPI cannot start: " + error};
  if (transport->n_ranks() == 1) {
    return Error{fmt::format(
        "the launcher started {} processes, and each sees itself alone: it belongs to another MPI "
        "than the one that Condense was built with",
        LaunchedRanks())};
  }
  return transport;
}

}  // namespace

int LaunchedRanks() {
  for (const char* name : kSizes) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text != '\0') return std::max(1, std::atoi(text));
  }
  return 1;
}

Result<std::unique_ptr<WorkShare>> OpenWorkShare(double lost_after) {
  if (LaunchedRanks() == 1) return WorkAlone();
  Result<std::unique_ptr<RankLink>> link = RankLink::Start(OpenMpi, lost_after);
  if (!link.ok()) return Error{link.error()};
  return ShareOf(std::move(link.value()), lost_after);
}

}  // namespace condense
