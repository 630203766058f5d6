// What rank 0 and the others have in common: the line, the folder's lock, waiting for what the line
// brings.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lab/ranks/rank_link.h"
#include "lab/ranks/work_share.h"

namespace condense {

class RankedShare : public WorkShare, protected RankListener {
 public:
  int rank() const override { return link_->rank(); }
  int n_ranks() const override { return link_->n_ranks(); }

 protected:
  explicit RankedShare(std::unique_ptr<RankLink> link, double lost_after)
      : link_(std::move(link)), lost_after_(lost_after) {}

  // Until `there()`, which is asked under mutex_, or a stop.
  template <typename There>
  void WaitUntil(std::unique_lock<std::mutex>& lock, const There& there) {
    while (!there() && !Stopped()) Wait(lock);
  }
  // A moment, or until something came.
  void Wait(std::unique_lock<std::mutex>& lock);
  static bool Stopped();
  // As the process's last words: nothing of it is undone, no rank is waited for.
  [[noreturn]] static void ExitNow(int code);

  // "rank 1 on HOST"
  static std::string RankName(int rank, const std::string& host);

  // Derived classes let it go first: its thread calls them.
  std::unique_ptr<RankLink> link_;
  const double lost_after_;
  std::optional<LabLock> lock_;
  mutable std::mutex mutex_;  // of all that the line's thread and the run's both touch
  std::condition_variable came_;
};

// This process's share of a run that mpirun started, of rank 0 or of another.
std::unique_ptr<WorkShare> ShareOf(std::unique_ptr<RankLink> link, double lost_after);
std::unique_ptr<WorkShare> MakeRootShare(std::unique_ptr<RankLink> link, double lost_after);
std::unique_ptr<WorkShare> MakeWorkerShare(std::unique_ptr<RankLink> link, double lost_after);

// The machine's name.
std::string HostName();

}  // namespace condense
