#include "lab/lab_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/text.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/lab_costs.h"
#include "lab/lab_folder.h"
#include "lab/lab_records.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

class LabRunner {
 public:
  LabRunner(const Plugin& plugin, const LabOptions& options, const LabEvents& events,
            WorkShare& share)
      : plugin_(plugin), options_(options), events_(events), share_(share) {}

  Result<LabOutcome> Run() {
    for (const LabSpec& spec : options_.specs) {
      Result<LabJob> job = MakeLabJob(spec, plugin_, options_.models, options_.default_model);
      if (!job.ok()) return Error{job.error()};
      jobs_.push_back(std::move(job.value()));
    }
    Result<TakenFolder> taken = share_.TakeFolder(options_.folder);
    if (!taken.ok()) return Error{taken.error()};
    kept_ = std::move(taken->kept);
    finished_ = std::move(taken->done);
    const Clock::time_point planning = Clock::now();
    const Status planned = Plan();
    if (!planned.ok()) return Error{planned.error()};
    SpendHere("planning", SecondsSince(planning) - loading_seconds_);
    const Status agreed = share_.Agree(AgreedPlan(run_lines_, groups_));
    if (!agreed.ok()) return Error{agreed.error()};
    if (outcome_.n_left() > 0 && share_.rank() == 0) {
      const Status opened = Open();
      if (!opened.ok()) return Error{opened.error()};
    }
    LearnCosts();
    share_.Begin(MakeBooks(groups_, kept_, [&](const Cell& cell) { return IsPending(cell); }));
    if (events_.on_plan) events_.on_plan(Progress());
    RunGroups();
    outcome_.seconds = SecondsSince(start_);
    return std::move(outcome_);
  }

 private:
  friend class RunningGroup;

  void Spend(const std::string& part, double seconds) {
    const auto known = std::find_if(outcome_.spent.begin(), outcome_.spent.end(),
                                    [&](const LabSpent& spent) { return spent.part == part; });
    LabSpent& spent =
        known != outcome_.spent.end() ? *known : outcome_.spent.emplace_back(LabSpent{part, 0, 0});
    ++spent.n;
    spent.seconds += seconds;
  }

  // And tells rank 0 of it.
  void SpendHere(const std::string& part, double seconds) {
    Spend(part, seconds);
    share_.Spent(part, seconds);
  }

  // The model of this file, loaded once as long as no other is wanted between.
  Status NeedModel(const std::string& path) {
    if (model_ && model_->file().path == path) return Status();
    model_.reset();
    const Clock::time_point start = Clock::now();
    std::string& sha256 = sha256s_[path];
    Result<std::unique_ptr<LabModel>> model =
        LabModel::Load(path, plugin_, {options_.k_type, options_.v_type, sha256});
    if (!model.ok()) return Error{model.error()};
    model_ = std::move(model.value());
    sha256 = model_->sha256();
    const double seconds = SecondsSince(start);
    loading_seconds_ += seconds;
    SpendHere("loading models", seconds);
    return Status();
  }

  Status Plan() {
    std::vector<std::string> models;
    for (const LabJob& job : jobs_) {
      for (const std::string& path : job.models) {
        if (std::find(models.begin(), models.end(), path) == models.end()) models.push_back(path);
      }
    }
    for (const std::string& path : models) {
      Status status = NeedModel(path);
      if (!status.ok()) return status;
      for (size_t j = 0; j < jobs_.size(); ++j) {
        const auto& wanted = jobs_[j].models;
        if (std::find(wanted.begin(), wanted.end(), path) == wanted.end()) continue;
        status = PlanJob(j);
        if (!status.ok()) return status;
      }
      run_lines_.push_back(RunLine(options_.describe(*model_), share_.rank(), share_.n_ranks()));
      status = CheckSameProgram(kept_, run_lines_.back(), options_.folder);
      if (!status.ok()) return status;
    }
    return Status();
  }

  Status PlanJob(size_t j) {
    Result<std::vector<LabGroup>> groups = PlanLabGroups(jobs_[j], j, *model_, options_.texts);
    if (!groups.ok()) return Error{groups.error()};
    for (LabGroup& group : groups.value()) {
      // Two specs may ask for the same cell.
      std::erase_if(group.cells, [&](const Cell& cell) {
        return !cell_ids_.insert({cell.experiment, cell.id}).second;
      });
      if (group.cells.empty()) continue;
      outcome_.n_cells += static_cast<int>(group.cells.size());
      for (const Cell& cell : group.cells) {
        if (!IsPending(cell)) {
          ++outcome_.n_kept;
        } else if (options_.check_memory) {
          const Status fits = options_.check_memory(
              model_->file(), MemoryOf(cell, group.n_rows, model_->model().n_vocab()));
          if (!fits.ok()) return fits;
        }
      }
      groups_.push_back(std::move(group));
    }
    return Status();
  }

