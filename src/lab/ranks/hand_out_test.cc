// Rank 0's books without ranks: every cell is handed out once, whatever is lost meanwhile.
#include "lab/ranks/hand_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "lab/ranks/work_share.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

FinishedCell Done(const std::string& id) {
  FinishedCell cell;
  cell.id = id;
  return cell;
}

TEST(HandOut, GroupsInOrderEachOnce) {
  HandOut books;
  books.Add({"a", "b"}, {});
  books.Add({}, {});  // all of it is kept
  books.Add({"c"}, {Done("kept")});
  std::optional<HandedGroup> group = books.Next(0);
  ASSERT_TRUE(group);
  EXPECT_EQ(group->group, 0u);
  EXPECT_THAT(group->cells, ElementsAre("a", "b"));
  group = books.Next(1);
  ASSERT_TRUE(group);
  EXPECT_EQ(group->group, 2u);
  ASSERT_EQ(group->finished.size(), 1u);
  EXPECT_EQ(group->finished[0].id, "kept");
  EXPECT_FALSE(books.Next(2));
  EXPECT_FALSE(books.all_done());
  for (const char* id : {"a", "b"}) books.Finished(0, Done(id));
  books.Finished(1, Done("c"));
  EXPECT_FALSE(books.Next(0));
  EXPECT_FALSE(books.all_done()) << "rank 1 is not back";
  EXPECT_FALSE(books.Next(1));
  EXPECT_TRUE(books.all_done());
}

TEST(HandOut, ALostRankLosesTheCellUnderWay) {
  HandOut books;
  books.Add({"a", "b", "c"}, {});
  ASSERT_TRUE(books.Next(1));
  books.Working(1, "a");
  books.Finished(1, Done("a"));
  books.Working(1, "b");
  const HandOut::Loss loss = books.Lose(1);
  EXPECT_EQ(loss.group, 0u);
  EXPECT_THAT(loss.failed, ElementsAre("b"));
  const std::optional<HandedGroup> again = books.Next(0);
  ASSERT_TRUE(again);
  EXPECT_THAT(again->cells, ElementsAre("c"));
  ASSERT_EQ(again->finished.size(), 1u) << "what c is compared with";
  EXPECT_EQ(again->finished[0].id, "a");
  EXPECT_THAT(books.Lose(1).failed, IsEmpty()) << "a rank without a group";
}

TEST(HandOut, ALossBetweenCellsLosesNone) {
  HandOut books;
  books.Add({"a", "b"}, {});
  ASSERT_TRUE(books.Next(1));
  books.Working(1, "a");
  books.Working(1, "");  // a prefill
  EXPECT_THAT(books.Lose(1).failed, IsEmpty());
  EXPECT_THAT(books.Next(0)->cells, ElementsAre("a", "b"));
}

TEST(HandOut, AGroupThatKillsItsRanksIsGivenUp) {
  HandOut books;
  books.Add({"a", "b"}, {});
  books.Add({"c"}, {});
  ASSERT_TRUE(books.Next(1));
  EXPECT_THAT(books.Lose(1).failed, IsEmpty());
  ASSERT_EQ(books.Next(2)->group, 0u);
  EXPECT_THAT(books.Lose(2).failed, ElementsAre("a", "b"));
  EXPECT_EQ(books.Next(0)->group, 1u);
}

TEST(HandOut, AnyCourseOfEventsRunsEachCellOnce) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    HandOut books;
    std::multiset<std::string> wanted, came;
    const int n_groups = 1 + below(6), n_ranks = 1 + below(4);
    for (int g = 0; g < n_groups; ++g) {
      std::vector<std::string> cells;
      for (int c = below(4); c >= 0; --c) cells.push_back(std::to_string(g * 10 + c));
      wanted.insert(cells.begin(), cells.end());
      books.Add(cells, {});
    }
    std::vector<std::vector<std::string>> at(static_cast<size_t>(n_ranks));
    std::set<int> lost;
    for (int turn = 0; !books.all_done(); ++turn) {
      ASSERT_LT(turn, 100000);
      const int rank = below(n_ranks);
      std::vector<std::string>& cells = at[static_cast<size_t>(rank)];
      if (lost.contains(rank)) continue;
      if (cells.empty()) {
        if (const std::optional<HandedGroup> group = books.Next(rank)) cells = group->cells;
        continue;
      }
      books.Working(rank, cells.back());
      if (rank > 0 && below(8) == 0) {
        lost.insert(rank);
        for (const std::string& cell : books.Lose(rank).failed) came.insert(cell);
        continue;
      }
      came.insert(cells.back());
      books.Finished(rank, Done(cells.back()));
      cells.pop_back();
    }
    EXPECT_EQ(came, wanted) << "round " << round;
  }
}

Cell MakeOne(const std::string& model, int context) {
  return MakeCell("made", Json{{"model", model}}, Json{{"context", context}}, 100);
}

TEST(PlanDifference, NamesTheFirst) {
  const Json run{{"version", "1"}, {"threads", 2}, {"model", "m.gguf"}, {"cpu", "any"}};
  const auto plan = [&](const Json& line, const std::string& model, int context) {
    LabGroup group;
    group.cells = {MakeOne(model, 100), MakeOne(model, context)};
    return AgreedPlan({line}, {group});
  };
  const Json here = plan(run, "m@1", 200);
  EXPECT_EQ(PlanDifference(here, plan(run, "m@1", 200)), "");
  Json other = run;
  other["cpu"] = "another";
  EXPECT_EQ(PlanDifference(here, plan(other, "m@1", 200)), "") << "machines may differ";
  other["threads"] = 4;
  EXPECT_EQ(PlanDifference(here, plan(other, "m@1", 200)), "threads is 4 there, 2 here");
  EXPECT_EQ(PlanDifference(here, plan(run, "m@2", 200)),
            "cell 1 of the plan is 'model=m@2' there, 'model=m@1' here");
  EXPECT_EQ(PlanDifference(here, plan(run, "m@1", 300)),
            "cell 2 of the plan is 'context=300' there, 'context=200' here");
  LabGroup group;
  group.cells = {MakeOne("m@1", 100)};
  EXPECT_EQ(PlanDifference(here, AgreedPlan({run}, {group})),
            "the number of cells is 1 there, 2 here");
  EXPECT_THAT(PlanDifference(here, Json::object()), HasSubstr("number of models"));
}

}  // namespace
}  // namespace condense
