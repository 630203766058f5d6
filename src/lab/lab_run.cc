#include "lab/lab_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/text.h"
#include "base/whole_file.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "lab/lab_costs.h"
#include "lab/lab_folder.h"
#include "lab/lab_records.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// The spec's copy in the folder: the file that holds it already, else a name that is free.
Result<std::string> CopySpec(const std::string& folder, const LabSpec& spec) {
  for (int number = 1;; ++number) {
    const std::string name = number == 1 ? spec.info->name + ".toml"
                                         : fmt::format("{}-{}.toml", spec.info->name, number);
    const std::string path = (fs::path(folder) / name).string();
    if (std::error_code error; fs::exists(path, error)) {
      const Result<std::string> there = ReadWholeFile(path);
      if (there.ok() && there.value() == spec.text) return name;
      continue;
    }
    std::ofstream out(path, std::ios::binary);
    out << spec.text << std::flush;
    if (out) return name;
    const std::string why = std::strerror(errno);
    out.close();
    std::remove(path.c_str());  // a part of a spec would be taken for another spec
    return Error{fmt::format("cannot write {}: {}", Quote(path), why)};
  }
}

class LabRunner {
 public:
  LabRunner(const Plugin& plugin, const LabOptions& options, const LabEvents& events)
      : plugin_(plugin), options_(options), events_(events) {}