  bool IsKept(const Cell& cell) const {
    const FinishedCell* known = kept_.Find(cell.experiment, cell.id);
    return known != nullptr && !known->failed();
  }

  // Everything that the run writes before its first cell, by rank 0.
  Status Open() {
    std::vector<std::string> spec_files;
    for (const LabJob& job : jobs_) {
      const Result<std::string> name = CopySpec(options_.folder, job.spec);
      if (!name.ok()) return Error{name.error()};
      spec_files.push_back(name.value());
    }
    Status status = WriteRun(groups_.front().model);
    for (size_t j = 0; status.ok() && j < jobs_.size(); ++j) status = WritePlan(j, spec_files[j]);
    return status;
  }

  Status OpenRecords() {
    const std::string name = RecordsFileName(share_.rank());
    const std::string path = (fs::path(options_.folder) / name).string();
    const auto there = kept_.n_bytes.find(name);
    Result<RecordWriter> writer = there != kept_.n_bytes.end()
                                      ? RecordWriter::GoOn(path, there->second)
                                      : RecordWriter::Create(path);
    if (!writer.ok()) return Error{writer.error()};
    writer_.emplace(std::move(writer.value()));
    return Status();
  }

  // The `run` line of a model, before its cells.
  Status WriteRun(const std::string& path) {
    if (written_model_ == path) return Status();
    Status ready = NeedModel(path);
    if (ready.ok() && !writer_) ready = OpenRecords();
    if (!ready.ok()) return ready;
    written_model_ = path;
    return writer_->WriteLine(RunLine(options_.describe(*model_), share_.rank(), share_.n_ranks()));
  }

  // Where it has cells that no plan before had; with an experiment's first, what was published.
  Status WritePlan(size_t j, const std::string& spec_file) {
    const ExperimentInfo& info = *jobs_[j].spec.info;
    std::set<std::string> known;
    bool is_first = true;
    for (const Json& plan : kept_.plans) {
      if (plan.value("experiment", "") != info.name) continue;
      is_first = false;
      for (const Json& id : plan.value("cells", Json::array())) known.insert(id);
    }
    std::vector<Cell> cells;
    for (const LabGroup& group : groups_) {
      if (group.job == j) cells.insert(cells.end(), group.cells.begin(), group.cells.end());
    }
    if (std::all_of(cells.begin(), cells.end(),
                    [&](const Cell& cell) { return known.contains(cell.id); }))
      return Status();
    const Json plan = PlanLine(info.name, spec_file, TextSha256(jobs_[j].spec.text), cells);
    kept_.plans.push_back(plan);
    Status status;
    for (const PublishedFigure& figure : info.published) {
      if (is_first && status.ok())
        status = writer_->WriteLine(MarkLine(ToJson(figure), info.name, ""));
    }
    return status.ok() ? writer_->WriteLine(plan) : status;  // last: what is cut begins anew
  }

  // From what earlier runs recorded.
  void LearnCosts() {
    for (const LabGroup& group : groups_) {
      for (const Cell& cell : group.cells) {
        if (const FinishedCell* known = kept_.Find(cell.experiment, cell.id))
          costs_.Learn(*known, group.n_rows);
      }
    }
  }

  bool IsPending(const Cell& cell) const {
    return !IsKept(cell) && !finished_.contains({cell.experiment, cell.id});
  }

  // Seconds of all that is left; `share` of the cell under way is done. Asked at every step, while
  // what is left changes with cells: summed up once for each.
  double SecondsLeft(const Cell* under_way, double share) {
    if (!seconds_left_) seconds_left_ = SumSecondsLeft();
    if (under_way == nullptr || !IsPending(*under_way)) return *seconds_left_;
    return *seconds_left_ - share * costs_.Expected(LabCosts::WorkOf(
                                        *under_way, PolicyOf(*under_way), running_->n_rows));
  }

  double SumSecondsLeft() const {
    double left = 0;
    for (const LabGroup& group : groups_) {
      bool any = false;
      for (const Cell& cell : group.cells) {
        if (!IsPending(cell)) continue;
        any = true;
        left += costs_.Expected(LabCosts::WorkOf(cell, PolicyOf(cell), group.n_rows));
      }
      const Cell& first = group.cells[0];
      if (any && &group != running_)
        left += costs_.Expected(LabCosts::WorkOf(first, LabCosts::kPrefill, group.n_rows));
    }
    return left;
  }

  void AddCost(const Cell& cell, const std::string& part, int n_rows, double seconds) {
    costs_.Add(LabCosts::WorkOf(cell, part, n_rows), seconds);
    seconds_left_.reset();
  }

