// Specs of experiments: types, ranges, defaults, lines in messages, and no key without effect.
#include "lab/spec_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/lab_cell.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kDefaults = R"(# The default spec.
count = 3
share = 0.5
timed = false
order = "up"
contexts = [2048, 7600]
names = ["a"]
[needle]
depth = 0.25
[[fact]]
subject = "tower"
answer = "blue"
)";

SpecReader Parse(const std::string& text) {
  Result<SpecReader> reader = SpecReader::Parse(text, "x.toml", kDefaults);
  EXPECT_TRUE(reader.ok()) << reader.error();
  return reader.value();
}

void ReadAll(SpecReader& spec) {
  spec.Int("count", 1, 9);
  spec.Number("share", 0, 1);
  spec.Flag("timed");
  spec.Choice("order", {"up", "down"});
  spec.Ints("contexts", 16, 100000);
  spec.Texts("names");
  SpecReader needle = spec.Table("needle");
  needle.Number("depth", 0, 1);
  for (SpecReader& fact : spec.Tables("fact")) {
    fact.Text("subject");
    fact.Text("answer");
  }
}

TEST(SpecReader, APolicyThatIsNoneIsNamedAtItsLine) {
  const auto error = [](const std::string& text) {
    SpecReader spec = Parse(text);
    spec.CheckPoliciesWith([](const std::string& policy) {
      return policy == "quest" ? Status() : Status(Error{"policy is unknown: " + policy});
    });
    spec.Policies("names");
    spec.Policy("order");
    return spec.Finish().error();
  };
  EXPECT_EQ(error("names = [\"quest\",\n \"quset\"]\norder = \"quest\""),
            "spec 'x.toml', line 2: names = 'quset': policy is unknown: quset");
  EXPECT_EQ(error("names = [\"quest\"]\norder = \"qest\""),
            "spec 'x.toml', line 2: order = 'qest': policy is unknown: qest");
  SpecReader draft = Parse("names = [\"lookup+no\"]");
  draft.CheckPoliciesWith([](const std::string& policy) { return Status(Error{policy}); });
  draft.Texts("names");
  draft.CheckPolicy("names", "lookup+no", "no");
  EXPECT_EQ(draft.Finish().error(), "spec 'x.toml', line 1: names = 'lookup+no': no");
  SpecReader unchecked = Parse("names = [\"no\"]");
  EXPECT_THAT(unchecked.Policies("names"), ElementsAre("no"));
  EXPECT_TRUE(unchecked.Finish().ok());
}

std::string ErrorOf(const std::string& text) {
  SpecReader spec = Parse(text);
  ReadAll(spec);
  return spec.Finish().error();
}

TEST(SpecReader, WhatIsLeftOutIsAsTheDefaultSpecSays) {
  SpecReader spec = Parse("count = 7\n[needle]\n");
  EXPECT_EQ(spec.Int("count", 1, 9), 7);
  EXPECT_EQ(spec.Number("share", 0, 1), 0.5);
  EXPECT_FALSE(spec.Flag("timed"));
  EXPECT_EQ(spec.Choice("order", {"up", "down"}), "up");
  EXPECT_THAT(spec.Ints("contexts", 16, 100000), ElementsAre(2048, 7600));
  EXPECT_EQ(spec.Table("needle").Number("depth", 0, 1), 0.25);
  EXPECT_TRUE(spec.Given("count"));
  EXPECT_FALSE(spec.Given("share"));
  std::vector<SpecReader> facts = spec.Tables("fact");
  ASSERT_EQ(facts.size(), 1u);
  EXPECT_EQ(facts[0].Text("answer"), "blue");
  EXPECT_TRUE(spec.Finish().ok()) << spec.Finish().error();
}

TEST(SpecReader, ListsOfTables) {
  SpecReader spec = Parse("[[fact]]\nsubject = \"sea\"\n[[fact]]\nanswer = \"red\"\n");
  std::vector<SpecReader> facts = spec.Tables("fact");
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].Text("subject"), "sea");
  EXPECT_EQ(facts[0].Text("answer"), "blue") << "the default's first table stands in";
  EXPECT_EQ(facts[1].Text("answer"), "red");
}

TEST(SpecReader, ASingleValueIsAListOfOneAndAWholeNumberIsANumber) {
  SpecReader spec = Parse("contexts = 64\nshare = 1\n");
  EXPECT_THAT(spec.Ints("contexts", 16, 100000), ElementsAre(64));
  EXPECT_EQ(spec.Number("share", 0, 1), 1.0);
  EXPECT_TRUE(spec.ok());
}

