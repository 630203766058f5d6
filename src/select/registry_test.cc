#include "select/registry.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "select/key_reader.h"
#include "select/test_choice.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(Registry, EveryPolicyFileRegistersItsNameAndNoOtherIsThere) {
  std::set<std::string> files, names;
  for (const auto& entry : std::filesystem::directory_iterator(CONDENSE_POLICY_DIR)) {
    if (entry.path().extension() == ".cc") files.insert(entry.path().stem().string());
  }
  for (const PolicyInfo* info : RegisteredPolicies()) names.insert(info->name);
  EXPECT_EQ(files, names);
  EXPECT_FALSE(files.empty());
}

TEST(Registry, NamesAscendAndEveryLineIsThere) {
  std::string last;
  for (const PolicyInfo* info : RegisteredPolicies()) {
    EXPECT_LT(last, info->name);
    last = info->name;
    EXPECT_FALSE(info->summary.empty()) << info->name;
    for (const PolicyKey& key : info->keys) EXPECT_FALSE(key.help.empty()) << key.name;
  }
}

TEST(ParseSpec, Grammar) {
  const Result<PolicySpec> spec = ParseSpec("mean:blocks=8,profile=a=b:c");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec.value().name, "mean");
  ASSERT_EQ(spec.value().keys.size(), 2u);
  EXPECT_EQ(spec.value().keys[1], std::make_pair(std::string("profile"), std::string("a=b:c")));
  EXPECT_EQ(PrintSpec(spec.value()), "mean:blocks=8,profile=a=b:c");
}

TEST(ParseSpec, EachMistakeIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the policy spec is empty"},
      {":blocks=1", "no name before ':'"},
      {"Mean", "'Mean' is no name"},
      {" mean", "' mean' is no name"},
      {"mean:", "nothing follows ':'"},
      {"mean:blocks=8,", "nothing follows the last ','"},
      {"mean:,blocks=8", "an empty part before ','"},
      {"mean:blocks=8,,window=64", "an empty part before ','"},
      {"mean:blocks", "key 'blocks' has no value: write blocks=…"},
      {"mean:blocks=", "key 'blocks' has no value"},
      {"mean:=8", "'' is no key"},
      {"mean: blocks=8", "' blocks' is no key"},
      {"mean:blocks=8,blocks=9", "key 'blocks' is given twice"},
  };
  for (const auto& [text, message] : cases) {
    const Result<PolicySpec> spec = ParseSpec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_THAT(spec.error(), HasSubstr(message));
  }
}

