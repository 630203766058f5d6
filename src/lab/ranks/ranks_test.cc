// Rank 0 and others in one process, each on its own line over a made transport: groups are shared
// out, folders that are shared or not, a rank that falls silent, one that would do other work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/test_folder.h"
#include "decode/stop.h"
#include "lab/lab_records.h"
#include "lab/ranks/open_share.h"
#include "lab/ranks/ranked_share.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kLostAfter = 3;  // seconds; a busy machine lets threads wait

// Messages between ranks that are threads.
struct Hub {
  std::mutex mutex;
  std::map<int, std::deque<std::pair<int, std::string>>> to;
  std::set<int> cut;  // of these nothing comes through any more
  std::set<int> aborted;
};

class HubTransport : public Transport {
 public:
  HubTransport(Hub& hub, int rank, int n_ranks) : hub_(hub), rank_(rank), n_ranks_(n_ranks) {}
  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }
  void Send(int other, const std::string& bytes) override {
    const std::lock_guard lock(hub_.mutex);
    if (!hub_.cut.contains(rank_)) hub_.to[other].emplace_back(rank_, bytes);
  }
  bool Receive(int& from, std::string& bytes) override {
    const std::lock_guard lock(hub_.mutex);
    auto& queue = hub_.to[rank_];
    if (queue.empty()) return false;
    std::tie(from, bytes) = queue.front();
    queue.pop_front();
    return true;
  }
  void Leave(int code) override {}
  void Abort(int code) override {
    const std::lock_guard lock(hub_.mutex);
    hub_.aborted.insert(rank_);
  }

 private:
  Hub& hub_;
  const int rank_, n_ranks_;
};

Cell MakeOne(int group, int number) {
  return MakeCell("made", Json{{"model", "m"}, {"pair", group}},
                  Json{{"number", number}, {"policy", "dense"}}, 100);
}

std::vector<LabGroup> Groups(int n) {
  std::vector<LabGroup> groups(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < 2; ++c) groups[static_cast<size_t>(i)].cells.push_back(MakeOne(i, c));
  }
  return groups;
}

std::vector<Json> Lines(const Cell& cell) {
  CellRecord end;
  end.name = end.policy = "dense";
  return {MarkLine(Json{{"record", "made"}}, cell.experiment, cell.id), CellLine(cell, end)};
}

class RanksTest : public FolderTest {
 protected:
  void SetUp() override { ClearStop(); }
  void TearDown() override { ClearStop(); }

  std::unique_ptr<WorkShare> Share(int rank, int n_ranks) {
    Result<std::unique_ptr<RankLink>> link = RankLink::Start(
        [this, rank, n_ranks]() -> Result<std::unique_ptr<Transport>> {
          return std::unique_ptr<Transport>(new HubTransport(hub_, rank, n_ranks));
        },
        kLostAfter);
    EXPECT_TRUE(link.ok());
    return ShareOf(std::move(link.value()), kLostAfter);
  }

  // As the runner does: everything up to the first group.
  static std::string Begin(WorkShare& share, const std::string& folder,
                           const std::vector<LabGroup>& groups, int threads = 1) {
    const Result<TakenFolder> taken = share.TakeFolder(folder);
    if (!taken.ok()) return taken.error();
    const Status agreed = share.Agree(AgreedPlan({Json{{"threads", threads}}}, groups));
    if (!agreed.ok()) return agreed.error();
    share.Begin(MakeBooks(groups, taken->kept, [&](const Cell& cell) {
      return !taken->done.contains({cell.experiment, cell.id}) &&
             taken->kept.Find(cell.experiment, cell.id) == nullptr;
    }));
    return "";
  }

