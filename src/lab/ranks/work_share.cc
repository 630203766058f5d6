#include "lab/ranks/work_share.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "decode/stop.h"

namespace condense {
namespace {

class Alone : public WorkShare {
 public:
  Result<TakenFolder> TakeFolder(const std::string& folder) override {
    Result<LabLock> lock = LabLock::Take(folder);
    if (!lock.ok()) return ::condense::Error{lock.error()};
    lock_.emplace(std::move(lock.value()));
    Result<LabFolder> kept = ReadLabFolder(folder);
    if (!kept.ok()) return ::condense::Error{kept.error()};
    return TakenFolder{std::move(kept.value()), {}};
  }
  Status Agree(const Json& plan) override { return Status(); }
  void Begin(HandOut books) override { books_ = std::move(books); }
  std::optional<HandedGroup> Next(const std::function<void()>& waiting) override {
    return StopRequested() ? std::nullopt : books_.Next(0);
  }
  void Working(const std::string& doing, const std::string& cell) override {}
  void Finished(const std::vector<Json>& lines) override {}
  void Spent(const std::string& part, double seconds) override {}

 private:
  std::optional<LabLock> lock_;
  HandOut books_;
};

// The words of a cell's id that the other's lacks: what differs between two cells of one place.
std::string Words(const std::string& of, const std::string& other) {
  const auto split = [](const std::string& text) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(' ', begin), text.size());
      words.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return words;
  };
  const std::vector<std::string> known = split(other);
  std::string out;
  for (const std::string& word : split(of)) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    out += (out.empty() ? "" : " ") + word;
  }
  return out.empty() ? of : out;
}

}  // namespace

HandOut MakeBooks(const std::vector<LabGroup>& groups, const LabFolder& kept,
                  const std::function<bool(const Cell&)>& pending) {
  HandOut books;
  for (const LabGroup& group : groups) {
    std::vector<std::string> to_run;
    std::vector<FinishedCell> finished;
    for (const Cell& cell : group.cells) {
      const FinishedCell* known = kept.Find(cell.experiment, cell.id);
      if (pending(cell)) {
        to_run.push_back(cell.id);
      } else if (known != nullptr) {
        finished.push_back(*known);
      }
    }
    if (to_run.empty()) finished.clear();  // nobody asks for them
    books.Add(std::move(to_run), std::move(finished));
  }
  return books;
}

Json AgreedPlan(const std::vector<Json>& runs, const std::vector<LabGroup>& groups) {
  Json plan{{"runs", Json::array()}, {"groups", Json::array()}};
  for (const Json& run : runs) {
    Json& identity = plan["runs"].emplace_back(RunIdentity(run));
    for (const char* key : {"model", "model_sha256"}) identity[key] = run.value(key, Json());
  }
  for (const LabGroup& of : groups) {
    Json& group = plan["groups"].emplace_back(Json::array());
    for (const Cell& cell : of.cells) group.push_back(cell.experiment + ": " + cell.id);
  }
  return plan;
}

std::string PlanDifference(const Json& here, const Json& there) {
  const auto differs = [](const std::string& what, const std::string& ours,
                          const std::string& theirs) {
    return fmt::format("{} is {} there, {} here", what, theirs, ours);
  };
  const Json ours = here.value("runs", Json::array()), theirs = there.value("runs", Json::array());
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    for (const auto& [key, value] : ours[i].items()) {
      const Json other = theirs[i].value(key, Json());
      if (other != value) return differs(key, value.dump(), other.dump());
    }
  }
  if (ours.size() != theirs.size())
    return differs("the number of models", ours.dump(), theirs.dump());
  const auto cells = [](const Json& plan) {
    std::vector<std::string> all;
    for (const Json& group : plan.value("groups", Json::array())) {
      for (const Json& cell : group) all.push_back(cell.get<std::string>());
    }
    return all;
  };
  const std::vector<std::string> a = cells(here), b = cells(there);
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    return differs(fmt::format("cell {} of the plan", i + 1), Quote(Words(a[i], b[i])),
                   Quote(Words(b[i], a[i])));
  }
  if (a.size() != b.size())
    return differs("the number of cells", std::to_string(a.size()), std::to_string(b.size()));
  return here == there ? "" : "the groups of cells are others there";
}

std::unique_ptr<WorkShare> WorkAlone() { return std::make_unique<Alone>(); }

}  // namespace condense
