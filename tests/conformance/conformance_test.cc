// What every registered policy must keep (POLICIES.md, conformance). Parameters are specs made from
// the registry's own keys: a new policy is tested without a new line here.
#include <map>
#include <set>

#include "base/text.h"
#include "gtest/gtest.h"
#include "host.h"
#include "made_files.h"
#include "select/key_reader.h"
#include "select/registry.h"
#include "select/test_choice.h"

namespace condense {
namespace {

const PolicyInfo& InfoOf(const std::string& name) {
  for (const PolicyInfo* info : RegisteredPolicies()) {
    if (info->name == name) return *info;
  }
  CONDENSE_CHECK(!"no such policy");
  return *RegisteredPolicies().front();
}

// Settings that the frame carries out, whatever scores the blocks. With sanitizers, where a test
// takes ten times as long, a scorer of each kind (select/scorer.h) has them, and the others those
// below.
const std::vector<std::string> kFrameSettings = {
    "blocks=5,anchor=0,window=70",
    "blocks=4,share=shared",
    "blocks=4,share=head_union",
    "blocks=4,share=rerank,shortlist=2",
    "blocks=4,share=per_head",
    "blocks=3,reuse=4",
    "blocks=3,reuse=8,reuse_cos=0.2",
    "blocks=3,share=per_head,reuse=4",
    "tokens=193",
};
const std::vector<std::string> kSettings = {
    "blocks=2",
    "budget=30%",
    "budget=30%,rotation=on",
    "budget=30%,scan=40%",
    "budget=40%,mass=70%",
    "budget=30%,copies=q8_0",
    "dense_layers=0-1",
    "window=100,sink=20",
    "window=33,anchor=17",
    "order=reversed",
};

bool HasFrameSettings([[maybe_unused]] const std::string& policy) {
#if defined(CONDENSE_FEW_TARGETS)
  return policy == "mean" || policy == "quest" || policy == "oracle";
#else
  return true;
#endif
}

std::vector<std::string> AllSpecs() {
  std::vector<std::string> specs;
  for (const PolicyInfo* info : RegisteredPolicies()) {
    specs.push_back(MadeSpec(*info, ""));
    std::vector<std::string> settings = kSettings;
    if (HasFrameSettings(info->name))
      settings.insert(settings.end(), kFrameSettings.begin(), kFrameSettings.end());
    for (const std::string& setting : settings) {
      const std::string spec = MadeSpec(*info, setting);
      const PolicySpec parsed = ParseSpec(spec).value();
      bool has_all = true;
      for (const auto& [key, value] : parsed.keys) {
        has_all = has_all && HasKey(*info, key);
      }
      if (has_all) specs.push_back(spec);
    }
  }
  return specs;
}

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Result<PolicySpec> spec = ParseSpec(GetParam());
    ASSERT_TRUE(spec.ok()) << spec.error();
    spec_ = spec.value();
    info_ = &InfoOf(spec_.name);
    ASSERT_EQ(ErrorOf(GetParam()), "");
    policy_ = Make(GetParam());
    if (policy_->least_rows() > 512) lead_ = 3 * 1024;
  }

  // A key's value in force; "" where the policy lacks it.
  std::string Value(const std::string& name) const {
    for (const auto& [key, value] : spec_.keys) {
      if (key == name) return value;
    }
    for (const PolicyKey& key : info_->keys) {
      if (key.name == name) return key.default_value;
    }
    return "";
  }
  int Rows(const std::string& name) const {
    const Result<int64_t> rows = ParseInt(Value(name));
    return rows.ok() ? static_cast<int>(rows.value()) : 0;
  }
  int AnchorRows() const { return HasKey(*info_, "sink") ? Rows("sink") : Rows("anchor"); }

  // The same settings with all the budget there is.
  std::string FullBudget() const {
    PolicySpec full{.name = spec_.name, .keys = {}};
    for (const auto& [key, value] : spec_.keys) {
      if (key != "blocks" && key != "tokens" && key != "budget") full.keys.emplace_back(key, value);
    }
    if (HasKey(*info_, "blocks")) {
      full.keys.emplace_back("blocks", "1000000");
    } else if (HasKey(*info_, "tokens")) {
      full.keys.emplace_back("tokens", "1000000");
    } else if (HasKey(*info_, "budget")) {
      full.keys.emplace_back("budget", "100%");
    } else if (HasKey(*info_, "window")) {
      std::erase_if(full.keys, [](const auto& key) { return key.first == "window"; });
      full.keys.emplace_back("window", "1000000");
    } else {
      EXPECT_TRUE(policy_->is_dense()) << "no key of this policy says how much it reads";
    }
    return PrintSpec(full);
  }