  Result<LabOutcome> Run() {
    for (const LabSpec& spec : options_.specs) {
      Result<LabJob> job = MakeLabJob(spec, options_.models, options_.default_model);
      if (!job.ok()) return Error{job.error()};
      jobs_.push_back(std::move(job.value()));
    }
    Result<LabLock> lock = LabLock::Take(options_.folder);
    if (!lock.ok()) return Error{lock.error()};
    Result<LabFolder> kept = ReadLabFolder(options_.folder);
    if (!kept.ok()) return Error{kept.error()};
    kept_ = std::move(kept.value());
    const Clock::time_point planning = Clock::now();
    const Status planned = Plan();
    if (!planned.ok()) return Error{planned.error()};
    Spend("planning", SecondsSince(planning) - loading_seconds_);
    if (outcome_.n_left() > 0) {
      const Status opened = Open();
      if (!opened.ok()) return Error{opened.error()};
    }
    LearnCosts();
    if (events_.on_plan) events_.on_plan(Progress());
    for (const LabGroup& group : groups_) {
      if (!RunGroup(group)) break;
    }
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
    Spend("loading models", seconds);
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
      const Json run = RunLine(options_.describe(*model_), 0, 1);
      status = CheckSameProgram(kept_, run, options_.folder);
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
      const bool pending = std::any_of(group.cells.begin(), group.cells.end(),
                                       [&](const Cell& cell) { return !IsKept(cell); });
      if (pending && options_.check_memory) {
        const Status fits = options_.check_memory(model_->file(), group.n_rows);
        if (!fits.ok()) return fits;
      }
      outcome_.n_cells += static_cast<int>(group.cells.size());
      for (const Cell& cell : group.cells) outcome_.n_kept += IsKept(cell) ? 1 : 0;
      groups_.push_back(std::move(group));
    }
    return Status();
  }

  bool IsKept(const Cell& cell) const {
    const FinishedCell* known = kept_.Find(cell.experiment, cell.id);
    return known != nullptr && !known->failed();
  }

  // Everything that the run writes before its first cell.
  Status Open() {
    std::vector<std::string> spec_files;
    for (const LabJob& job : jobs_) {
      const Result<std::string> name = CopySpec(options_.folder, job.spec);
      if (!name.ok()) return Error{name.error()};
      spec_files.push_back(name.value());
    }
    const std::string name = RecordsFileName(0);
    const std::string path = (fs::path(options_.folder) / name).string();
    const auto there = kept_.n_bytes.find(name);
    Result<RecordWriter> writer = there != kept_.n_bytes.end()
                                      ? RecordWriter::GoOn(path, there->second)
                                      : RecordWriter::Create(path);
    if (!writer.ok()) return Error{writer.error()};
    writer_.emplace(std::move(writer.value()));
    Status status = WriteRun(groups_.front().model);
    for (size_t j = 0; status.ok() && j < jobs_.size(); ++j) status = WritePlan(j, spec_files[j]);
    return status;
  }

  // The `run` line of a model, before its cells.
  Status WriteRun(const std::string& path) {
    if (written_model_ == path) return Status();
    const Status loaded = NeedModel(path);
    if (!loaded.ok()) return loaded;
    written_model_ = path;
    return writer_->WriteLine(RunLine(options_.describe(*model_), 0, 1));
  }

  // The plan, where it has cells that no plan before had; with an experiment's first, what was
  // published.
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
    Status status = writer_->WriteLine(plan);
    for (const PublishedFigure& figure : info.published) {
      if (is_first && status.ok())
        status = writer_->WriteLine(MarkLine(ToJson(figure), info.name, ""));
    }
    return status;
  }

  // From what earlier runs recorded.
  void LearnCosts() {
    for (const LabGroup& group : groups_) {
      for (const Cell& cell : group.cells) {
        const FinishedCell* known = kept_.Find(cell.experiment, cell.id);
        if (known == nullptr || known->end["state"] != CellRecord().state) continue;
        costs_.Add(cell.experiment, known->end.value("name", ""), group.n_rows,
                   known->end.value("seconds", 0.0));
        for (const Json& line : known->lines) {
          if (line["record"] != "prompt" || !line["prefill_seconds"].is_number()) continue;
          costs_.Add(cell.experiment, LabCosts::kPrefill, group.n_rows,
                     line["prefill_seconds"].get<double>());
        }
      }
    }
  }

  static std::string PolicyPart(const Cell& cell) {
    const auto policy = cell.parameters.find("policy");
    return policy != cell.parameters.end() && policy->is_string()
               ? PolicyName(policy->get<std::string>())
               : "";
  }

  bool IsPending(const Cell& cell) const {
    return !IsKept(cell) && !finished_.contains({cell.experiment, cell.id});
  }

  // Seconds of all that is left; `share` of the cell under way is done. Asked at every step, while
  // what is left changes with cells: summed up once for each.
  double SecondsLeft(const Cell* under_way, double share) {
    if (!seconds_left_) seconds_left_ = SumSecondsLeft();
    if (under_way == nullptr || !IsPending(*under_way)) return *seconds_left_;
    return *seconds_left_ -
           share * costs_.Expected(under_way->experiment, PolicyPart(*under_way), running_->n_rows);
  }

  double SumSecondsLeft() const {
    double left = 0;
    for (const LabGroup& group : groups_) {
      bool any = false;
      for (const Cell& cell : group.cells) {
        if (!IsPending(cell)) continue;
        any = true;
        left += costs_.Expected(cell.experiment, PolicyPart(cell), group.n_rows);
      }
      if (any && &group != running_)
        left += costs_.Expected(group.cells[0].experiment, LabCosts::kPrefill, group.n_rows);
    }
    return left;
  }

  void AddCost(const Cell& cell, const std::string& part, int n_rows, double seconds) {
    costs_.Add(cell.experiment, part, n_rows, seconds);
    seconds_left_.reset();
  }

  LabProgress Progress() {
    return {outcome_.n_cells, outcome_.n_kept + outcome_.n_done, outcome_.n_failed, "",
            SecondsLeft(nullptr, 0)};
  }

  bool RunGroup(const LabGroup& group);

  const Plugin& plugin_;
  const LabOptions& options_;
  const LabEvents& events_;
  const Clock::time_point start_ = Clock::now();
  std::vector<LabJob> jobs_;
  std::vector<LabGroup> groups_;
  std::set<std::pair<std::string, std::string>> cell_ids_, finished_;  // experiment and id
  LabFolder kept_;
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
      if (StopRequested()) {
        runner_.outcome_.stopped = true;
        return false;
      }
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
    runner_.Spend(part, seconds);
    runner_.AddCost(group_.cells[0], part, group_.n_rows, seconds);
  }

  void Warn(const std::string& text) override {
    if (runner_.events_.on_warning) runner_.events_.on_warning(text);
  }

  Status Finish(const Cell& cell, const std::vector<Json>& lines, CellRecord end) override {
    for (const Json& line : lines) {
      const Status written = Write(MarkLine(line, cell.experiment, cell.id));
      if (!written.ok()) return written;
    }
    const Status written = Write(CellLine(cell, end));
    if (!written.ok()) return written;
    runner_.finished_.insert({cell.experiment, cell.id});
    runner_.seconds_left_.reset();
    const bool failed = end.state == "failed";
    (failed ? runner_.outcome_.n_failed : runner_.outcome_.n_done) += 1;
    if (!failed) runner_.Spend("cells of " + end.name, end.seconds);
    if (end.state == CellRecord().state)
      runner_.AddCost(cell, end.name, group_.n_rows, end.seconds);
    if (runner_.events_.on_cell) runner_.events_.on_cell(cell, end);
    return Status();
  }

  Status Fail(const Cell& cell, const std::string& reason) override {
    CellRecord end;
    end.policy = cell.parameters.value("policy", "");
    end.name = LabRunner::PolicyPart(cell);
    end.state = "failed";
    end.reason = reason;
    return Finish(cell, {}, end);
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
    if (!runner_.events_.on_progress) return;
    LabProgress progress = runner_.Progress();
    progress.doing = doing;
    if (cell != nullptr) progress.seconds_left = runner_.SecondsLeft(cell, share);
    runner_.events_.on_progress(progress);
  }

  Status Write(const Json& line) {
    Status written = runner_.writer_->WriteLine(line);
    if (!written.ok()) runner_.outcome_.error = written.error();
    return written;
  }

  LabRunner& runner_;
  const LabGroup& group_;
  std::unique_ptr<Session> session_;
  std::string at_work_;  // id
};

bool LabRunner::RunGroup(const LabGroup& group) {
  if (std::none_of(group.cells.begin(), group.cells.end(),
                   [&](const Cell& cell) { return IsPending(cell); }))
    return true;
  if (StopRequested()) {
    outcome_.stopped = true;
    return false;
  }
  const Status ready = WriteRun(group.model);
  if (!ready.ok()) {
    outcome_.stopped = StopRequested();
    if (!outcome_.stopped) outcome_.error = ready.error();
    return false;
  }
  running_ = &group;
  seconds_left_.reset();
  const bool go_on = RunningGroup(*this, group).Run(*jobs_[group.job].experiment);
  running_ = nullptr;
  return go_on;
}

}  // namespace

Result<LabOutcome> RunLab(const Plugin& plugin, const LabOptions& options,
                          const LabEvents& events) {
  return LabRunner(plugin, options, events).Run();
}

}  // namespace condense