  // `cell` is under way here, where it is not null. Ranks share what is left as if evenly.
  LabProgress Progress(const Cell* cell = nullptr, double share = 0,
                       const std::string& doing = "") {
    return {outcome_.n_cells, outcome_.n_kept + outcome_.n_done, outcome_.n_failed,
            doing + share_.Others(), SecondsLeft(cell, share) / share_.n_at_work()};
  }

  bool RunGroup(const LabGroup& group);
  void RunGroups();
  void TakeHanded(const LabGroup& group, HandedGroup handed);
  // What other ranks did since it was last asked. False: this rank cannot write of it.
  bool TakeNews();
  Status WriteCell(const std::vector<Json>& lines);
  void Count(const LabGroup& group, const Cell& cell, const CellRecord& end);

  const Plugin& plugin_;
  const LabOptions& options_;
  const LabEvents& events_;
  WorkShare& share_;
  const Clock::time_point start_ = Clock::now();
  std::vector<LabJob> jobs_;
  std::vector<LabGroup> groups_;
  std::set<std::pair<std::string, std::string>> cell_ids_, finished_;  // experiment and id
  LabFolder kept_;
  std::vector<Json> run_lines_;  // of the models
  std::optional<RecordWriter> writer_;
  std::unique_ptr<LabModel> model_;
  std::string written_model_;
  std::map<std::string, std::string> sha256s_;  // of models, by file
  double loading_seconds_ = 0;
  LabCosts costs_;
  std::optional<double> seconds_left_;  // nothing where cells or costs have changed since
  LabOutcome outcome_;
  const LabGroup* running_ = nullptr;  // its prefill is done or under way
};

// One group at work: what its experiment sees of the runner.
class RunningGroup : public GroupRun {
 public:
  RunningGroup(LabRunner& runner, const LabGroup& group) : runner_(runner), group_(group) {}

  // False where nothing more can be run: a stop, or records that cannot be written.
  bool Run(Experiment& experiment) {
    std::vector<Cell> pending = Pending();
    while (!pending.empty()) {
      at_work_.clear();
      const Status ran = experiment.RunGroup(*this, pending);
      if (!runner_.outcome_.error.empty()) return false;
      if (StopRequested()) return false;
      const std::string reason = ran.ok() ? "the experiment did not run it" : ran.error();
      pending = Pending();
      const bool one_failed =
          !ran.ok() && std::any_of(pending.begin(), pending.end(),
                                   [&](const Cell& cell) { return cell.id == at_work_; });
      for (const Cell& cell : pending) {
        if (one_failed && cell.id != at_work_) continue;
        if (!Fail(cell, reason).ok()) return false;
      }
      pending = Pending();
    }
    return true;
  }

  LabModel& model() override { return *runner_.model_; }
  const Plugin& plugin() override { return runner_.plugin_; }

  Result<Session*> OpenSession() override {
    if (session_) return session_.get();
    SessionOptions options;
    options.n_context = group_.n_rows;
    options.n_threads = runner_.options_.n_threads;
    options.k_type = runner_.options_.k_type;
    options.v_type = runner_.options_.v_type;
    options.api = runner_.plugin_.api();
    Result<std::unique_ptr<Session>> session = Session::Open(model().model(), options);
    if (!session.ok()) return Error{session.error()};
    session_ = std::move(session.value());
    return session_.get();
  }

  const FinishedCell* Kept(const std::string& id) override {
    const FinishedCell* known = runner_.kept_.Find(group_.cells[0].experiment, id);
    return known != nullptr && !known->failed() ? known : nullptr;
  }

  void Working(const Cell& cell, double share) override {
    at_work_ = cell.id;
    Show(CellLabel(cell), &cell, share);
  }

  void Preparing(const std::string& what, int64_t n_done, int64_t n_total) override {
    const double share = n_total > 0 ? 100.0 * static_cast<double>(n_done) / n_total : 0;
    Cell shared = group_.cells[0];
    shared.parameters.erase("policy");
    Show(fmt::format("{}, {} {:.0f} %", CellLabel(shared), what, share), nullptr, 0);
  }

  void Spent(const std::string& part, double seconds) override {
    runner_.SpendHere(part, seconds);
    runner_.AddCost(group_.cells[0], part, group_.n_rows, seconds);
  }

  void Warn(const std::string& text) override {
    if (!runner_.share_.Warn(text) && runner_.events_.on_warning) runner_.events_.on_warning(text);
  }

  Status Finish(const Cell& cell, const std::vector<Json>& lines, CellRecord end) override {
    std::vector<Json> marked;
    for (const Json& line : lines) marked.push_back(MarkLine(line, cell.experiment, cell.id));
    marked.push_back(CellLine(cell, end));
    Status written = runner_.WriteCell(marked);
    if (!written.ok()) return written;
    runner_.share_.Finished(marked);
    runner_.Count(group_, cell, end);
    return Status();
  }

  Status Fail(const Cell& cell, const std::string& reason) override {
    return Finish(cell, {}, FailedRecord(cell, reason));
  }

