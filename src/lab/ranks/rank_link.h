// One rank's line to the others: a thread that owns the transport, carries messages (JSON objects),
// lets the others hear that this process lives, and notices when one of them is silent for too
// long. Knows nothing of what is said.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "lab/ranks/transport.h"
#include "lab/records.h"

namespace condense {

// What happens on the line, told in its thread, one after another.
class RankListener {
 public:
  virtual ~RankListener() = default;
  virtual void OnMessage(int from, const Json& message) = 0;
  // `rank` said nothing for lost_after, or rank 0 heard nothing of this one. Once; what it still
  // says afterwards is not handed over, and nothing is sent to it.
  virtual void OnLost(int rank) = 0;
  // Some hundred times a second.
  virtual void OnTick() = 0;
};

class RankLink {
 public:
  using OpenTransport = std::function<Result<std::unique_ptr<Transport>>()>;

  // `lost_after`: seconds. Rank 0 listens to all, the others to rank 0. `open` is called in the
  // link's thread.
  static Result<std::unique_ptr<RankLink>> Start(const OpenTransport& open, double lost_after);
  // Without Leave: as a process that dies.
  ~RankLink();

  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }

  // From now on; once. Messages that came before wait for it.
  void Listen(RankListener* listener);
  void Send(int to, const Json& message);
  // To every rank but this one.
  void SendAll(const Json& message);
  // As the transport's. Leave waits until all have left, for lost_after at most: false then.
  bool Leave(int code);
  void Abort(int code);

 private:
  enum class End { kNone, kLeave, kAbort, kDie };

  explicit RankLink(double lost_after) : lost_after_(lost_after) {}
  void SetEnd(End end, int code);
  void Work(Transport& transport);
  void Hear(Transport& transport, RankListener& listener);

  const double lost_after_;
  int rank_ = 0, n_ranks_ = 1;
  std::mutex mutex_;
  // Under mutex_.
  std::vector<std::pair<int, std::string>> queued_;
  RankListener* listener_ = nullptr;
  End end_ = End::kNone;
  int exit_code_ = 0;
  // Of the thread.
  std::vector<Clock::time_point> heard_;  // by rank
  std::set<int> lost_;
  std::promise<void> left_;
  std::thread thread_;
};

}  // namespace condense
