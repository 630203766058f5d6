// A rank other than 0: takes its folder, plans, and then does what rank 0 hands it.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "decode/stop.h"
#include "lab/ranks/messages.h"
#include "lab/ranks/ranked_share.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// A rank beside this one may have the lock and not have written yet whose it is.
constexpr double kLockSeconds = 3;
// What is said again of the same cell, at most.
constexpr double kDoingSeconds = 1;

class WorkerShare : public RankedShare {
 public:
  WorkerShare(std::unique_ptr<RankLink> link, double lost_after)
      : RankedShare(std::move(link), lost_after) {
    Json message = Say("host");
    message["host"] = HostName();
    link_->Send(0, message);
    link_->Listen(this);
  }
  ~WorkerShare() override { link_.reset(); }

  Result<TakenFolder> TakeFolder(const std::string& folder) override {
    Result<Json> welcome = Await("welcome");
    if (!welcome.ok()) return ::condense::Error{welcome.error()};
    const Result<bool> shared = Guard(folder, welcome->value("run", ""));
    if (!shared.ok()) return ::condense::Error{shared.error()};
    TakenFolder taken;
    Result<LabFolder> kept = ReadLabFolder(folder);
    if (!kept.ok()) return ::condense::Error{kept.error()};
    taken.kept = std::move(kept.value());
    Json hello = Say("hello");
    hello["shared"] = shared.value();
    hello["folder"] = fs::absolute(folder).lexically_normal().string();
    hello["finished"] = Json::array();
    for (const FinishedCell& cell : taken.kept.cells) {
      if (!shared.value() && !cell.failed()) hello["finished"].push_back(ToJson(cell));
    }
    link_->Send(0, hello);
    const Result<Json> all = Await("kept");
    if (!all.ok()) return ::condense::Error{all.error()};
    for (const auto& [experiment, id] :
         all->value("cells", std::vector<std::pair<std::string, std::string>>()))
      taken.done.insert({experiment, id});
    return taken;
  }

  Status Agree(const Json& plan) override {
    Json message = Say("plan");
    message["plan"] = plan;
    link_->Send(0, message);
    const Result<Json> begin = Await("begin");
    return begin.ok() ? Status() : Status(::condense::Error{begin.error()});
  }

  void Begin(HandOut books) override {}

  std::optional<HandedGroup> Next(const std::function<void()>& waiting) override {
    said_doing_.clear();
    link_->Send(0, Say("ask"));
    std::unique_lock lock(mutex_);
    WaitUntil(lock, [&] { return has_ended_ || Has("group"); });
    if (Stopped() || !Has("group")) return std::nullopt;
    return HandedFromJson(Take("group"));
  }

  void Working(const std::string& doing, const std::string& cell) override {
    if (cell == said_cell_ && !said_doing_.empty() &&
        (doing == said_doing_ || SecondsSince(said_at_) < kDoingSeconds))
      return;
    said_cell_ = cell;
    said_doing_ = doing;
    said_at_ = Clock::now();
    Json message = Say("working");
    message["doing"] = doing;
    message["cell"] = cell;
    link_->Send(0, message);
  }

  void Finished(const std::vector<Json>& lines) override {
    Json message = Say("finished");
    message["lines"] = Json::array();
    for (const Json& line : lines) {
      if (line["record"] != "step" && line["record"] != "rows") message["lines"].push_back(line);
    }
    link_->Send(0, message);
  }

  void Spent(const std::string& part, double seconds) override {
    Json message = Say("spent");
    message["part"] = part;
    message["seconds"] = seconds;
    link_->Send(0, message);
  }

  bool Warn(const std::string& text) override {
    Json message = Say("warning");
    message["text"] = text;
    link_->Send(0, message);
    return true;
  }

  void Fail(const std::string& why) override {
    Json message = Say("error");
    message["text"] = why;
    link_->Send(0, message);
  }

  void Settle() override {
    if (!std::exchange(has_said_bye_, true)) link_->Send(0, Say("bye"));
  }

  int Close(int code) override {
    Settle();
    bool with_lost = false;
    {
      std::unique_lock lock(mutex_);
      // Also after a stop: rank 0 waits for the step that each rank is in.
      while (!Has("leave") && !root_is_lost_) Wait(lock);
      if (root_is_lost_) {
        std::fputs(
            fmt::format("condense: rank {} on {}: rank 0 was lost, or has given this rank up; what "
                        "is done is kept\n",
                        rank(), HostName())
                .c_str(),
            stderr);
        ExitNow(1);
      }
      with_lost = Take("leave").value("lost", false);
    }
    // Rank 0 ends what is left, this process with it.
    if (with_lost) std::this_thread::sleep_for(std::chrono::duration<double>(lost_after_));
    if (with_lost || !link_->Leave(code)) ExitNow(code);
    return code;
  }

 private:
  // Whether the folder is rank 0's own; else it is locked here, for all ranks that see it.
  Result<bool> Guard(const std::string& folder, const std::string& run) {
    const Clock::time_point start = Clock::now();
    for (;;) {
      std::ifstream in(fs::path(folder) / "lock", std::ios::binary);
      const std::string who(std::istreambuf_iterator<char>(in), {});
      if (!run.empty() && who.find(run) != std::string::npos)
        return who.find("rank 0 of " + run) != std::string::npos;
      Result<LabLock> lock = LabLock::Take(folder, fmt::format("rank {} of {}", rank(), run));
      if (lock.ok()) {
        lock_.emplace(std::move(lock.value()));
        return false;
      }
      if (SecondsSince(start) > kLockSeconds) return ::condense::Error{lock.error()};
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  Result<Json> Await(const char* what) {
    std::unique_lock lock(mutex_);
    WaitUntil(lock, [&] { return Has(what); });
    if (!Has(what)) return ::condense::Error{"stopped"};
    return Take(what);
  }

  // Under mutex_.
  bool Has(const std::string& what) const {
    const auto there = came_messages_.find(what);
    return there != came_messages_.end() && !there->second.empty();
  }
  Json Take(const std::string& what) {
    Json message = std::move(came_messages_[what].front());
    came_messages_[what].pop_front();
    return message;
  }

  void OnMessage(int from, const Json& message) override {
    const std::string what = message.value("say", "");
    if (what == "stop") {
      told_stop_ = true;
      RequestStop();
    }
    const std::lock_guard lock(mutex_);
    if (what == "end") has_ended_ = true;
    came_messages_[what].push_back(message);
    came_.notify_all();
  }
  void OnLost(int rank) override {
    told_stop_ = true;
    RequestStop();
    const std::lock_guard lock(mutex_);
    root_is_lost_ = true;
    came_.notify_all();
  }
  void OnTick() override {
    if (!StopRequested() || told_stop_) return;
    told_stop_ = true;
    link_->Send(0, Say("stopped"));
  }

  std::map<std::string, std::deque<Json>> came_messages_;  // by what they say
  bool has_ended_ = false, root_is_lost_ = false;
  bool told_stop_ = false;  // of the line's thread
  // Of the run's thread.
  bool has_said_bye_ = false;
  std::string said_doing_, said_cell_;
  Clock::time_point said_at_;
};

}  // namespace

std::unique_ptr<WorkShare> MakeWorkerShare(std::unique_ptr<RankLink> link, double lost_after) {
  return std::make_unique<WorkerShare>(std::move(link), lost_after);
}

}  // namespace condense