  // The rows that a sequence of these tests begins with, before those that the test is about.
  void Begin(Host& host, Sequence& sequence, int first_cell = 0) const {
    host.Prefill(sequence, {first_cell, first_cell + lead_}, 5001);
  }
  RowRange After(RowRange cells, int n_sequences = 1) const {
    return {cells.begin + n_sequences * lead_, cells.end + n_sequences * lead_};
  }

  PolicySpec spec_;
  const PolicyInfo* info_ = nullptr;
  // A policy that reads short contexts whole gets longer ones.
  int lead_ = 0;
  std::unique_ptr<Policy> policy_;
};

TEST_P(Conformance, FullBudgetIsBitIdenticalToDense) {
  const auto full = Make(FullBudget());
  const auto dense = Make("dense");
  Host host(lead_ + 1024);
  Sequence sequence;
  Begin(host, sequence);
  host.Prefill(sequence, After({3, 800}), 1);
  for (int i = 0; i < 3; ++i) {
    host.Append(sequence, lead_ + 800 + i, 50 + i);
    const StepResult a = host.Step(sequence, *full), b = host.Step(sequence, *dense);
    EXPECT_FALSE(a.count.sparse);
    if (policy_->reverse_order()) {
      // The noise-floor control: another order of summation shows, and shows little.
      EXPECT_FALSE(SameBits(a.out, b.out));
      for (size_t c = 0; c < a.out.size(); ++c) EXPECT_NEAR(a.out[c], b.out[c], 1e-4);
    } else {
      EXPECT_TRUE(SameBits(a.out, b.out));
    }
  }
}

TEST_P(Conformance, SelectionsAreInsideTheVisibleRowsAndHoldWhatIsAlwaysRead) {
  std::map<std::string, std::vector<RowRange>> patterns;
  for (int n : {1, 15, 16, 17, 63, 64, 65, 66, 97, 200, 777, 1024}) {
    patterns["first " + std::to_string(n)] = {{0, n}};
  }
  patterns["starts inside a block"] = {{37, 901}};
  patterns["holes"] = {{5, 100}, {101, 300}, {302, 303}, {320, 640}, {650, 1000}};
  for (int piece = 0; piece < 1024; piece += 48) {
    patterns["every other piece"].push_back({piece, std::min(piece + 24, 1024)});
  }
  int sparse = 0;
  for (const auto& [name, ranges] : patterns) {
    Host host(lead_ + 1024);
    Sequence sequence;
    Begin(host, sequence);
    for (const RowRange& range : ranges) host.Prefill(sequence, After(range), 1);
    const RowMask visible = host.Visible(sequence);
    const Selection selection = host.Select(sequence, *policy_);
    if (selection.dense) continue;
    ++sparse;
    ASSERT_EQ(selection.n_blocks, static_cast<int>(visible.size())) << name;
    const int n_sets = selection.per_query_head ? kHeads : kKvHeads;
    ASSERT_EQ(selection.k_masks.size(), static_cast<size_t>(n_sets) * selection.n_blocks) << name;
    const RowMask anchor = FirstRows(visible, AnchorRows());
    const RowMask window = LastRows(visible, Rows("window"));
    bool left_out = false;
    for (int set = 0; set < n_sets; ++set) {
      const uint16_t* k = selection.KMask(set);
      const uint16_t* v = selection.VMask(set);
      for (int b = 0; b < selection.n_blocks; ++b) {
        EXPECT_EQ(k[b] & ~visible[b], 0) << name << " block " << b;
        EXPECT_EQ(v[b] & ~k[b], 0) << name << " block " << b;
        EXPECT_EQ((anchor[b] | window[b]) & ~v[b], 0) << name << " block " << b;
        left_out = left_out || (visible[b] & ~k[b]) != 0;
      }
      EXPECT_TRUE(HasRow({v, visible.size()}, sequence.cells.back())) << name;
    }
    EXPECT_TRUE(left_out) << name;
  }
  if (policy_->is_dense()) {
    EXPECT_EQ(sparse, 0);
  } else {
    EXPECT_GE(sparse, 4);
  }
}

