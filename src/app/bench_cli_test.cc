// `condense bench` as users start it: every benchmark on a tiny shape with its check on, its
// records, what is refused, and a stop. Runs the real binary; asserts nothing about times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BenchCliTest : public CommandTest {
 protected:
  Process Start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "bench");
    return CommandTest::Start(arguments);
  }
  std::vector<nlohmann::json> Records() const {
    std::vector<nlohmann::json> records;
    std::istringstream lines(ReadBytes(records_));
    for (std::string line; std::getline(lines, line);) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }
  void ExpectRefused(const std::vector<std::string>& arguments, const std::string& why) const {
    const Outcome outcome = Start(arguments).Wait();
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_THAT(outcome.out, IsEmpty());
  }

  const std::string records_ = Path("records.jsonl");
};

TEST_F(BenchCliTest, EveryBenchmarkRunsAndWritesRecords) {
  const std::vector<std::string> tiny = {"--rounds", "2", "--buffer", "4", "-t", "2"};
  struct Case {
    std::vector<std::string> words;
    std::set<std::string> arms;
    std::string shown;
  };
  const Case cases[] = {
      {{"machine"}, {"stream", "cache", "multiply-add"}, "multiply-add"},
      {{"decode", "--rows", "400", "--layers", "2", "--check", "--policy", "mean:blocks=2"},
       {"dense", "mean:blocks=2", "ggml"},
       "over ggml"},
      {{"select", "--rows", "400", "--layers", "2", "--check", "-ctk", "q8_0", "--policy",
        "quest:blocks=2"},
       {"dense", "quest:blocks=2"},
       "select"},
      {{"verify", "--rows", "400", "--layers", "2", "--check", "--query-rows", "4"},
       {"at once", "one by one"},
       "bits equal"},
      {{"prefill", "--rows", "400", "--check", "--query-heads", "4", "--kv-heads", "1"},
       {"dense", "ggml"},
       "4 query and 1 KV heads"},
      {{"candidate", "--rows", "300,600", "--check"},
       {"candidate", "dense", "ggml"},
       "a whole sequence"},
      {{"single", "--rows", "700", "--layers", "1", "--check"},
       {"dense", "mean:blocks=2", "mean:blocks=2,reuse=4", "mean:blocks=2,reuse=16", "ggml"},
       "published"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.words[0]);
    std::vector<std::string> words = one.words;
    words.insert(words.end(), tiny.begin(), tiny.end());
    words.insert(words.end(), {"--json", records_});
    const Outcome outcome = Start(words).Wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(one.shown));
    EXPECT_THAT(outcome.out, HasSubstr("yardstick, 2 threads"));
    std::set<std::string> arms;
    for (const nlohmann::json& record : Records()) {
      arms.insert(record.at("arm"));
      EXPECT_EQ(record.at("record"), "bench");
      EXPECT_EQ(record.at("bench"), one.words[0]);
      EXPECT_GT(record.at("median_ns"), 0);
      EXPECT_GE(record.at("n"), 1);
      EXPECT_GT(record.at("yardstick").at("stream_bytes_per_second"), 0);
      EXPECT_FALSE(record.at("instruction_set").get<std::string>().empty());
      EXPECT_FALSE(record.at("llama_cpp_commit").get<std::string>().empty());
    }
    EXPECT_EQ(arms, one.arms);
  }
}

TEST_F(BenchCliTest, SelectComparesEveryPolicyAtEqualRows) {
  const Outcome outcome =
      Start({"select", "--policies", "all", "--tokens", "193", "--rows", "2048", "--layers", "1",
             "--rounds", "2", "--buffer", "4", "-t", "1", "--json", records_})
          .Wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("left out: seer: gates=FILE is needed"));
  std::map<std::string, nlohmann::json> arms;
  for (nlohmann::json& record : Records()) {
    const std::string arm = record.at("arm");
    arms[arm.substr(0, arm.find(':'))] = std::move(record);
  }
  const Outcome listed = CommandTest::Start({"policies", "--json"}).Wait();
  for (const nlohmann::json& policy : nlohmann::json::parse(listed.out)) {
    const std::string name = policy.at("name");
    if (name == "seer" || name == "nsa") continue;  // they are nothing without trained gates
    ASSERT_TRUE(arms.contains(name)) << name;
    if (name == "dense") continue;
    EXPECT_GT(arms[name].at("select_share"), 0) << name;
    EXPECT_LT(arms[name].at("select_share"), 1) << name;
  }
  EXPECT_EQ(arms["mean"].at("arm"), "mean:tokens=193");
  EXPECT_EQ(arms["sink"].at("arm"), "sink:window=189") << "four first rows are read beside";
  EXPECT_EQ(arms["condense"].at("arm"), "condense:budget=12.55%") << "193 rows and 64 of means";
}

TEST_F(BenchCliTest, AModelGivesItsHeads) {
  const Outcome outcome = Start({"decode", "-m", CONDENSE_TEST_MODEL, "--rows", "400", "--layers",
                                 "1", "--rounds", "1", "--buffer", "4", "--policy", "dense"})
                              .Wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("9 query and 3 KV heads of 64"));
}

TEST_F(BenchCliTest, RefusedBeforeWork) {
  ExpectRefused({}, "give a benchmark");
  ExpectRefused({"decode", "--policy", "quset"}, "quest");
  ExpectRefused({"select", "--policies", "mean,quset"}, "did you mean 'quest'?");
  ExpectRefused({"select", "--policies", "nsa"}, "gates=FILE is needed");
  ExpectRefused({"select", "--tokens", "97"}, "--policies");
  ExpectRefused({"select", "--policies", "mean", "--tokens", "0"}, "--tokens");
  ExpectRefused({"decode", "--kv-heads", "2"}, "--kv-heads 2 does not divide --query-heads 9");
  ExpectRefused({"decode", "-ctv", "q4_0"}, "'q4_0'");
  ExpectRefused({"decode", "-m", "/nonexistent.gguf"}, "/nonexistent.gguf");
  ExpectRefused({"decode", "--rows", "16000000", "--layers", "4000"}, "are free");
  ExpectRefused({"verify", "--query-rows", "40"}, "2 to 16");
  ExpectRefused({"candidate", "--rows", "8192,16000000"}, "are free");
  ExpectRefused({"machine", "--json", "/nonexistent/b.jsonl"}, "/nonexistent/b.jsonl");
}

TEST_F(BenchCliTest, AStopEndsWithWhatWasMeasured) {
  const Process process = Start({"decode", "--rows", "8192", "--layers", "1", "--rounds", "3000",
                                 "--buffer", "64", "--json", records_});
  std::this_thread::sleep_for(std::chrono::seconds(3));
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("stopped"));
  EXPECT_EQ(Records().empty(), outcome.out.find("mean:blocks=8") == std::string::npos);
}

}  // namespace
}  // namespace condense
