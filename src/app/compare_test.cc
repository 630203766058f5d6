// `condense compare` and `condense run` whole, on the default model with the plug-in: what the
// records must say whatever the machine, that rows do not depend on their order, and what a stop
// leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class CompareTest : public CommandTest {
 protected:
  // One thread: a busy machine makes teams of threads wait for each other.
  Process Start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-t", "1"});
    return CommandTest::Start(arguments);
  }

  static std::vector<json> Records(const std::string& path) {
    std::vector<json> records;
    std::istringstream lines(ReadBytes(path));
    for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
    return records;
  }
  // Policy records by "policy/teacher", without what a clock says.
  static std::map<std::string, json> Rows(const std::vector<json>& records) {
    std::map<std::string, json> rows;
    for (json record : records) {
      if (record["record"] != "policy") continue;
      for (const char* timed :
           {"select_share", "sparse_tokens_per_second", "dense_tokens_per_second",
            "speed_ratio_median", "speed_ratio_low", "speed_ratio_high"}) {
        record.erase(timed);
      }
      rows[record["policy"].get<std::string>() + "/" + record["teacher"].get<std::string>()] =
          record;
    }
    return rows;
  }
};

TEST_F(CompareTest, RecordsHoldTheirContract) {
  const Outcome outcome = Start({"compare", "--prompt-tokens", "700", "-n", "9", "--speed-pairs",
                                 "1", "--policy", "mean:blocks=4", "--policy", "quest:blocks=1000",
                                 "--records", Path("r.jsonl"), "--report", Path("r.html")})
                              .Wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("mean:blocks=4"));
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "colour codes in a file";
  const std::vector<json> records = Records(Path("r.jsonl"));
  ASSERT_GT(records.size(), 10u);
  EXPECT_EQ(records[0]["record"], "run");
  EXPECT_EQ(records[0]["n_prompt"], 700);
  EXPECT_EQ(records[0]["kv_bytes_per_token"], 23040);
  EXPECT_EQ(records[0]["model_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(records[1]["record"], "prompt");
  EXPECT_EQ(records[1]["dense_tokens"].size(), 9u);
  const auto rows = Rows(records);
  ASSERT_EQ(rows.size(), 8u) << "dense, control and two policies under two teachers";

  for (const char* teacher : {"greedy", "text"}) {
    const json& dense = rows.at(std::string("dense/") + teacher);
    EXPECT_TRUE(dense["t_div"].is_null());
    EXPECT_EQ(dense["tf_match"], 1.0);
    EXPECT_EQ(dense["kl_max"], 0.0);
    EXPECT_EQ(dense["ppl_ratio"], 1.0);
    EXPECT_EQ(dense["kv_read_share"], 1.0);
    EXPECT_EQ(dense["n_decisions"], 8);
    EXPECT_EQ(dense["dense_steps"], 8 * 30);

    const json& sparse = rows.at(std::string("mean:blocks=4/") + teacher);
    EXPECT_EQ(sparse["sparse_steps"], 8 * 30) << "every layer of every decision left rows out";
    EXPECT_TRUE(sparse["fallbacks"].empty());
    EXPECT_LT(sparse["kv_read_share"], 0.3);
    EXPECT_GT(sparse["kv_read_share"], 0.1);
    // Anchor, window and four blocks; the blocks that anchor and window cut may be read as well.
    EXPECT_LE(sparse["unique_rows_per_kv_head"], 1 + 64 + 5 * 16);
    EXPECT_GE(sparse["unique_rows_per_kv_head"], 1 + 64 + 3 * 16);
    EXPECT_GT(sparse["omitted_mass_mean"], 0.0);
    EXPECT_LT(sparse["omitted_mass_max"], 1.0);
    EXPECT_GT(sparse["kl_mean"], 0.0);
    EXPECT_EQ(sparse["margin_cases"]["held_different"], 0) << "the margin condition is sufficient";

    // A budget that covers everything is dense, bit for bit.
    const json& full = rows.at(std::string("quest:blocks=1000/") + teacher);
    EXPECT_EQ(full["kl_max"], 0.0);
    EXPECT_TRUE(full["t_div"].is_null());
    EXPECT_EQ(full["fallbacks"]["short"], 8 * 30);
  }
  int n_layers = 0, n_steps = 0;
  for (const json& record : records) {
    EXPECT_EQ(record["schema"], 1);
    n_layers += record["record"] == "layer";
    n_steps += record["record"] == "step";
  }
  EXPECT_EQ(n_layers, 8 * 30);
  EXPECT_EQ(n_steps, 8 * 8);
  EXPECT_THAT(ReadBytes(Path("r.html")), HasSubstr("mean:blocks=4"));
}

TEST_F(CompareTest, RowsDoNotDependOnTheirOrder) {
  const std::vector<std::string> common = {
      "compare", "--prompt-tokens", "600", "--offset", "300", "-n", "7", "--speed-pairs", "0"};
  const auto run = [&](const std::string& name, const std::vector<std::string>& policies) {
    std::vector<std::string> arguments = common;
    for (const std::string& policy : policies) {
      arguments.push_back("--policy");
      arguments.push_back(policy);
    }
    arguments.push_back("--records");
    arguments.push_back(Path(name));
    const Outcome outcome = Start(arguments).Wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Rows(Records(Path(name)));
  };
  const auto forward = run("a.jsonl", {"mean:blocks=4,reuse=4", "window", "random:blocks=4"});
  const auto backward = run("b.jsonl", {"random:blocks=4", "window", "mean:blocks=4,reuse=4"});
  ASSERT_EQ(forward.size(), 10u);
  EXPECT_EQ(forward, backward);
}

// What a clock says differs from run to run.
std::vector<json> WithoutClocks(std::vector<json> records) {
  for (json& record : records) {
    for (const char* clock :
         {"seconds", "select_share", "prefill_seconds", "time_utc", "prefill_tokens_per_second"}) {
      record.erase(clock);
    }
  }
  return records;
}

TEST_F(CompareTest, PoliciesAtEqualBytesGoOnFromAnyByte) {
  // mean reads summaries, random has none, sink has no budget of its own; 0.7 % is below all of
  // them.
  const auto run = [&](const std::string& records, const char* n_generate) {
    return Start({"compare", "--policies", "mean,random,sink", "--budgets", "0.7%,40%",
                  "--prompt-tokens", "500", "-n", n_generate, "--speed-pairs", "0", "--records",
                  records, "--report", Path("r.html")})
        .Wait();
  };
  const Outcome outcome = run(Path("whole.jsonl"), "5");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("mean:budget=0.7%: not run: 0.7% of the dense bytes"));
  EXPECT_THAT(outcome.out, HasSubstr("the least possible here is "));
  const std::vector<json> whole = Records(Path("whole.jsonl"));
  std::map<std::string, json> cells;
  for (const json& record : whole) {
    if (record["record"] == "cell") cells[record["policy"]] = record;
  }
  ASSERT_EQ(cells.size(), 8u) << "dense, control and three policies at two budgets";
  EXPECT_EQ(cells.at("mean:budget=0.7%")["state"], "unmet");
  const double least = cells.at("mean:budget=0.7%")["least_budget"];
  EXPECT_GT(least, 65.0 / 501) << "anchor and window";
  EXPECT_LT(least, 0.25) << "and summaries";
  EXPECT_LT(cells.at("random:budget=0.7%")["least_budget"], least) << "has no summaries";
  const auto rows = Rows(whole);
  for (const char* policy : {"mean:budget=40%", "random:budget=40%", "sink:window=197"}) {
    ASSERT_TRUE(rows.contains(policy + std::string("/text"))) << policy;
    const json& row = rows.at(policy + std::string("/text"));
    EXPECT_EQ(row["budget"], 0.4);
    EXPECT_LE(row["kv_read_share"], 0.4);
    EXPECT_GT(row["kv_read_share"], 0.36);
  }
  EXPECT_THAT(ReadBytes(Path("r.html")), HasSubstr("pareto-kl"));

  const std::string bytes = ReadBytes(Path("whole.jsonl"));
  const auto cut_at = [&](size_t n) {
    std::ofstream(Path("cut.jsonl"), std::ios::binary) << bytes.substr(0, n);
  };
  for (size_t n : {bytes.size() / 9, bytes.size() / 2, bytes.size() - 1, bytes.size()}) {
    cut_at(n);
    const Outcome gone_on = run(Path("cut.jsonl"), "5");
    ASSERT_EQ(gone_on.code, 0) << gone_on.err;
    EXPECT_EQ(WithoutClocks(Records(Path("cut.jsonl"))), WithoutClocks(whole)) << n << " bytes";
    EXPECT_THAT(gone_on.out, HasSubstr("mean:budget=40%"));
  }
  EXPECT_THAT(run(Path("cut.jsonl"), "6").err, HasSubstr("n_generate was 5, is 6 now"));
  EXPECT_EQ(WithoutClocks(Records(Path("cut.jsonl"))), WithoutClocks(whole)) << "left as it is";

  // Records that say other dense tokens are of another machine or build.
  std::string other = bytes;
  const size_t tokens = other.find("\"dense_tokens\":[") + 16;
  other.replace(tokens, other.find(']', tokens) - tokens, "1,2,3,4,5");
  std::ofstream(Path("cut.jsonl"), std::ios::binary) << other;
  const Outcome refused = run(Path("cut.jsonl"), "5");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("dense attention gives other tokens"));
}