TEST_P(Conformance, OneAndTwoThreadsGiveTheSameBits) {
  Host one(lead_ + 1024), two(lead_ + 1024);
  Sequence a, b;
  Begin(one, a);
  Begin(two, b);
  one.Prefill(a, After({0, 890}), 1);
  two.Prefill(b, After({0, 890}), 1);
  for (int i = 0; i < 6; ++i) {
    one.Append(a, lead_ + 890 + i, 50 + i);
    two.Append(b, lead_ + 890 + i, 50 + i);
    const StepResult x = one.Step(a, *policy_, 1), y = two.Step(b, *policy_, 2);
    EXPECT_EQ(x.count.sparse, !policy_->is_dense());
    EXPECT_TRUE(SameBits(x.out, y.out)) << "step " << i;
    EXPECT_EQ(x.count.unique_rows, y.count.unique_rows);
    EXPECT_EQ(x.count.summary_bytes, y.count.summary_bytes);
  }
}

// Two sequences share the cells of one stream, in unaligned pieces, and step in one node.
TEST_P(Conformance, OneSequenceAmongSeveralSelectsAsItDoesAlone) {
  const int n_cells = 2 * lead_ + 2048;
  Host together(n_cells), alone_a(n_cells), alone_b(n_cells);
  Sequence a, b, only_a, only_b;
  Begin(together, a);
  Begin(alone_a, only_a);
  Begin(together, b, lead_);
  Begin(alone_b, only_b, lead_);
  const std::vector<RowRange> cells_a = {{0, 200}, {421, 700}, {1003, 1200}};
  const std::vector<RowRange> cells_b = {{200, 421}, {700, 1003}};
  for (const RowRange& range : cells_a) {
    together.Prefill(a, After(range, 2), 1);
    alone_a.Prefill(only_a, After(range, 2), 1);
  }
  for (const RowRange& range : cells_b) {
    together.Prefill(b, After(range, 2), 9001);
    alone_b.Prefill(only_b, After(range, 2), 9001);
  }
  int sparse = 0;
  for (int i = 0; i < 10; ++i) {
    const int cell = 2 * lead_ + 1200 + 2 * i;
    together.Append(a, cell, 50 + i);
    together.Append(b, cell + 1, 70 + i);
    alone_a.Append(only_a, cell, 50 + i);
    alone_b.Append(only_b, cell + 1, 70 + i);
    const std::vector<StepResult> both = together.Step({&a, &b}, *policy_);
    const StepResult x = alone_a.Step(only_a, *policy_), y = alone_b.Step(only_b, *policy_);
    EXPECT_TRUE(SameBits(both[0].out, x.out)) << "step " << i;
    EXPECT_TRUE(SameBits(both[1].out, y.out)) << "step " << i;
    EXPECT_EQ(both[0].count.unique_rows, x.count.unique_rows);
    EXPECT_EQ(both[1].count.unique_rows, y.count.unique_rows);
    sparse += both[0].count.sparse + both[1].count.sparse;
  }
  EXPECT_EQ(sparse, policy_->is_dense() ? 0 : 20);
}

TEST_P(Conformance, OneStreamAmongSeveralSelectsAsItDoesAlone) {
  const int n_cells = lead_ + 1024;
  Host together(n_cells, 2), alone_a(n_cells), alone_b(n_cells);
  Sequence a, b, only_a, only_b;
  b.stream = 1;
  Begin(together, a);
  Begin(together, b);
  Begin(alone_a, only_a);
  Begin(alone_b, only_b);
  together.Prefill(a, After({0, 850}), 1);
  together.Prefill(b, After({16, 700}), 9001);
  alone_a.Prefill(only_a, After({0, 850}), 1);
  alone_b.Prefill(only_b, After({16, 700}), 9001);
  for (int i = 0; i < 6; ++i) {
    const int cell_a = lead_ + 850 + i, cell_b = lead_ + 700 + i;
    together.Append(a, cell_a, 50 + i);
    together.Append(b, cell_b, 70 + i);
    alone_a.Append(only_a, cell_a, 50 + i);
    alone_b.Append(only_b, cell_b, 70 + i);
    const std::vector<StepResult> both = together.Step({&a, &b}, *policy_);
    EXPECT_TRUE(SameBits(both[0].out, alone_a.Step(only_a, *policy_).out)) << "step " << i;
    EXPECT_TRUE(SameBits(both[1].out, alone_b.Step(only_b, *policy_).out)) << "step " << i;
    EXPECT_EQ(both[0].count.sparse, !policy_->is_dense());
  }
}

