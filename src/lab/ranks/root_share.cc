// Rank 0: the folder's lock, the books, and what the other ranks say, beside its own groups.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "decode/stop.h"
#include "lab/ranks/messages.h"
#include "lab/ranks/ranked_share.h"

namespace condense {
namespace {

std::string RunName() {
  std::random_device random;
  return fmt::format("run {:08x}{:08x}", random(), random());
}

class RootShare : public RankedShare {
 public:
  RootShare(std::unique_ptr<RankLink> link, double lost_after)
      : RankedShare(std::move(link), lost_after), ranks_(static_cast<size_t>(n_ranks())) {
    ranks_[0].host = HostName();
    link_->Listen(this);
  }
  ~RootShare() override { link_.reset(); }

  int n_at_work() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                          [](const Rank& rank) { return !rank.is_lost; }));
  }

  std::string Describe() const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::string, int>> hosts;
    for (const Rank& rank : ranks_) {
      const auto known = std::find_if(hosts.begin(), hosts.end(),
                                      [&](const auto& host) { return host.first == rank.host; });
      known == hosts.end() ? (void)hosts.emplace_back(rank.host, 1) : (void)++known->second;
    }
    std::string out = fmt::format("{} ranks:", n_ranks());
    for (size_t i = 0; i < hosts.size(); ++i)
      out += fmt::format("{} {} on {}", i > 0 ? "," : "", hosts[i].second, hosts[i].first);
    return out;
  }

  Result<TakenFolder> TakeFolder(const std::string& folder) override {
    const std::string run = RunName();
    Result<LabLock> lock = LabLock::Take(folder, "rank 0 of " + run);
    if (!lock.ok()) return ::condense::Error{lock.error()};
    lock_.emplace(std::move(lock.value()));
    Result<LabFolder> kept = ReadLabFolder(folder);
    if (!kept.ok()) return ::condense::Error{kept.error()};
    Json welcome = Say("welcome");
    welcome["run"] = run;
    link_->SendAll(welcome);
    const Status met = WaitForAll([](const Rank& rank) { return rank.has_met; });
    if (!met.ok()) return ::condense::Error{met.error()};
    TakenFolder taken{std::move(kept.value()), {}};
    Json known = Say("kept");
    known["cells"] = Json::array();
    {
      const std::lock_guard guard(mutex_);
      for (const FinishedCell& cell : elsewhere_) taken.kept.Add(cell);
    }
    for (const FinishedCell& cell : taken.kept.cells) {
      if (!cell.failed()) known["cells"].push_back({cell.experiment, cell.id});
    }
    link_->SendAll(known);
    return taken;
  }

  Status Agree(const Json& plan) override {
    Status planned = WaitForAll([](const Rank& rank) { return !rank.plan.is_null(); });
    if (!planned.ok()) return planned;
    const std::lock_guard lock(mutex_);
    for (int rank = 1; rank < n_ranks(); ++rank) {
      const std::string difference = PlanDifference(plan, ranks_[static_cast<size_t>(rank)].plan);
      if (difference.empty()) continue;
      return ::condense::Error{fmt::format(
          "{} would do other work than rank 0: {}; every rank needs the same program, texts, "
          "models and specs, and the same -t",
          Name(rank), difference)};
    }
    return Status();
  }

  void Begin(HandOut books) override {
    link_->SendAll(Say("begin"));
    const std::lock_guard lock(mutex_);
    books_ = std::move(books);
    has_begun_ = true;
    for (int rank = 1; rank < n_ranks(); ++rank) {
      if (ranks_[static_cast<size_t>(rank)].is_lost) SettleLoss(rank);
    }
  }

  std::optional<HandedGroup> Next(const std::function<void()>& waiting) override {
    std::unique_lock lock(mutex_);
    while (!Stopped()) {
      if (std::optional<HandedGroup> group = books_.Next(0)) return group;
      Serve();
      if (books_.all_done()) return std::nullopt;
      lock.unlock();
      waiting();
      lock.lock();
      Wait(lock);
    }
    return std::nullopt;
  }

  void Working(const std::string& doing, const std::string& cell) override {}
  void Finished(const std::vector<Json>& lines) override {
    const std::lock_guard lock(mutex_);
    TakeFinished(0, lines);
  }
  void Spent(const std::string& part, double seconds) override {}

  std::vector<ShareNews> TakeNews() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
  }
  std::string Others() const override {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].is_lost || ranks_[rank].doing.empty()) continue;
      out += fmt::format("; rank {}: {}", rank, ranks_[rank].doing);
    }
    return out;
  }
  std::string Error() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }

  std::vector<RecordsElsewhere> Elsewhere() const override {
    const std::lock_guard lock(mutex_);
    std::vector<RecordsElsewhere> all;
    for (int i = 1; i < n_ranks(); ++i) {
      const Rank& rank = ranks_[static_cast<size_t>(i)];
      if (!rank.shares_folder && rank.n_cells > 0)
        all.push_back({i, rank.host, rank.folder + "/" + RecordsFileName(i)});
    }
    return all;
  }
  std::vector<FinishedCell> CellsElsewhere() const override {
    const std::lock_guard lock(mutex_);
    return elsewhere_;
  }

  void Settle() override {
    std::unique_lock lock(mutex_);
    if (!has_begun_ || !books_.all_done() || Stopped()) link_->SendAll(Say("stop"));
    // Each ends the step that it is in.
    while (std::any_of(ranks_.begin() + 1, ranks_.end(),
                       [](const Rank& rank) { return !rank.is_lost && !rank.has_said_bye; }))
      Wait(lock);
  }

  int Close(int code) override {
    Settle();
    const bool any_lost = n_at_work() < n_ranks();
    Json leave = Say("leave");
    leave["lost"] = any_lost;
    link_->SendAll(leave);
    std::fflush(nullptr);
    if (any_lost) link_->Abort(code);
    if (any_lost || !link_->Leave(code)) ExitNow(code);
    return code;
  }

 private:
  struct Rank {
    std::string host, folder, doing;
    Json plan;
    bool has_met = false, shares_folder = true;
    bool is_asking = false;  // and has no group
    bool is_lost = false, has_said_bye = false;
    int n_cells = 0;  // in its records and not in those of rank 0's folder
  };

  std::string Name(int rank) const {
    return RankName(rank, ranks_[static_cast<size_t>(rank)].host);
  }

  template <typename Is>
  Status WaitForAll(const Is& is) {
    std::unique_lock lock(mutex_);
    while (!Stopped()) {
      if (!error_.empty()) return ::condense::Error{error_};
      bool all = true;
      for (int rank = 1; rank < n_ranks(); ++rank) {
        if (ranks_[static_cast<size_t>(rank)].is_lost)
          return ::condense::Error{Name(rank) + " was lost before the first cell"};
        all &= is(ranks_[static_cast<size_t>(rank)]);
      }
      if (all) return Status();
      Wait(lock);
    }
    return ::condense::Error{error_.empty() ? "stopped" : error_};
  }

  // The rest is under mutex_.

  // Groups to those that ask, or the news that there are no more.
  void Serve() {
    if (!has_begun_) return;
    for (int i = 1; i < n_ranks(); ++i) {
      Rank& rank = ranks_[static_cast<size_t>(i)];
      if (!rank.is_asking || rank.is_lost || Stopped()) continue;
      if (const std::optional<HandedGroup> group = books_.Next(i)) {
        rank.is_asking = false;
        link_->Send(i, ToJson(*group));
      } else if (books_.all_done()) {
        rank.is_asking = false;
        link_->Send(i, Say("end"));
      }
    }
  }

  void TakeFinished(int from, const std::vector<Json>& lines) {
    Rank& rank = ranks_[static_cast<size_t>(from)];
    Result<FinishedCell> cell = MakeFinishedCell(lines);
    if (!cell.ok()) return;
    const Json& end = cell->end;
    if (from != 0) {
      ShareNews news;
      news.what = ShareNews::What::kFinished;
      news.group = books_.GroupOf(from);
      news.cell = cell->id;
      news.end.name = end.value("name", "");
      news.end.state = end.value("state", "");
      news.end.reason = end.value("reason", "");
      news.end.seconds = end.value("seconds", 0.0);
      news_.push_back(std::move(news));
    }
    if (!rank.shares_folder) {
      ++rank.n_cells;
      elsewhere_.push_back(cell.value());
    }
    books_.Finished(from, std::move(cell.value()));
  }

  // What a lost rank had in hand.
  void SettleLoss(int rank) {
    const HandOut::Loss loss = books_.Lose(rank);
    for (const std::string& cell : loss.failed) {
      ShareNews news;
      news.what = ShareNews::What::kFailed;
      news.group = loss.group;
      news.cell = cell;
      news.text = Name(rank) + " was lost";
      news_.push_back(std::move(news));
    }
    Serve();
  }

  void AddWarning(const std::string& text) {
    ShareNews news;
    news.text = text;
    news_.push_back(std::move(news));
  }

  void OnMessage(int from, const Json& message) override {
    const std::string what = message.value("say", "");
    if (what == "stopped") RequestStop();
    const std::lock_guard lock(mutex_);
    Rank& rank = ranks_[static_cast<size_t>(from)];
    if (what == "host") rank.host = message.value("host", "");
    if (what == "hello") {
      rank.has_met = true;
      rank.shares_folder = message.value("shared", true);
      rank.folder = message.value("folder", "");
      for (FinishedCell& cell : FinishedFromJson(message.value("finished", Json::array()))) {
        ++rank.n_cells;
        elsewhere_.push_back(std::move(cell));
      }
    }
    if (what == "plan") rank.plan = message.value("plan", Json::object());
    if (what == "working") {
      rank.doing = message.value("doing", "");
      books_.Working(from, message.value("cell", ""));
    }
    if (what == "finished") TakeFinished(from, message.value("lines", std::vector<Json>()));
    if (what == "spent") {
      ShareNews news;
      news.what = ShareNews::What::kSpent;
      news.group = books_.GroupOf(from);
      news.text = message.value("part", "");
      news.seconds = message.value("seconds", 0.0);
      news_.push_back(std::move(news));
    }
    if (what == "warning") AddWarning(fmt::format("rank {}: {}", from, message.value("text", "")));
    if (what == "error") {
      if (error_.empty()) error_ = Name(from) + ": " + message.value("text", "");
      if (has_begun_) RequestStop();
    }
    if (what == "bye") {
      rank.has_said_bye = true;
      rank.doing.clear();
    }
    if (what == "ask") {
      rank.is_asking = true;
      rank.doing.clear();
      Serve();
    }
    came_.notify_all();
  }

  void OnLost(int from) override {
    const std::lock_guard lock(mutex_);
    Rank& rank = ranks_[static_cast<size_t>(from)];
    rank.is_lost = true;
    AddWarning(
        fmt::format("{} was lost: nothing heard of it for {:.0f} s", Name(from), lost_after_));
    if (has_begun_) SettleLoss(from);
    came_.notify_all();
  }

  void OnTick() override {
    if (!StopRequested() || told_stop_) return;
    told_stop_ = true;
    link_->SendAll(Say("stop"));
  }

  std::vector<Rank> ranks_;
  HandOut books_;
  bool has_begun_ = false;
  std::string error_;
  std::vector<ShareNews> news_;
  std::vector<FinishedCell> elsewhere_;
  bool told_stop_ = false;  // of the line's thread
};

}  // namespace

std::unique_ptr<WorkShare> MakeRootShare(std::unique_ptr<RankLink> link, double lost_after) {
  return std::make_unique<RootShare>(std::move(link), lost_after);
}

}  // namespace condense
