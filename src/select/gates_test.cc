// Policies by trained gates on made ones: what they refuse, when they step aside, rotation back,
// keys kept between steps. Scores against NumPy: tests/gates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/rope.h"
#include "select/made_gates.h"
#include "select/test_allocations.h"
#include "select/test_cache.h"
#include "select/test_choice.h"

namespace condense {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The file that the reader serves, whatever its name.
TensorFile& File() {
  static TensorFile file;
  return file;
}

class GatesTest : public ::testing::TestWithParam<std::string> {
 protected:
  GatesTest() {
    SetTensorFileReader(
        [](const std::string&, const std::string&) -> Result<TensorFile> { return File(); });
    File() = MadeGates(kind_, {});
  }
  ~GatesTest() override { SetTensorFileReader(nullptr); }

  std::string Spec(const std::string& keys = "tokens=193,anchor=0,window=64") const {
    return kind_ + ":gates=g.gguf," + keys;
  }
  std::string Key(const std::string& name) const { return kind_ + "." + name; }
  std::string FirstTensor() const {
    return kind_ == "seer" ? "blk.1.seer_k.weight" : "blk.1.nsa_k_compress.weight";
  }
  Fallback ReasonOf(TestCache& cache, int layer = 0, int newest = -1) const {
    LayerQuery query = cache.Query();
    query.layer = layer;
    query.newest_row = newest;
    Selection selection;
    Make(Spec())->Select(query, selection);
    EXPECT_EQ(selection.dense, selection.reason != Fallback::kNone);
    return selection.reason;
  }

