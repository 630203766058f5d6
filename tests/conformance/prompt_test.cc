// Policies that ask for the attention of prompts, and those that evict: every registered one. What
// they are told of a prompt depends on neither threads nor how it is cut, follows rollback,
// forgetting and restoring, and evicted rows stay away.
#include "gtest/gtest.h"
#include "host.h"
#include "made_files.h"
#include "select/registry.h"
#include "select/test_choice.h"

namespace condense {
namespace {

constexpr int kPrompt = 1450, kCells = 1600;  // a budget of 30 % buys infllm two blocks

// Computed prompts take most of a test's time, with sanitizers ten times as much: there the
// others are left to the release build.
#if defined(CONDENSE_FEW_TARGETS)
const std::vector<int> kCuts = {33}, kRejected = {20};
#else
const std::vector<int> kCuts = {512, 100, 33}, kRejected = {1, 5, 20};
#endif

// Registered policies for which `holds`, at their defaults and with a byte budget.
template <class Condition>
std::vector<std::string> SpecsWhere(const Condition& holds) {
  std::vector<std::string> specs;
  for (const PolicyInfo* info : RegisteredPolicies()) {
    if (!holds(*Make(MadeSpec(*info, "")))) continue;
    specs.push_back(MadeSpec(*info, ""));
    if (HasKey(*info, "budget")) specs.push_back(MadeSpec(*info, "budget=30%"));
  }
  return specs;
}

// What a policy chose, step by step.
class Recorder final : public Policy {
 public:
  explicit Recorder(const Policy& policy) : policy_(policy) {}
  void Select(const LayerQuery& query, Selection& selection) const override {
    policy_.Select(query, selection);
    chosen = selection;
    visible.assign(query.visible.begin(), query.visible.end());
  }
  mutable Selection chosen;
  mutable RowMask visible;

 private:
  const Policy& policy_;
};

class PromptConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void Compute(Host& host, Sequence& sequence, RowRange cells, int cut = 512, int n_threads = 1) {
    host.Compute(sequence, cells, 1, policy_->prompt_wants(), cut, *dense_, n_threads);
  }
  std::vector<StepResult> Decode(Host& host, Sequence& sequence, uint64_t token, int n,
                                 int n_threads = 1) {
    std::vector<StepResult> steps;
    for (int i = 0; i < n; ++i) {
      host.Append(sequence, static_cast<int>(sequence.cells.size()), token + i);
      steps.push_back(host.Step(sequence, *policy_, n_threads));
      EXPECT_TRUE(steps.back().count.sparse);
    }
    return steps;
  }
  static void ExpectSame(const std::vector<StepResult>& a, const std::vector<StepResult>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(SameBits(a[i].out, b[i].out)) << "step " << i;
      EXPECT_EQ(a[i].count.unique_rows, b[i].count.unique_rows);
      EXPECT_EQ(a[i].count.summary_bytes, b[i].count.summary_bytes);
    }
  }

  const std::unique_ptr<Policy> policy_ = Make(GetParam()), dense_ = Make("dense");
};

TEST_P(PromptConformance, CutsAndThreadsChangeNoBit) {
  Host whole(kCells);
  Sequence a;
  Compute(whole, a, {0, kPrompt}, kPrompt);
  const std::vector<StepResult> expected = Decode(whole, a, 50, 6);
  for (int cut : kCuts) {
    Host host(kCells);
    Sequence b;
    Compute(host, b, {0, kPrompt}, cut, cut == 100 ? 1 : 2);
    ExpectSame(Decode(host, b, 50, 6, 2), expected);
  }
}

// What is known of a prompt shows: without it, other rows are read.
TEST_P(PromptConformance, ThePromptIsHeard) {
  Host seen(kCells), unseen(kCells);
  Sequence a, b;
  Compute(seen, a, {0, kPrompt});
  unseen.Prefill(b, {0, kPrompt}, 1);
  const auto x = Decode(seen, a, 50, 2), y = Decode(unseen, b, 50, 2);
  EXPECT_FALSE(SameBits(x[1].out, y[1].out));
}

TEST_P(PromptConformance, RollingBackAndAppendingEqualsNeverHavingAppended) {
  Host straight(kCells);
  Sequence a;
  Compute(straight, a, {0, kPrompt});
  Decode(straight, a, 50, 10);
  const std::vector<StepResult> expected = Decode(straight, a, 60, 30);
  for (int rejected : kRejected) {
    Host rolled(kCells);
    Sequence b;
    Compute(rolled, b, {0, kPrompt});
    Decode(rolled, b, 50, 10);
    Decode(rolled, b, 900, rejected);
    b.cells.resize(b.cells.size() - rejected);
    ExpectSame(Decode(rolled, b, 60, 30), expected);
  }
}