 private:
  std::vector<Cell> Pending() const {
    std::vector<Cell> pending;
    for (const Cell& cell : group_.cells) {
      if (runner_.IsPending(cell)) pending.push_back(cell);
    }
    return pending;
  }

  void Show(const std::string& doing, const Cell* cell, double share) {
    runner_.share_.Working(doing, cell != nullptr ? cell->id : "");
    if (!runner_.TakeNews()) RequestStop();
    if (runner_.events_.on_progress)
      runner_.events_.on_progress(runner_.Progress(cell, share, doing));
  }

  LabRunner& runner_;
  const LabGroup& group_;
  std::unique_ptr<Session> session_;
  std::string at_work_;  // id
};

Status LabRunner::WriteCell(const std::vector<Json>& lines) {
  if (!outcome_.error.empty()) return Error{outcome_.error};  // behind a cut line: nothing
  for (const Json& line : lines) {
    Status written = writer_->WriteLine(line);
    if (written.ok()) continue;
    outcome_.error = written.error();
    return written;
  }
  return Status();
}

void LabRunner::Count(const LabGroup& group, const Cell& cell, const CellRecord& end) {
  finished_.insert({cell.experiment, cell.id});
  seconds_left_.reset();
  const bool failed = end.state == "failed";
  (failed ? outcome_.n_failed : outcome_.n_done) += 1;
  if (!failed) Spend("cells of " + end.name, end.seconds);
  if (end.state == CellRecord().state) AddCost(cell, end.name, group.n_rows, end.seconds);
  if (events_.on_cell) events_.on_cell(cell, end);
}

bool LabRunner::TakeNews() {
  for (const ShareNews& news : share_.TakeNews()) {
    const LabGroup* group =
        news.group && *news.group < groups_.size() ? &groups_[*news.group] : nullptr;
    const Cell* cell = nullptr;
    for (size_t i = 0; group != nullptr && i < group->cells.size(); ++i) {
      if (group->cells[i].id == news.cell) cell = &group->cells[i];
    }
    switch (news.what) {
      case ShareNews::What::kFinished:
        if (cell != nullptr) Count(*group, *cell, news.end);
        break;
      case ShareNews::What::kFailed:
        if (cell != nullptr) {
          const CellRecord end = FailedRecord(*cell, news.text);
          if (!WriteCell({CellLine(*cell, end)}).ok()) return false;
          Count(*group, *cell, end);
        }
        break;
      case ShareNews::What::kSpent:
        Spend(news.text, news.seconds);
        if (group != nullptr) AddCost(group->cells[0], news.text, group->n_rows, news.seconds);
        break;
      case ShareNews::What::kWarning:
        if (events_.on_warning) events_.on_warning(news.text);
        break;
    }
  }
  return true;
}

void LabRunner::RunGroups() {
  const auto waiting = [&] {
    if (!TakeNews()) RequestStop();
    if (events_.on_progress)
      events_.on_progress(Progress(nullptr, 0, "waiting for the other ranks"));
  };
  while (std::optional<HandedGroup> handed = share_.Next(waiting)) {
    const LabGroup& group = groups_[handed->group];
    TakeHanded(group, std::move(*handed));
    if (!RunGroup(group)) break;
  }
  if (!outcome_.error.empty()) share_.Fail(outcome_.error);
  share_.Settle();
  TakeNews();
  if (outcome_.error.empty()) outcome_.error = share_.Error();
  outcome_.stopped = StopRequested() && outcome_.n_left() > 0;
}

// What a rank before this one did of the group is as if an earlier run had done it.
void LabRunner::TakeHanded(const LabGroup& group, HandedGroup handed) {
  for (FinishedCell& cell : handed.finished) kept_.Add(std::move(cell));
  for (const Cell& cell : group.cells) {
    if (std::find(handed.cells.begin(), handed.cells.end(), cell.id) == handed.cells.end())
      finished_.insert({cell.experiment, cell.id});
  }
}

bool LabRunner::RunGroup(const LabGroup& group) {
  if (std::none_of(group.cells.begin(), group.cells.end(),
                   [&](const Cell& cell) { return IsPending(cell); }))
    return true;
  if (StopRequested()) return false;
  const Status ready = WriteRun(group.model);
  if (!ready.ok()) {
    if (!StopRequested()) outcome_.error = ready.error();
    return false;
  }
  running_ = &group;
  seconds_left_.reset();
  const bool go_on = RunningGroup(*this, group).Run(*jobs_[group.job].experiment);
  running_ = nullptr;
  return go_on;
}

}  // namespace

Result<LabOutcome> RunLab(const Plugin& plugin, const LabOptions& options, const LabEvents& events,
                          WorkShare& share) {
  return LabRunner(plugin, options, events, share).Run();
}

}  // namespace condense