// Appends tokens one by one and steps. Rows follow the cells' order.
std::vector<StepResult> Decode(Host& host, Sequence& sequence, const Policy& policy,
                               const std::vector<uint64_t>& tokens) {
  std::vector<StepResult> steps;
  for (uint64_t token : tokens) {
    host.Append(sequence, static_cast<int>(sequence.cells.size()), token);
    steps.push_back(host.Step(sequence, policy));
  }
  return steps;
}

TEST_P(Conformance, RollingBackAndAppendingEqualsNeverHavingAppended) {
  const std::vector<uint64_t> first = {50, 51, 52, 53, 54, 55, 56};
  const std::vector<uint64_t> next = {60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71};
  Host straight(lead_ + 1024);
  Sequence a;
  Begin(straight, a);
  straight.Prefill(a, After({0, 880}), 1);
  Decode(straight, a, *policy_, first);
  const std::vector<StepResult> x = Decode(straight, a, *policy_, next);
  for (int rejected : {1, 3, 9}) {
    Host rolled(lead_ + 1024);
    Sequence b;
    Begin(rolled, b);
    rolled.Prefill(b, After({0, 880}), 1);
    Decode(rolled, b, *policy_, first);
    std::vector<uint64_t> draft;
    for (int i = 0; i < rejected; ++i) draft.push_back(900 + i);
    Decode(rolled, b, *policy_, draft);
    b.cells.resize(b.cells.size() - rejected);
    const std::vector<StepResult> y = Decode(rolled, b, *policy_, next);
    for (size_t i = 0; i < next.size(); ++i) {
      EXPECT_TRUE(SameBits(x[i].out, y[i].out)) << rejected << " rejected, step " << i;
      EXPECT_EQ(x[i].count.unique_rows, y[i].count.unique_rows);
      EXPECT_EQ(x[i].count.sparse, !policy_->is_dense());
    }
  }
}

// Back into the prompt: the sparse decisions start anew.
TEST_P(Conformance, RollingBackIntoThePromptEqualsAShorterPrompt) {
  Host straight(lead_ + 1024), rolled(lead_ + 1024);
  Sequence a, b;
  Begin(straight, a);
  Begin(rolled, b);
  straight.Prefill(a, After({0, 850}), 1);
  rolled.Prefill(b, After({0, 880}), 1);
  Decode(rolled, b, *policy_, {50, 51, 52, 53, 54, 55});
  b.cells.resize(lead_ + 850);
  const std::vector<uint64_t> next = {60, 61, 62, 63, 64, 65, 66, 67, 68, 69};
  const auto x = Decode(straight, a, *policy_, next), y = Decode(rolled, b, *policy_, next);
  for (size_t i = 0; i < next.size(); ++i) {
    EXPECT_TRUE(SameBits(x[i].out, y[i].out)) << "step " << i;
    EXPECT_EQ(x[i].count.sparse, !policy_->is_dense());
  }
}

// Nobody says that the rows are others now: the next step that is no mere continuation sees it.
TEST_P(Conformance, ARestoredStateEqualsAFreshOne) {
  Host fresh(lead_ + 1024), restored(lead_ + 1024);
  Sequence a, b;
  fresh.Prefill(a, {0, lead_ + 850}, 30001);
  Begin(restored, b);
  restored.Prefill(b, After({0, 880}), 1);
  Decode(restored, b, *policy_, {50, 51, 52});
  b.cells.resize(lead_ + 850);
  restored.Restore(b, 30001);
  const std::vector<uint64_t> next = {60, 61, 62};
  const auto x = Decode(fresh, a, *policy_, next), y = Decode(restored, b, *policy_, next);
  for (size_t i = 0; i < next.size(); ++i) {
    EXPECT_TRUE(SameBits(x[i].out, y[i].out)) << "step " << i;
    EXPECT_EQ(x[i].count.sparse, !policy_->is_dense());
  }
}