TEST_F(CompareTest, KilledRunGoesOn) {
  const std::vector<std::string> arguments = {
      "compare",      "--policies", "window", "--budgets",     "10%,20%,30%", "--prompt-tokens",
      "500",          "-n",         "24",     "--speed-pairs", "0",           "--records",
      Path("r.jsonl")};
  const Process process = Start(arguments);
  for (int i = 0;
       i < 2400 && ReadBytes(Path("r.jsonl")).find("\"policy\":\"control\"") == std::string::npos;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  process.Signal(SIGKILL);
  process.Wait();
  const Outcome outcome = Start(arguments).Wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("finished rows of this run"));
  EXPECT_EQ(Rows(Records(Path("r.jsonl"))).size(), 10u) << "each row once, under two teachers";
}

TEST_F(CompareTest, StopKeepsFinishedRows) {
  const Process process = Start({"compare", "--prompt-tokens", "600", "-n", "100", "--records",
                                 Path("r.jsonl"), "--report", Path("r.html")});
  // Until the control row is on disk.
  for (int i = 0;
       i < 2400 && ReadBytes(Path("r.jsonl")).find("\"policy\":\"control\"") == std::string::npos;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("finished rows kept"));
  EXPECT_THAT(outcome.out, HasSubstr("control"));
  const auto rows = Rows(Records(Path("r.jsonl")));
  EXPECT_TRUE(rows.contains("dense/greedy"));
  EXPECT_TRUE(rows.contains("control/text"));
  EXPECT_LT(rows.size(), 14u);
  EXPECT_THAT(ReadBytes(Path("r.html")), HasSubstr("control"));
}