TEST(SpecReader, ErrorsNameFileAndLine) {
  EXPECT_THAT(ErrorOf("\ncount = 10\n"), HasSubstr("spec 'x.toml', line 2: count must be a whole "
                                                   "number from 1 to 9, not 10"));
  EXPECT_THAT(ErrorOf("count = 1.5\n"), HasSubstr("line 1: count must be a whole number"));
  EXPECT_THAT(ErrorOf("share = nan\n"), HasSubstr("share must be a number from 0 to 1"));
  EXPECT_THAT(ErrorOf("timed = 1\n"), HasSubstr("timed must be true or false"));
  EXPECT_THAT(ErrorOf("order = \"dwon\"\n"), HasSubstr("did you mean 'down'?"));
  EXPECT_THAT(ErrorOf("contexts = []\n"), HasSubstr("holds 0 values: give 1 or more"));
  EXPECT_THAT(ErrorOf("contexts = [64,\n 64]\n"), HasSubstr("line 2: contexts holds 64 twice"));
  EXPECT_THAT(ErrorOf("contexts = [64, \"x\"]\n"),
              HasSubstr("holds something that is not a whole"));
  EXPECT_THAT(ErrorOf("contexts = [8]\n"), HasSubstr("holds 8, which is not from 16"));
  EXPECT_THAT(ErrorOf("names = 3\n"), HasSubstr("names is not a text in quotes, or a list"));
  EXPECT_THAT(ErrorOf("needle = 3\n"), HasSubstr("needle is no table: write [needle]"));
  EXPECT_THAT(ErrorOf("fact = 3\n"), HasSubstr("fact is no list of tables: write [[fact]]"));
}

TEST(SpecReader, UnreadKeysAreErrors) {
  EXPECT_THAT(ErrorOf("count = 2\n\ncontext = [64]\n"),
              HasSubstr("line 3: key 'context' is unknown; did you mean 'contexts'?"));
  EXPECT_THAT(ErrorOf("[needle]\ndepht = 1\n"), HasSubstr("line 2: key 'depht' of [needle]"));
  EXPECT_THAT(ErrorOf("[[fact]]\nanswr = \"x\"\n"), HasSubstr("did you mean 'answer'?"));
  EXPECT_EQ(ErrorOf("count = 2\n"), "");
}

TEST(SpecReader, WhatIsNoTomlIsRefusedWithItsLine) {
  const Result<SpecReader> reader = SpecReader::Parse("count = 1\ncount = 2\n", "x.toml", "");
  ASSERT_FALSE(reader.ok());
  EXPECT_THAT(reader.error(), HasSubstr("spec 'x.toml', line 2: "));
}

TEST(SpecReader, AnErrorOfTheExperimentsOwnHasTheKeysLine) {
  SpecReader spec = Parse("\n\norder = \"up\"\n");
  spec.Fail("order", "no such order today");
  EXPECT_EQ(spec.Finish().error(), "spec 'x.toml', line 3: no such order today");
}

TEST(LabCell, IdsDoNotDependOnTheOrderOfParameters) {
  const Json one{{"model", "m.gguf@12"}, {"context", 2048}, {"policy", "mean:blocks=2,window=64"}};
  const Json other{
      {"policy", "mean:blocks=2,window=64"}, {"context", 2048}, {"model", "m.gguf@12"}};
  EXPECT_EQ(CellId(one), "context=2048 model=m.gguf@12 policy=mean:blocks=2,window=64");
  EXPECT_EQ(CellId(one), CellId(other));
  EXPECT_EQ(CellId({{"fact", "a b=c"}, {"seed", nullptr}, {"on", true}}),
            "fact=\"a b=c\" on=true seed=null");
  EXPECT_NE(CellId({{"fact", "1"}}), CellId({{"fact", "1 "}}));
}

TEST(LabCell, CellsOfAPrefillShareItsGroup) {
  const Json shared{{"model", "m"}, {"context", 64}};
  const Cell a = MakeCell("x", shared, {{"policy", "dense"}}, 70);
  const Cell b = MakeCell("x", shared, {{"policy", "mean"}}, 70);
  EXPECT_EQ(a.group, "context=64 model=m");
  EXPECT_EQ(a.group, b.group);
  EXPECT_NE(a.id, b.id);
  EXPECT_THAT(a.id, HasSubstr("policy=dense"));
  EXPECT_THAT(a.group, Not(HasSubstr("policy")));
}

}  // namespace
}  // namespace condense