  // Runs what it is handed; the ids.
  static std::vector<std::string> Work(WorkShare& share, const std::vector<LabGroup>& groups) {
    std::vector<std::string> ran;
    while (const std::optional<HandedGroup> handed = share.Next([] {})) {
      for (const Cell& cell : groups[handed->group].cells) {
        if (std::find(handed->cells.begin(), handed->cells.end(), cell.id) == handed->cells.end())
          continue;
        share.Working("at it", cell.id);
        share.Finished(Lines(cell));
        ran.push_back(cell.id);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    share.Settle();
    return ran;
  }

  Hub hub_;
};

TEST_F(RanksTest, GroupsAreSharedOut) {
  const std::vector<LabGroup> groups = Groups(12);
  std::vector<std::string> there;
  std::thread worker([&] {
    const std::unique_ptr<WorkShare> share = Share(1, 2);
    EXPECT_EQ(Begin(*share, Path("out"), groups), "");
    there = Work(*share, groups);
    EXPECT_EQ(share->Close(0), 0);
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  EXPECT_EQ(Begin(*share, Path("out"), groups), "");
  EXPECT_THAT(share->Describe(), HasSubstr("2 ranks: 2 on "));
  const std::vector<std::string> here = Work(*share, groups);
  std::set<std::string> finished;
  for (const ShareNews& news : share->TakeNews()) {
    ASSERT_EQ(news.what, ShareNews::What::kFinished) << news.text;
    EXPECT_EQ(news.end.state, "done");
    finished.insert(news.cell);
  }
  EXPECT_EQ(share->Close(1), 1);
  worker.join();
  EXPECT_FALSE(here.empty());
  EXPECT_FALSE(there.empty());
  EXPECT_EQ(finished, std::set<std::string>(there.begin(), there.end()));
  std::set<std::string> all(here.begin(), here.end());
  all.insert(there.begin(), there.end());
  EXPECT_EQ(all.size(), 24u);
  EXPECT_EQ(here.size() + there.size(), 24u);
  EXPECT_THAT(share->Elsewhere(), IsEmpty()) << "one folder";
}

TEST_F(RanksTest, AFolderOfItsOwn) {
  const std::vector<LabGroup> groups = Groups(2);
  // The other machine has a cell of an earlier run.
  std::string bytes = R"({"schema":1,"record":"run"})"
                      "\n";
  for (const Json& line : Lines(groups[0].cells[1])) bytes += line.dump() + "\n";
  std::filesystem::create_directories(Path("there"));
  Write("there/records-1.jsonl", bytes);
  std::thread worker([&] {
    const std::unique_ptr<WorkShare> share = Share(1, 2);
    EXPECT_EQ(Begin(*share, Path("there"), groups), "");
    EXPECT_FALSE(LabLock::Take(Path("there")).ok()) << "locked there too";
    Work(*share, groups);
    share->Close(0);
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  const Result<TakenFolder> taken = share->TakeFolder(Path("here"));
  ASSERT_TRUE(taken.ok()) << taken.error();
  EXPECT_NE(taken->kept.Find("made", groups[0].cells[1].id), nullptr);
  EXPECT_TRUE(share->Agree(AgreedPlan({Json{{"threads", 1}}}, groups)).ok());
  HandOut books;
  books.Add({groups[0].cells[0].id}, {});
  share->Begin(std::move(books));
  Work(*share, groups);
  const std::vector<RecordsElsewhere> elsewhere = share->Elsewhere();
  ASSERT_EQ(elsewhere.size(), 1u);
  EXPECT_EQ(elsewhere[0].path, Path("there/records-1.jsonl"));
  EXPECT_GE(share->CellsElsewhere().size(), 1u);
  share->Close(0);
  worker.join();
}

TEST_F(RanksTest, OtherWorkIsRefused) {
  const std::vector<LabGroup> groups = Groups(2);
  std::thread worker([&] {
    const std::unique_ptr<WorkShare> share = Share(1, 2);
    EXPECT_NE(Begin(*share, Path("out"), groups, 4), "");
    EXPECT_EQ(share->Close(0), 0);
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  const std::string error = Begin(*share, Path("out"), groups, 2);
  EXPECT_THAT(error, HasSubstr("rank 1 on "));
  EXPECT_THAT(error, HasSubstr("threads is 4 there, 2 here"));
  EXPECT_EQ(share->Close(2), 2);
  worker.join();
}

TEST_F(RanksTest, AnErrorOfOneRankIsTheRuns) {
  std::thread worker([&] {
    const std::unique_ptr<WorkShare> share = Share(1, 2);
    share->Fail("text 'x' is not there");
    share->Close(0);
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  const std::string error = Begin(*share, Path("out"), Groups(1));
  EXPECT_THAT(error, HasSubstr("rank 1 on "));
  EXPECT_THAT(error, HasSubstr("text 'x' is not there"));
  share->Close(2);
  worker.join();
}

TEST_F(RanksTest, ASilentRankIsLost) {
  const std::vector<LabGroup> groups = Groups(4);
  std::string lost_cell;
  std::atomic<bool> is_cut = false;
  std::thread worker([&] {
    std::unique_ptr<WorkShare> share = Share(1, 2);
    EXPECT_EQ(Begin(*share, Path("out"), groups), "");
    const std::optional<HandedGroup> handed = share->Next([] {});
    ASSERT_TRUE(handed);
    const std::vector<Cell>& cells = groups[handed->group].cells;
    share->Working("first", cells[0].id);
    share->Finished(Lines(cells[0]));
    share->Working("second", cells[1].id);
    lost_cell = cells[1].id;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    {
      const std::lock_guard lock(hub_.mutex);
      hub_.cut.insert(1);
    }
    is_cut = true;  // as a process that was killed: says nothing more
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  EXPECT_EQ(Begin(*share, Path("out"), groups), "");
  // Not before the other has its group.
  while (!is_cut) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  worker.join();
  const std::vector<std::string> here = Work(*share, groups);
  std::vector<std::string> failed, finished, warnings;
  for (const ShareNews& news : share->TakeNews()) {
    if (news.what == ShareNews::What::kFailed) failed.push_back(news.cell + ": " + news.text);
    if (news.what == ShareNews::What::kFinished) finished.push_back(news.cell);
    if (news.what == ShareNews::What::kWarning) warnings.push_back(news.text);
  }
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0], HasSubstr(lost_cell + ": rank 1 on "));
  EXPECT_THAT(failed[0], HasSubstr(" was lost"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("nothing heard of it for 3 s"));
  EXPECT_EQ(finished.size(), 1u);
  EXPECT_EQ(here.size(), 6u) << "all but one done there and one lost there";
  EXPECT_EQ(share->n_at_work(), 1);
  EXPECT_FALSE(StopRequested());
}

TEST_F(RanksTest, AStopOfOneStopsAll) {
  const std::vector<LabGroup> groups = Groups(2);
  std::thread worker([&] {
    const std::unique_ptr<WorkShare> share = Share(1, 2);
    EXPECT_EQ(Begin(*share, Path("out"), groups), "");
    RequestStop();  // every rank of this test: they are one process
    EXPECT_THAT(Work(*share, groups), IsEmpty());
    share->Close(0);
  });
  const std::unique_ptr<WorkShare> share = Share(0, 2);
  EXPECT_EQ(Begin(*share, Path("out"), groups), "");
  while (!StopRequested()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_THAT(Work(*share, groups), IsEmpty());
  share->Close(1);
  worker.join();
}

TEST(OpenShare, AloneWithoutALauncher) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    unsetenv(name);
  EXPECT_EQ(LaunchedRanks(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_EQ(LaunchedRanks(), 1);
  EXPECT_EQ((*OpenWorkShare(30).value()).n_ranks(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_EQ(LaunchedRanks(), 4);
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace condense