TEST_F(CompareTest, ProbeFindsMassAndChecksItsIdentity) {
  const Outcome outcome =
      Start({"probe", "mass", "--prompt-tokens", "600", "--policy", "mean:blocks=4", "--layers",
             "0,12,29", "-n", "4", "--json", Path("p.jsonl")})
          .Wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("oracle:blocks=4"));
  int n_layers = 0, n_heads = 0, n_steps = 0;
  for (const json& record : Records(Path("p.jsonl"))) {
    if (record["record"] == "layer_mass") {
      ++n_layers;
      EXPECT_EQ(record["n_heads"], 9);
      EXPECT_GT(record["base"], 0.0);
      EXPECT_GE(record["policy"], record["base"]);
      EXPECT_LE(record["policy"], record["oracle"].get<double>() + 1e-6);
      EXPECT_LT(record["oracle"], 1.0);
      EXPECT_GT(record["policy_recall"], 0.0);
      EXPECT_LE(record["oracle_recall"], 1.0);
    }
    if (record["record"] == "head_identity") {
      ++n_heads;
      EXPECT_LT(record["identity_max"], 1e-4) << record;
    }
    if (record["record"] == "layer_identity") {
      EXPECT_EQ(record["n_bound_broken"], 0);
      EXPECT_LE(record["error_mean"], record["bound_mean"]);
    }
    if (record["record"] == "step") {
      ++n_steps;
      const bool held = record["delta"] < record["margin_dense"].get<double>() / 2;
      EXPECT_TRUE(!held || record["match"]) << "the margin condition is sufficient";
    }
  }
  EXPECT_EQ(n_layers, 3);
  EXPECT_EQ(n_heads, 30 * 9);
  EXPECT_EQ(n_steps, 4);
  const Outcome none = Start({"probe", "mass", "--prompt-tokens", "200", "--layers", "30"}).Wait();
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no layer 30"));
}

