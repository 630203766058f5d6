// Sequences that decode side by side in one stream for hundreds of steps, as a server's slots do in
// a unified cache: their rows alternate, so that no segment of the later cells is one sequence's.
#include "gtest/gtest.h"
#include "host.h"
#include "select/test_choice.h"

namespace condense {
namespace {

constexpr int kPrompt = 4000;  // rows; the prompts meet within a segment
constexpr int kCells = 2 * kPrompt + 1216;
constexpr int kSteps = 400;
constexpr const char* kSpec = "condense:budget=8%";

// A sequence in company, and in a cache of its own in the same cells.
struct Twice {
  Sequence together, alone;
  Host own{kCells};

  void Prefill(Host& host, RowRange cells, uint64_t token) {
    host.Prefill(together, cells, token);
    own.Prefill(alone, cells, token);
  }
  void Append(Host& host, int cell, uint64_t token) {
    host.Append(together, cell, token);
    own.Append(alone, cell, token);
  }
};

// Both step in one node; each as it does alone.
void StepBoth(Host& host, Twice& a, Twice& b, const Policy& policy) {
  const std::vector<StepResult> both = host.Step({&a.together, &b.together}, policy);
  int i = 0;
  for (Twice* each : {&a, &b}) {
    const StepResult one = each->own.Step(each->alone, policy);
    EXPECT_TRUE(both[i].count.sparse) << static_cast<int>(both[i].count.reason);
    EXPECT_TRUE(SameBits(both[i].out, one.out)) << "sequence " << i;
    EXPECT_EQ(both[i].count.unique_rows, one.count.unique_rows);
    const StepCount& count = both[i++].count;
    EXPECT_LE(count.k_bytes + count.v_bytes + count.summary_bytes, 0.08 * count.dense_bytes);
  }
}

TEST(SideBySideTest, AlternatingSequencesAreSparseAndChooseAsTheyDoAlone) {
  const std::unique_ptr<Policy> policy = Make(kSpec);
  Host host(kCells);
  Twice a, b;
  a.Prefill(host, {0, kPrompt}, 1);
  b.Prefill(host, {kPrompt, 2 * kPrompt}, 9001);
  for (int i = 0; i < kSteps && !::testing::Test::HasFailure(); ++i) {
    a.Append(host, 2 * kPrompt + 2 * i, 50 + i);
    b.Append(host, 2 * kPrompt + 2 * i + 1, 5000 + i);
    SCOPED_TRACE(i);
    StepBoth(host, a, b, *policy);
  }
  // Nobody codes what the other coded.
  EXPECT_EQ(host.codes().n_coded(), a.own.codes().n_coded() + b.own.codes().n_coded());
  EXPECT_EQ(host.codes().n_trained(), a.own.codes().n_trained() + b.own.codes().n_trained());
  EXPECT_EQ(host.codes().n_strands(), 2u);
}

TEST(SideBySideTest, AThirdSequenceInTheCellsOfOneThatWentLeavesTheOtherAlone) {
  const std::unique_ptr<Policy> policy = Make(kSpec);
  Host host(kCells);
  Twice a, b, c;
  a.Prefill(host, {0, kPrompt}, 1);
  b.Prefill(host, {kPrompt, 2 * kPrompt}, 9001);
  for (int i = 0; i < 200; ++i) {
    a.Append(host, 2 * kPrompt + 2 * i, 50 + i);
    b.Append(host, 2 * kPrompt + 2 * i + 1, 5000 + i);
    StepBoth(host, a, b, *policy);
  }
  const uint64_t trained = host.codes().n_trained();
  // Into the second's cells, those between the first's last of all.
  c.Prefill(host, {kPrompt, 2 * kPrompt}, 20001);
  for (int i = 0; i < 200 && !::testing::Test::HasFailure(); ++i) {
    a.Append(host, 2 * kPrompt + 400 + i, 700 + i);
    c.Append(host, 2 * kPrompt + 2 * i + 1, 8000 + i);
    SCOPED_TRACE(i);
    StepBoth(host, a, c, *policy);
  }
  EXPECT_EQ(host.codes().n_trained(), trained + c.own.codes().n_trained());
  // The first's rows were coded once each, the newest segments of both as they closed.
  EXPECT_LE(host.codes().n_coded(),
            a.own.codes().n_coded() + b.own.codes().n_coded() + c.own.codes().n_coded());
  // A state is loaded over the first: nothing of it is believed any more.
  a.together.cells.pop_back();
  a.alone.cells.pop_back();
  host.Restore(a.together, 31000);
  a.own.Restore(a.alone, 31000);
  Host fresh(kCells);
  Sequence only = a.together;
  fresh.Prefill(only, {kCells - 1, kCells}, 3);  // writes are seen
  only.cells.pop_back();
  only.newest_token = a.together.newest_token;
  fresh.Restore(only, 31000);
  EXPECT_TRUE(SameBits(host.Step(a.together, *policy).out, fresh.Step(only, *policy).out));
}

}  // namespace
}  // namespace condense