// To the prompt's end, as `compare` does between its runs, with and without its call to forget.
TEST_P(PromptConformance, RewindingEqualsAFreshPrompt) {
  Host fresh(kCells);
  Sequence a;
  Compute(fresh, a, {0, kPrompt});
  const std::vector<StepResult> expected = Decode(fresh, a, 60, 10);
  for (bool forget : {true, false}) {
    Host rewound(kCells);
    Sequence b;
    Compute(rewound, b, {0, kPrompt});
    Decode(rewound, b, 50, 40);
    b.cells.resize(kPrompt);
    if (forget) rewound.Forget();
    ExpectSame(Decode(rewound, b, 60, 10), expected);
  }
}

// Into the prompt: its queries can't be taken back, so nothing is known of it any more.
TEST_P(PromptConformance, RollingBackIntoThePromptForgetsIt) {
  Host unseen(kCells), rolled(kCells);
  Sequence a, b;
  unseen.Prefill(a, {0, kPrompt - 40}, 1);
  Compute(rolled, b, {0, kPrompt});
  Decode(rolled, b, 50, 5);
  b.cells.resize(kPrompt - 40);
  ExpectSame(Decode(rolled, b, 60, 50), Decode(unseen, a, 60, 50));
}

TEST_P(PromptConformance, ARestoredStateHasNoPrompt) {
  Host fresh(kCells), restored(kCells);
  Sequence a, b;
  fresh.Prefill(a, {0, kPrompt}, 30001);
  Compute(restored, b, {0, kPrompt});
  Decode(restored, b, 50, 5);
  b.cells.resize(kPrompt);
  restored.Restore(b, 30001);
  ExpectSame(Decode(restored, b, 60, 5), Decode(fresh, a, 60, 5));
}

TEST_P(PromptConformance, SequencesOfOneStreamKeepTheirOwnPrompts) {
  constexpr int kTwice = 2 * kCells;
  Host together(kTwice), alone_a(kTwice), alone_b(kTwice);
  Sequence a, b, only_a, only_b;
  for (const RowRange& range : {RowRange{0, 400}, RowRange{820, 1230}}) {
    Compute(together, a, range);
    Compute(alone_a, only_a, range);
    const RowRange other{range.begin + 410, range.end + 410};
    Compute(together, b, other);
    Compute(alone_b, only_b, other);
  }
  for (int i = 0; i < 6; ++i) {
    const int cell = 1700 + 2 * i;
    for (Sequence* sequence : {&a, &b}) together.Append(*sequence, cell + (sequence == &b), 50 + i);
    alone_a.Append(only_a, cell, 50 + i);
    alone_b.Append(only_b, cell + 1, 50 + i);
    const std::vector<StepResult> both = together.Step({&a, &b}, *policy_);
    ExpectSame(both, {alone_a.Step(only_a, *policy_), alone_b.Step(only_b, *policy_)});
    EXPECT_TRUE(both[0].count.sparse && both[1].count.sparse);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, PromptConformance,
                         ::testing::ValuesIn(SpecsWhere([](const Policy& policy) {
                           return !policy.prompt_wants().empty();
                         })),
                         TestName);

class EvictionConformance : public ::testing::TestWithParam<std::string> {};

// A row that a set has left out stays out, over steps and the nodes of a later prompt.
TEST_P(EvictionConformance, EvictedRowsNeverReturn) {
  const std::unique_ptr<Policy> policy = Make(GetParam()), dense = Make("dense");
  for (bool computed : {true, false}) {
    const Recorder recorder(*policy);
    Host host(kCells);
    Sequence sequence;
    if (computed) {
      host.Compute(sequence, {0, 800}, 1, policy->prompt_wants(), 512, *dense);
    } else {
      host.Prefill(sequence, {0, 800}, 1);
    }
    std::vector<RowMask> gone;
    const auto step = [&](uint64_t token) {
      host.Append(sequence, static_cast<int>(sequence.cells.size()), token);
      ASSERT_TRUE(host.Step(sequence, recorder).count.sparse);
      const Selection& chosen = recorder.chosen;
      const size_t n_sets = chosen.k_masks.size() / chosen.n_blocks;
      gone.resize(n_sets);
      for (size_t set = 0; set < n_sets; ++set) {
        gone[set].resize(chosen.n_blocks, 0);
        for (int b = 0; b < chosen.n_blocks; ++b) {
          const uint16_t read = chosen.KMask(static_cast<int>(set))[b];
          ASSERT_EQ(read & gone[set][b], 0) << "block " << b;
          gone[set][b] = static_cast<uint16_t>(recorder.visible[b] & ~read);
        }
      }
    };
    for (int i = 0; i < 50; ++i) step(60 + i);
    host.Compute(sequence, {850, 900}, 7001, policy->prompt_wants(), 50, *dense);
    for (int i = 0; i < 50; ++i) step(260 + i);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EvictionConformance,
                         ::testing::ValuesIn(SpecsWhere([](const Policy& policy) {
                           return policy.evicts();
                         })),
                         TestName);

}  // namespace
}  // namespace condense
