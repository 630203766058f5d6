// The lab's experiments on items, whole, on the default model with the plug-in and a text that the
// test makes: every cell has its item, what a policy answers depends on nothing but itself, and the
// tables show the published figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class LabItems : public CommandTest {
 protected:
  void SetUp() override {
    const std::vector<std::string> who = {"miller", "baker", "smith", "clerk", "weaver"};
    const std::vector<std::string> what = {"sacks", "loaves", "nails", "letters", "ribbons"};
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text += "On day " + std::to_string(i + 1) + " the " + who[i % 5] + " counted " +
              std::to_string((i * 37) % 91) + " " + what[(i / 5) % 5] + " and went home. ";
    }
    Write("story.txt", text);
  }

  Outcome Run(const std::string& spec, const std::string& out,
              const std::string& threads = "1") const {
    return Start({"lab", "run", Write("spec.toml", spec), "--out", Path(out), "-t", threads})
        .Wait();
  }
  // Lines of one kind by their cell.
  std::map<std::string, json> Lines(const std::string& out, const std::string& kind) const {
    std::map<std::string, json> lines;
    std::istringstream in(ReadBytes(Path(out + "/records-0.jsonl")));
    for (std::string line; std::getline(in, line);) {
      const json parsed = json::parse(line);
      if (parsed["record"] == kind) lines[parsed["cell"]] = parsed;
    }
    return lines;
  }
};

constexpr const char* kNeedle = R"(experiment = "needle"
text = "story.txt"
offset = 10
contexts = [500]
depths = [0.5]
facts = 1
distractors = 1
tokens = 4
)";

TEST_F(LabItems, NeedlesAreAskedOfEveryPolicyAlike) {
  const std::string spec = std::string(kNeedle) + R"(sparse_from = ["question", "answer"]
policies = ["mean:blocks=2", "mean:blocks=2,reuse=16", "quest:budget=40%", "mean:budget=5%"]
)";
  const Outcome outcome = Run(spec, "a");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("27/45")) << "the published figure beside";
  const std::map<std::string, json> items = Lines("a", "item");
  ASSERT_EQ(items.size(), 2u * 5u);
  // 5 % of 500 rows are fewer than anchor and window: dense answers would be no figure of it.
  int n_unmet = 0;
  for (const auto& [cell, end] : Lines("a", "cell")) {
    const bool unmet = cell.find("mean:budget=5%") != std::string::npos;
    EXPECT_EQ(end["state"], unmet ? "unmet" : "done") << cell;
    n_unmet += unmet ? 1 : 0;
  }
  EXPECT_EQ(n_unmet, 2);
  std::map<std::string, std::set<std::string>> prompts, expected;
  int n_sparse = 0;
  for (const auto& [cell, item] : items) {
    EXPECT_EQ(item["task"], "needle");
    EXPECT_EQ(item["n_prompt"], 500);
    EXPECT_LE(item["n_decisions"], 4);
    EXPECT_EQ(item["first_token_match"], item["first_token"] == item["first_token_expected"]);
    if (item["full_match"] == true) {
      EXPECT_EQ(item["first_token_match"], true);
      EXPECT_EQ(item["score"], 1.0);
    }
    prompts[item["expected"][0]].insert(item["prompt_sha256"]);
    const std::string policy = item["policy"];
    if (policy == "dense" || policy == "control") {
      EXPECT_EQ(item["kv_read_share"], 1.0);
    } else {
      ++n_sparse;
      EXPECT_GT(item["sparse_steps"], 0);
      EXPECT_LT(item["kv_read_share"], 0.5) << cell;
    }
  }
  EXPECT_EQ(n_sparse, 2 * 3);
  ASSERT_EQ(prompts.size(), 1u) << "one fact";
  for (const auto& [value, hashes] : prompts) EXPECT_EQ(hashes.size(), 1u) << value;

  // Another order, some policies alone: the same items. Nothing is run twice.
  const std::string fewer = std::string(kNeedle) + R"(sparse_from = ["answer", "question"]
policies = ["quest:budget=40%", "mean:blocks=2"]
)";
  const Outcome other = Run(fewer, "b", "2");
  ASSERT_EQ(other.code, 0) << other.err;
  const std::map<std::string, json> again = Lines("b", "item");
  ASSERT_EQ(again.size(), 2u * 4u);
  for (const auto& [cell, item] : again) EXPECT_EQ(item, items.at(cell)) << cell;
  ASSERT_EQ(Run(fewer, "a").code, 0);
  EXPECT_EQ(Lines("a", "item"), items);
}

TEST_F(LabItems, BadSpecsAreRefusedBeforeWork) {
  const auto refused = [&](const std::string& more, const std::string& why) {
    const Outcome outcome = Run(std::string(kNeedle) + more, "c");
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_TRUE(Lines("c", "item").empty());
  };
  refused("sparse_from = [\"qestion\"]\n", "did you mean 'question'");
  refused("policies = [\"quset\"]\n", "did you mean 'quest'");
  refused("needles = 3\n", "needles");
  const Outcome longer =
      Run("experiment = \"needle\"\ntext = \"story.txt\"\noffset = 0\ncontexts = [8000]\n", "c");
  EXPECT_NE(longer.code, 0);
  EXPECT_THAT(longer.err, HasSubstr("story.txt"));
  EXPECT_THAT(longer.err, HasSubstr("wants"));
}

TEST_F(LabItems, RulerAnswersAreJudgedAsText) {
  const Outcome outcome = Run(R"(experiment = "ruler"
tasks = ["niah_single_1", "fwe"]
contexts = [700]
samples = 1
policies = ["mean:blocks=2"]
)",
                              "d");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::map<std::string, json> items = Lines("d", "item");
  ASSERT_EQ(items.size(), 2u * 3u);
  for (const auto& [cell, item] : items) {
    EXPECT_TRUE(item["first_token_match"].is_null());
    EXPECT_EQ(item["full_match"], item["score"] == 1.0);
    EXPECT_LE(item["n_prompt"].get<int>() + (item["task"] == "fwe" ? 50 : 128), 700);
    EXPECT_EQ(item["expected"].size(), item["task"] == "fwe" ? 3u : 1u);
  }
}

TEST_F(LabItems, HeavyHittersHaveNeedlesAndPerplexity) {
  const Outcome outcome = Run(R"(experiment = "heavy-hitter"
text = "story.txt"
offset = 0
contexts = [500]
depths = [0.5]
facts = 1
distractors = 0
tokens = 3
stream_text = "story.txt"
stream_offsets = [100]
stream = 400
positions = 8
policies = ["h2o:tokens=97", "mean:tokens=97"]
)",
                              "e");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("26.48")) << "the published figure beside";
  EXPECT_EQ(Lines("e", "item").size(), 4u);
  const std::map<std::string, json> cells = Lines("e", "cell");
  ASSERT_EQ(cells.size(), 8u);
  int n_text = 0;
  std::istringstream in(ReadBytes(Path("e/records-0.jsonl")));
  for (std::string line; std::getline(in, line);) {
    const json record = json::parse(line);
    if (record["record"] != "policy" || record["teacher"] != "text") continue;
    ++n_text;
    EXPECT_EQ(record["n_decisions"], 8);
    EXPECT_GT(record["ppl_sparse"], 1);
    if (record["policy"] == "dense") {
      EXPECT_EQ(record["ppl_ratio"], 1.0);
    }
  }
  EXPECT_EQ(n_text, 4);
}

}  // namespace
}  // namespace condense