TEST_P(Conformance, RowsReadEqualTheBudgetWithinABlock) {
  if (policy_->is_dense()) return;
  for (int n : {700, 887, 896, 1000}) {
    Host host(lead_ + 1024);
    Sequence sequence;
    Begin(host, sequence);
    host.Prefill(sequence, After({0, n - 1}), 1);
    host.Append(sequence, lead_ + n - 1, 5);
    const Selection selection = host.Select(sequence, *policy_);
    ASSERT_FALSE(selection.dense);
    const int n_sets = selection.per_query_head ? kHeads : kKvHeads;
    auto set_rows = [&](int set) {
      return CountRows({selection.KMask(set), host.Visible(sequence).size()});
    };
    const StepCount count = host.Step(sequence, *policy_).count;
    ASSERT_TRUE(count.sparse);
    uint64_t nominal = 0;
    for (int set = 0; set < n_sets; ++set) nominal += set_rows(set) * (kHeads / n_sets);
    EXPECT_EQ(count.nominal_rows, nominal);

    // The key given last in this order is the one in force: a given one hides `blocks`' default.
    bool given_tokens = false, given_budget = false;
    for (const auto& [key, value] : spec_.keys) {
      given_tokens = given_tokens || key == "tokens";
      given_budget = given_budget || key == "budget";
    }
    if (!HasKey(*info_, "blocks") && !HasKey(*info_, "tokens"))
      given_budget = HasKey(*info_, "budget");
    if (given_budget) {
      const double share = ParsePercent(Value("budget")).value() / 100;
      const double allowed = share * static_cast<double>(count.dense_bytes);
      // Upper lines read every key to choose; their budget buys rows.
      const bool upper_line = info_->name == "oracle" || info_->name == "topk";
      const double bytes = static_cast<double>(count.k_bytes + count.v_bytes +
                                               (upper_line ? 0 : count.summary_bytes));
      EXPECT_LE(bytes, allowed);
      // One block that could not be paid, and 16 rows that the anchor's and the cut block did not
      // add. A share of the mass may take less than the budget.
      if (HasKey(*info_, "mass") && Value("mass") != "100%") continue;
      EXPECT_GT(bytes, allowed - 2 * 16 * kKvHeads * 2 * 2 * kDim);
      continue;
    }
    int expected = AnchorRows() + Rows("window");
    if (given_tokens || !HasKey(*info_, "blocks")) {
      if (HasKey(*info_, "tokens")) expected = Rows("tokens");
    } else {
      expected += 16 * Rows("blocks");
    }
    for (int set = 0; set < n_sets; ++set) {
      EXPECT_LE(set_rows(set), expected) << "set " << set << " n " << n;
      EXPECT_GE(set_rows(set), expected - 16) << "set " << set << " n " << n;
    }
  }
}

TEST_P(Conformance, DenseLayersAreKept) {
  if (!HasKey(*info_, "dense_layers")) return;
  Host host(lead_ + 1024);
  Sequence sequence;
  Begin(host, sequence);
  host.Prefill(sequence, After({0, 900}), 1);
  host.Append(sequence, lead_ + 900, 5);
  const bool kept = Value("dense_layers") == "0-1";
  EXPECT_EQ(host.Step(sequence, *policy_, 1, 1).count.reason,
            kept ? Fallback::kLayer : Fallback::kNone);
  EXPECT_EQ(host.Step(sequence, *policy_, 1, 2).count.reason, Fallback::kNone);
}

INSTANTIATE_TEST_SUITE_P(Specs, Conformance, ::testing::ValuesIn(AllSpecs()), TestName);

TEST(ConformanceCoverage, EveryRegisteredPolicyIsUnderTest) {
  std::set<std::string> names;
  for (const std::string& spec : AllSpecs()) names.insert(ParseSpec(spec).value().name);
  EXPECT_EQ(names.size(), RegisteredPolicies().size());
  EXPECT_TRUE(names.contains("test_split"));
}

}  // namespace
}  // namespace condense
