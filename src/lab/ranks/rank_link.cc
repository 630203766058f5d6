#include "lab/ranks/rank_link.h"

#include <algorithm>

namespace condense {
namespace {

using std::chrono::duration;

// How long a message may lie: decoding is slower than this, and a wake-up costs next to nothing.
constexpr double kTickSeconds = 0.005;
// A sign of life so many times in lost_after, and no rarer than once a second.
constexpr double kBeats = 10;
// Open MPI ends a process that sends to a rank which it cannot reach any more, in some cases: rank
// 0 says nothing to ranks of which it has heard nothing for so many of its own signs of life.
constexpr double kBeatsToSilent = 3;
constexpr const char* kBeat = "beat";     // no JSON
constexpr const char* kGivenUp = "gone";  // to a rank that is heard again after it was lost

}  // namespace

Result<std::unique_ptr<RankLink>> RankLink::Start(const OpenTransport& open, double lost_after) {
  std::unique_ptr<RankLink> link(new RankLink(lost_after));
  const auto opened = std::make_shared<std::promise<std::string>>();  // "", or why not
  link->thread_ = std::thread([opened, open, &me = *link] {
    Result<std::unique_ptr<Transport>> transport = open();
    if (!transport.ok()) {
      opened->set_value(transport.error());
      return;
    }
    me.rank_ = transport.value()->rank();
    me.n_ranks_ = transport.value()->n_ranks();
    opened->set_value("");
    me.Work(*transport.value());
  });
  const std::string error = opened->get_future().get();
  if (!error.empty()) return Error{error};
  return link;
}

RankLink::~RankLink() {
  SetEnd(End::kDie, 0);
  thread_.join();
}

void RankLink::Listen(RankListener* listener) {
  const std::lock_guard lock(mutex_);
  listener_ = listener;
}

void RankLink::Send(int to, const Json& message) {
  std::string bytes = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::lock_guard lock(mutex_);
  queued_.emplace_back(to, std::move(bytes));
}

void RankLink::SendAll(const Json& message) {
  for (int to = 0; to < n_ranks_; ++to) {
    if (to != rank_) Send(to, message);
  }
}

bool RankLink::Leave(int code) {
  SetEnd(End::kLeave, code);
  return left_.get_future().wait_for(duration<double>(lost_after_)) == std::future_status::ready;
}

void RankLink::Abort(int code) {
  SetEnd(End::kAbort, code);
  left_.get_future().wait_for(duration<double>(lost_after_));
}

void RankLink::SetEnd(End end, int code) {
  const std::lock_guard lock(mutex_);
  if (end_ != End::kNone) return;
  end_ = end;
  exit_code_ = code;
}

void RankLink::Work(Transport& transport) {
  heard_.assign(static_cast<size_t>(n_ranks_), Clock::now());
  const double beat_after = std::min(1.0, lost_after_ / kBeats);
  Clock::time_point last_beat, last_turn = Clock::now();
  for (;;) {
    const double gap = SecondsSince(last_turn);
    last_turn = Clock::now();
    // It is this process that slept (a suspended machine, a debugger): the others get their time.
    if (gap > lost_after_ / 2) heard_.assign(heard_.size(), last_turn);
    std::vector<std::pair<int, std::string>> queued;
    RankListener* listener = nullptr;
    End end = End::kNone;
    {
      const std::lock_guard lock(mutex_);
      queued.swap(queued_);
      listener = listener_;
      end = end_;
    }
    if (end == End::kDie) return;
    for (const auto& [to, bytes] : queued) {
      if (!lost_.contains(to)) transport.Send(to, bytes);
    }
    if (end == End::kAbort) transport.Abort(exit_code_);
    if (end == End::kLeave) transport.Leave(exit_code_);
    if (end != End::kNone) {
      left_.set_value();
      return;
    }
    if (SecondsSince(last_beat) >= beat_after) {
      last_beat = Clock::now();
      for (int to = 0; to < n_ranks_; ++to) {
        const double silent = SecondsSince(heard_[static_cast<size_t>(to)]);
        if (rank_ == 0 ? to != 0 && silent < kBeatsToSilent * beat_after : to == 0)
          transport.Send(to, kBeat);
      }
    }
    if (listener != nullptr) {
      Hear(transport, *listener);
      listener->OnTick();
    }
    std::this_thread::sleep_for(duration<double>(kTickSeconds));
  }
}

void RankLink::Hear(Transport& transport, RankListener& listener) {
  int from = 0;
  for (std::string bytes; transport.Receive(from, bytes);) {
    if (lost_.contains(from)) {
      if (bytes == kBeat && rank_ == 0) transport.Send(from, kGivenUp);
      continue;
    }
    heard_[static_cast<size_t>(from)] = Clock::now();
    if (bytes == kBeat) continue;
    if (bytes == kGivenUp) {
      lost_.insert(from);
      listener.OnLost(from);
      continue;
    }
    const Json message = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (message.is_object()) listener.OnMessage(from, message);
  }
  for (int other = 0; other < n_ranks_; ++other) {
    const bool listened_to = other != rank_ && (rank_ == 0 || other == 0);
    if (!listened_to || lost_.contains(other) ||
        SecondsSince(heard_[static_cast<size_t>(other)]) < lost_after_)
      continue;
    lost_.insert(other);
    listener.OnLost(other);
  }
}

}  // namespace condense