TEST_F(CompareTest, RunIsGreedyAndRepeatable) {
  const std::vector<std::string> arguments = {"run",
                                              "-f",
                                              "/usr/share/common-licenses/GPL-2",
                                              "-p",
                                              "Who wrote this?",
                                              "-n",
                                              "12",
                                              "--policy",
                                              "mean:blocks=8"};
  const Outcome first = Start(arguments).Wait(), second = Start(arguments).Wait();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, second.out);
  EXPECT_GT(first.out.size(), 5u);
  EXPECT_THAT(first.err, HasSubstr("temperature 0"));
  EXPECT_THAT(first.err, HasSubstr("set-up in the step after it "));
  EXPECT_THAT(first.err, HasSubstr("KV read "));
  EXPECT_THAT(first.err, HasSubstr("fallbacks: none"));
}

TEST_F(CompareTest, RunExactlyGivesTheTextOfDenseDecoding) {
  const std::string text = ReadBytes("/usr/share/common-licenses/GPL-3").substr(0, 2500);
  std::ofstream(Path("prompt.txt")) << text;
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"run", "--raw", "-f", Path("prompt.txt"), "-n", "20", "--temp", "0.8", "-s", "5"});
    return Start(more).Wait();
  };
  const Outcome dense = run({"--policy", "dense"});
  ASSERT_EQ(dense.code, 0) << dense.err;
  const Outcome exact = run({"--mode", "exact", "--draft", "lookup+mean:blocks=2", "--draft-tokens",
                             "4", "--verify-exact"});
  EXPECT_EQ(exact.code, 0) << exact.err;
  EXPECT_EQ(exact.out, dense.out);
  EXPECT_THAT(exact.err, HasSubstr("draft lookup+mean:blocks=2, temperature 0.8, seed 5"));
  EXPECT_THAT(exact.err, HasSubstr("2 to 5 rows give the bits of single steps"));
  EXPECT_THAT(exact.err, HasSubstr("verifications, "));
  EXPECT_THAT(exact.err, HasSubstr("all 20 tokens are those of dense decoding"));
}

TEST_F(CompareTest, RunExactlyWhereNothingIsDrafted) {
  // Of two tokens the second is the last: no draft of it could be verified.
  for (const char* draft : {"mean:blocks=2", "lookup+mean:blocks=2", "lookup"}) {
    const Outcome run = Start({"run", "--raw", "-p", "The licence says that you may", "-n", "2",
                               "--mode", "exact", "--draft", draft})
                            .Wait();
    EXPECT_EQ(run.code, 0) << draft << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr("0 drafted, 0 accepted"));
  }
}

TEST_F(CompareTest, RunSamplesBySeed) {
  const auto text = [&](const char* seed) {
    return Start(
               {"run", "--raw", "-p", "The licence says", "-n", "16", "--temp", "1.5", "-s", seed})
        .Wait()
        .out;
  };
  const std::string one = text("1");
  EXPECT_EQ(one, text("1"));
  EXPECT_NE(one, text("2"));
}

}  // namespace
}  // namespace condense
