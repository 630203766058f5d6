#include "lab/ranks/ranked_share.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "decode/stop.h"

namespace condense {

void RankedShare::Wait(std::unique_lock<std::mutex>& lock) {
  came_.wait_for(lock, std::chrono::milliseconds(50));
}

bool RankedShare::Stopped() { return StopRequested(); }

void RankedShare::ExitNow(int code) {
  std::fflush(nullptr);
  _exit(code);
}

std::string RankedShare::RankName(int rank, const std::string& host) {
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on {}", rank, host);
}

std::unique_ptr<WorkShare> ShareOf(std::unique_ptr<RankLink> link, double lost_after) {
  return link->rank() == 0 ? MakeRootShare(std::move(link), lost_after)
                           : MakeWorkerShare(std::move(link), lost_after);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace condense