TEST(ParseSpec, PrintingAndParsingRoundTrip) {
  std::mt19937 rng(4);
  const std::string name_chars = "abcz019_@", value_chars = "abcZ019_=:%.-/ ,\\";
  auto word = [&](const std::string& chars) {
    std::string text;
    for (unsigned n = 1 + rng() % 5; n > 0; --n) text += chars[rng() % chars.size()];
    return text;
  };
  for (int i = 0; i < 500; ++i) {
    PolicySpec spec{.name = word(name_chars), .keys = {}};
    std::set<std::string> seen;
    for (unsigned n = rng() % 5; n > 0; --n) {
      const std::string key = word(name_chars);
      if (seen.insert(key).second) spec.keys.emplace_back(key, word(value_chars));
    }
    const std::string text = PrintSpec(spec);
    const Result<PolicySpec> parsed = ParseSpec(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.error();
    EXPECT_EQ(parsed.value(), spec) << text;
    EXPECT_EQ(PrintSpec(parsed.value()), text);
  }
}

TEST(MakePolicy, UnknownNamesNameTheNearest) {
  EXPECT_EQ(ErrorOf("quset"), "policy 'quset' is unknown; did you mean 'quest'?");
  EXPECT_THAT(ErrorOf("xyzzyxyzzy"), HasSubstr("policy 'xyzzyxyzzy' is unknown (policies: "));
  EXPECT_THAT(ErrorOf("xyzzyxyzzy"), HasSubstr(", condense, dense, "));
  EXPECT_THAT(
      ErrorOf("mean:blokcs=8"),
      HasSubstr("policy 'mean' has no key 'blokcs'; did you mean 'blocks'? (keys: blocks, "));
}

TEST(MakePolicy, ValuesOutOfRangeNameTheRange) {
  EXPECT_EQ(ErrorOf("mean:blocks=-1"), "mean: blocks=-1 is out of range: 0 to 1000000");
  EXPECT_EQ(ErrorOf("mean:blocks=x"), "mean: blocks: 'x' is not a whole number");
  EXPECT_EQ(ErrorOf("mean:window=0"), "mean: window=0 is out of range: 1 to 16000000");
  EXPECT_EQ(ErrorOf("mean:budget=5"), "mean: budget: '5' is no percentage (such as 5%)");
  EXPECT_EQ(ErrorOf("mean:budget=0%"), "mean: budget=0% is out of range: 0.01% to 100%");
  EXPECT_EQ(ErrorOf("mean:budget=101%"), "mean: budget=101% is out of range: 0.01% to 100%");
  EXPECT_EQ(ErrorOf("mean:reuse_cos=2"), "mean: reuse_cos=2 is out of range: -1 to 1");
  EXPECT_THAT(ErrorOf("mean:share=kvgroup"),
              HasSubstr("share=kvgroup is unknown; did you mean 'kv_group'? (shared, kv_group, "));
  for (const char* bad : {"1-0", "-1", "a", "0-", "-", "0-1-2", "0-99999999999"}) {
    EXPECT_THAT(ErrorOf(std::string("mean:dense_layers=") + bad),
                HasSubstr("is no range of layers"));
  }
  EXPECT_THAT(ErrorOf("dense:order=revresed"), HasSubstr("did you mean 'reversed'?"));
}

TEST(MakePolicy, KeysWithoutEffectAreErrors) {
  EXPECT_EQ(ErrorOf("mean:blocks=8,budget=5%"),
            "mean: blocks and budget exclude each other: give one of them");
  EXPECT_THAT(ErrorOf("mean:tokens=97,blocks=2"), HasSubstr("exclude each other"));
  EXPECT_THAT(ErrorOf("mean:shortlist=2"), HasSubstr("only with share=rerank"));
  EXPECT_THAT(ErrorOf("mean:reuse=1,reuse_cos=0.5"), HasSubstr("reuse_cos has no effect"));
  EXPECT_EQ(ErrorOf("mean:tokens=64"),
            "mean: tokens=64 is less than anchor + window, 65 rows that are always read");
}

TEST(MakePolicy, CanonicalSpecs) {
  EXPECT_EQ(SpecOf("dense"), "dense");
  EXPECT_EQ(SpecOf("dense:order=forward"), "dense");
  EXPECT_EQ(SpecOf("dense:order=reversed"), "dense:order=reversed");
  EXPECT_EQ(SpecOf("mean"), "mean:blocks=8");
  EXPECT_EQ(SpecOf("mean:window=64,blocks=08"), "mean:blocks=8");
  EXPECT_EQ(SpecOf("mean:tokens=193"), "mean:tokens=193");
  EXPECT_EQ(SpecOf("quest:budget=5.0%"), "quest:budget=5%");
  EXPECT_EQ(SpecOf("quest:dense_layers=0-1,share=per_head"),
            "quest:blocks=8,share=per_head,dense_layers=0-1");
  EXPECT_EQ(SpecOf("mean:dense_layers=3-3"), "mean:blocks=8,dense_layers=3");
  EXPECT_EQ(SpecOf("mean:dense_layers=none"), "mean:blocks=8");
  EXPECT_EQ(SpecOf("mean:share=rerank,shortlist=4"), "mean:blocks=8,share=rerank");
  EXPECT_EQ(SpecOf("mean:reuse_cos=0.90,reuse=4"), "mean:blocks=8,reuse=4,reuse_cos=0.9");
  EXPECT_EQ(SpecOf("mean:reuse_cos=0.9"), "mean:blocks=8,reuse_cos=0.9");
  EXPECT_EQ(SpecOf("window"), "window:window=64");
  EXPECT_EQ(SpecOf("sink:sink=8"), "sink:window=64,sink=8");
  EXPECT_EQ(SpecOf("random:seed=1"), "random:blocks=8");
}

// Any keys with any of a few values: what is made prints a spec that makes the same spec.
TEST(MakePolicy, CanonicalSpecsAreFixedPoints) {
  std::mt19937 rng(5);
  const std::vector<std::string> values = {
      "0",    "1",   "2", "65",     "400",      "5%",     "12.50%",   "0.5",     "off",
      "none", "0-1", "4", "rerank", "per_head", "shared", "kv_group", "reversed"};
  int made = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto infos = RegisteredPolicies();
    const PolicyInfo& info = *infos[rng() % infos.size()];
    PolicySpec spec{.name = info.name, .keys = {}};
    for (const PolicyKey& key : info.keys) {
      if (rng() % 4 == 0) spec.keys.emplace_back(key.name, values[rng() % values.size()]);
    }
    std::shuffle(spec.keys.begin(), spec.keys.end(), rng);
    const Result<BoundPolicy> bound = MakePolicy(PrintSpec(spec));
    if (!bound.ok()) {
      EXPECT_THAT(bound.error(), ::testing::StartsWith(info.name + ": "));
      continue;
    }
    ++made;
    EXPECT_EQ(SpecOf(bound.value().spec), bound.value().spec) << PrintSpec(spec);
  }
  EXPECT_GT(made, 1000);
}