  const std::string kind_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Kinds, GatesTest, ::testing::Values("seer", "nsa"),
                         [](const auto& kind) { return kind.param; });

TEST_P(GatesTest, WithoutGatesSaysWhatIsNeeded) {
  const std::string error = ErrorOf(kind_);
  EXPECT_THAT(error, AllOf(StartsWith(kind_ + ": gates=FILE is needed"), HasSubstr("GATES.md"),
                           HasSubstr("publish")));
  EXPECT_EQ(ErrorOf(kind_ + ":budget=5%"), error);
  SetTensorFileReader(nullptr);
  EXPECT_THAT(ErrorOf(Spec()), HasSubstr("'g.gguf' cannot be read"));
}

TEST_P(GatesTest, RefusesByNameWithFoundAndWanted) {
  const std::string tensor = FirstTensor();
  const auto error_with = [&](const auto& change) {
    File() = MadeGates(kind_, {});
    change(File());
    return ErrorOf(Spec());
  };
  EXPECT_EQ(error_with([](TensorFile&) {}), "");
  EXPECT_THAT(error_with([](TensorFile& f) { f.values["general.architecture"] = "qwen3"; }),
              AllOf(HasSubstr("'qwen3'"), HasSubstr("wanted '" + kind_ + "'")));
  EXPECT_THAT(error_with([&](TensorFile& f) { f.tensors.erase(tensor); }),
              AllOf(HasSubstr("tensor '" + tensor + "' is missing"), HasSubstr("wanted [2, ")));
  EXPECT_THAT(error_with([&](TensorFile& f) {
                f.tensors[tensor].shape = {2, 5, 8};
              }),
              AllOf(HasSubstr(tensor), HasSubstr("is [2, 5, 8], wanted [2, ")));
  EXPECT_THAT(error_with([&](TensorFile& f) {
                f.tensors[tensor].values.clear();
                f.tensors[tensor].type = "q8_0";
              }),
              AllOf(HasSubstr(tensor), HasSubstr("of type q8_0, wanted f32, f16 or bf16")));
  EXPECT_THAT(error_with([&](TensorFile& f) { f.values.erase(Key("block_count")); }),
              HasSubstr("value '" + Key("block_count") + "' is missing"));
  EXPECT_THAT(error_with([&](TensorFile& f) { f.values[Key("block_count")] = 2.5; }),
              HasSubstr("is 2.5, wanted an integer from 1"));
  EXPECT_THAT(
      error_with([&](TensorFile& f) { f.values[Key("attention.head_count")] = int64_t{5}; }),
      HasSubstr("is 5, wanted a multiple of head_count_kv, 2"));
  EXPECT_THAT(error_with([&](TensorFile& f) { f.values[Key("rope.type")] = "mrope"; }),
              HasSubstr("is 'mrope', wanted one of none, neox, norm"));
  EXPECT_THAT(error_with([&](TensorFile& f) { f.values[Key("rope.scaling.type")] = "yarn"; }),
              HasSubstr("is 'yarn', wanted one of none, linear"));
  EXPECT_THAT(
      error_with([&](TensorFile& f) { f.values[Key("rope.dimension_count")] = int64_t{5}; }),
      HasSubstr("is 5, wanted an even number"));
}

TEST_P(GatesTest, RefusesBudgetsThatSayTwoThings) {
  EXPECT_THAT(ErrorOf(Spec("tokens=193,budget=5%")), HasSubstr("exclude each other"));
  EXPECT_THAT(ErrorOf(Spec("tokens=70,anchor=10,window=64")),
              HasSubstr("tokens=70 is less than anchor + window, 74"));
}

// Gates of another model say nothing: the step is dense and counted.
TEST_P(GatesTest, StepsThatTheGatesDoNotFitAreDense) {
  TestCache cache(1000, 2, 4, 16), more_heads(1000, 2, 8, 16), more_kv(1000, 4, 4, 16),
      wider(1000, 2, 4, 32), few(190, 2, 4, 16);
  EXPECT_EQ(ReasonOf(cache), Fallback::kNone);
  EXPECT_EQ(ReasonOf(cache, 1), Fallback::kNone);
  EXPECT_EQ(ReasonOf(cache, 2), Fallback::kLayer);
  EXPECT_EQ(ReasonOf(more_heads), Fallback::kLayer);
  EXPECT_EQ(ReasonOf(more_kv), Fallback::kLayer);
  EXPECT_EQ(ReasonOf(wider), Fallback::kLayer);
  EXPECT_EQ(ReasonOf(cache, 0, 999), Fallback::kNone);
  EXPECT_EQ(ReasonOf(cache, 0, 500), Fallback::kLayer);  // positions are not the order of cells
  EXPECT_EQ(ReasonOf(few), Fallback::kShort);
  cache.QueryHead(1)[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ReasonOf(cache), Fallback::kNan);
}

TEST_P(GatesTest, ThreadsChangeNothing) {
  TestCache one(1000, 2, 4, 16), two(1000, 2, 4, 16);
  for (uint32_t seed = 0; seed < 5; ++seed) {
    one.SetQuery(seed);
    two.SetQuery(seed);
    const Selection alone = Select(one, Spec(), 1);
    ASSERT_FALSE(alone.dense);
    EXPECT_TRUE(Same(alone, Select(two, Spec(), 2)));
  }
}

TEST_P(GatesTest, AWarmStepAllocatesNothing) {
  TestCache cache(1100, 2, 4, 16);
  const auto policy = Make(Spec());
  Selection selection;
  cache.See({{0, 1000}});
  policy->Select(cache.Query(), selection);
  for (int n = 1001; n < 1100; ++n) {
    cache.See({{0, n}});
    cache.index().MarkWritten(n - 1);
    const LayerQuery query = cache.Query();
    const long before = Allocations();
    policy->Select(query, selection);
    EXPECT_EQ(Allocations(), before) << n;
    EXPECT_FALSE(selection.dense);
  }
}

// Keys are kept while their rows are, whoever wrote others; what was written is made anew.
TEST_P(GatesTest, KeysFollowTheirRows) {
  TestCache cache(1000, 2, 4, 16), fresh(1000, 2, 4, 16);
  Select(cache, Spec());
  const uint64_t made = cache.index().gates().n_made();
  const auto policy = Make(Spec());
  Selection selection;
  policy->Select(cache.Query(), selection);  // another owner
  EXPECT_EQ(cache.index().gates().n_made(), 2 * made);
  policy->Select(cache.Query(), selection);
  EXPECT_EQ(cache.index().gates().n_made(), 2 * made);
  for (int row = 300; row < 320; ++row) {
    for (TestCache* to : {&cache, &fresh}) {
      for (int c = 0; c < 16; ++c) to->Key(1, row)[c] = static_cast<float>(row % 7 * c);
    }
    cache.index().MarkWritten(row);
  }
  policy->Select(cache.Query(), selection);
  EXPECT_GT(cache.index().gates().n_made(), 2 * made);
  EXPECT_LT(cache.index().gates().n_made(), 2 * made + 8);
  EXPECT_TRUE(Same(selection, Select(fresh, Spec())));
}

// A byte budget counts the gate's keys, and buys window where it does not pay for them.
TEST_P(GatesTest, BytesAreKeptTo) {
  TestCache cache(1000, 2, 4, 16);
  const double row = 2.0 * 16 * sizeof(float), dense = 1000 * 2 * row;
  for (double percent : {7.0, 10.0, 30.0, 60.0}) {
    const Selection selection = Select(
        cache, Spec("budget=" + std::to_string(percent).substr(0, 4) + "%,anchor=0,window=64"));
    ASSERT_FALSE(selection.dense) << percent;
    const double bytes = BytesRead(selection, cache.view());
    EXPECT_LE(bytes, percent / 100 * dense);
    EXPECT_GT(bytes, percent / 100 * dense - 2 * row);
  }
  EXPECT_EQ(Select(cache, Spec("budget=5%,anchor=0,window=64")).reason, Fallback::kBudget);
}

TEST(Rope, BackUndoesForth) {
  for (const RopePairs pairs : {RopePairs::kNeox, RopePairs::kNorm}) {
    const RopeRule rule{.pairs = pairs, .n_dims = 12, .factors = {1, 1, 2, 2, 4, 4}};
    RopeTable table;
    table.Cover(rule, 1, 5000, 5000);
    std::vector<float> values(16), rotated;
    for (int c = 0; c < 16; ++c) values[c] = static_cast<float>(c * c % 11) - 5;
    rotated = values;
    Rotate(rule, table.At(4321), rotated.data());
    EXPECT_NE(rotated[0], values[0]);
    EXPECT_EQ(rotated[13], values[13]);
    RotateBack(rule, table.At(4321), rotated.data());
    for (int c = 0; c < 16; ++c) EXPECT_NEAR(rotated[c], values[c], 1e-5);
  }
}

}  // namespace
}  // namespace condense