TEST(PoliciesJson, CarriesWhatTheHeaderSays) {
  const auto list = nlohmann::json::parse(PoliciesJson());
  const auto infos = RegisteredPolicies();
  ASSERT_EQ(list.size(), infos.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(list[i]["name"], infos[i]->name);
    EXPECT_EQ(list[i]["summary"], infos[i]->summary);
    EXPECT_EQ(list[i]["source"], infos[i]->source);
    EXPECT_EQ(list[i]["label"], infos[i]->label);
    ASSERT_EQ(list[i]["keys"].size(), infos[i]->keys.size());
    for (size_t k = 0; k < infos[i]->keys.size(); ++k) {
      EXPECT_EQ(list[i]["keys"][k]["name"], infos[i]->keys[k].name);
      EXPECT_EQ(list[i]["keys"][k]["default"], infos[i]->keys[k].default_value);
      EXPECT_EQ(list[i]["keys"][k]["help"], infos[i]->keys[k].help);
    }
  }
}

// A key that a policy declares but does not read under these settings is an error, not a silent
// no-op.
TEST(KeyReader, AGivenKeyThatNobodyReadIsAnError) {
  PolicyInfo info;
  info.name = "probe";
  info.keys = {{"a", "1", "a"}, {"b", "2", "b"}, {"flag", "off", "flag"}};
  const PolicySpec spec = ParseSpec("probe:b=3,flag=on").value();
  KeyReader reader(info, spec);
  EXPECT_EQ(reader.Int("a", 0, 9), 1);
  EXPECT_TRUE(reader.Bool("flag"));
  ASSERT_FALSE(reader.Finish().ok());
  EXPECT_EQ(reader.Finish().error(), "probe: b=3 has no effect beside the other keys");
  EXPECT_EQ(reader.Int("b", 0, 9), 3);
  EXPECT_TRUE(reader.Finish().ok());
  EXPECT_EQ(reader.CanonicalSpec(), "probe:b=3,flag=on");
}

TEST(KeyReader, TheFirstErrorIsKept) {
  PolicyInfo info;
  info.name = "probe";
  info.keys = {{"a", "1", "a"}, {"b", "0.5", "b"}};
  const PolicySpec spec = ParseSpec("probe:a=x,b=y").value();
  KeyReader reader(info, spec);
  reader.Int("a", 0, 9);
  reader.Number("b", 0, 1);
  EXPECT_EQ(reader.Finish().error(), "probe: a: 'x' is not a whole number");
}

}  // namespace
}  // namespace condense
