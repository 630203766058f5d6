// `condense calibrate` and what `run --mode guard` and `--mode refresh` make of its file, whole, on
// the default model with the plug-in, at a short depth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPolicy = "mean:blocks=4,window=32";

class CalibrateTest : public CommandTest {
 protected:
  void SetUp() override {
    const std::string text = ReadBytes("/usr/share/common-licenses/GPL-3");
    Write("text", text.substr(0, 14000));
    Write("prompt", text.substr(20000, 2200));
  }

  Process Start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-t", "2"});
    return CommandTest::Start(arguments);
  }
  Outcome Run(const std::vector<std::string>& arguments) const { return Start(arguments).Wait(); }
  std::vector<std::string> Calibrate(const std::string& risk, const std::vector<std::string>& more,
                                     const std::string& policy = kPolicy) const {
    std::vector<std::string> arguments = {"calibrate",  "-f",     Path("text"),
                                          "--policy",   policy,   "--risk",
                                          risk,         "--from", "350",
                                          "-n",         "31",     "--prompt-tokens",
                                          "500",        "-o",     Path("guard.toml"),
                                          "--prefixes", "5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<std::string> Guard(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "run",   "--mode", "guard", "--calibration", Path("guard.toml"), "-f", Path("prompt"),
        "--raw", "-n",     "12"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(CalibrateTest, StoppedAndGoneOnWithThenTakenByGuard) {
  const std::string records = Path("r.jsonl");
  {
    const Process process = Start(Calibrate("30%", {"--records", records}));
    for (int i = 0; i < 2400 && ReadBytes(records).find("\"searched\"") == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process.Signal(SIGINT);
    const Outcome stopped = process.Wait();
    EXPECT_EQ(stopped.code, 1);
    EXPECT_THAT(stopped.err, HasSubstr("finished prefixes kept"));
    EXPECT_FALSE(fs::exists(Path("guard.toml")));
  }
  const Outcome outcome = Run(Calibrate("30%", {"--records", records}));
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("2 to search on, 3 held out (n = 90 each)"));
  EXPECT_THAT(outcome.out, HasSubstr("omitted mass, largest"));
  EXPECT_THAT(outcome.out, HasSubstr("Clopper-Pearson"));
  const std::string file = ReadBytes(Path("guard.toml"));
  EXPECT_THAT(file, HasSubstr("policy = 'mean:blocks=4,window=32'"));
  EXPECT_THAT(file, HasSubstr("from = 350"));
  EXPECT_THAT(file, HasSubstr("to = 531"));

  // What was measured decides; and measured anew it is the same, but for speed.
  const Outcome again = Run(Calibrate("30%", {"--records", records}));
  EXPECT_EQ(again.out, outcome.out);
  EXPECT_EQ(ReadBytes(Path("guard.toml")), file);
  const auto without_speed = [](std::string text) {
    const size_t at = text.find("speed_over_dense");
    return text.erase(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(Run(Calibrate("30%", {})).code, 0);
  EXPECT_EQ(without_speed(ReadBytes(Path("guard.toml"))), without_speed(file));
  const Outcome other = Run(Calibrate("20%", {"--records", records}));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("of another run"));

  EXPECT_EQ(Run(Calibrate("30%", {"--on", "greedy"})).code, 0);
  const std::string greedy = ReadBytes(Path("guard.toml"));
  EXPECT_THAT(greedy, HasSubstr("teacher = 'greedy'"));
  EXPECT_THAT(greedy, Not(HasSubstr("teacher = 'text'")));
  Write("guard.toml", file);

  const Outcome run = Run(Guard({}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("policy mean:blocks=4,window=32"));
  EXPECT_THAT(run.err, HasSubstr("redone dense"));
  EXPECT_THAT(run.err, HasSubstr("with confidence 95 %, on greedy and text histories"));

  const auto refused = [&](const std::vector<std::string>& more) {
    const Outcome bad = Run(Guard(more));
    EXPECT_EQ(bad.code, 2) << bad.err;
    return bad.err;
  };
  EXPECT_THAT(refused({"--policy", "quest:blocks=4"}), HasSubstr("quest:blocks=4 is asked for"));
  EXPECT_THAT(refused({"--rewrite", "on"}), HasSubstr("--rewrite off"));
  EXPECT_THAT(refused({"-ctk", "q8_0"}), HasSubstr("-ctk f16 -ctv f16"));
  EXPECT_THAT(refused({"--risk", "1%"}), HasSubstr("certified for a risk of 30 %"));
  EXPECT_THAT(refused({"--temp", "0.8"}), HasSubstr("leave --temp out"));
  EXPECT_THAT(refused({"-p", std::string(4000, 'x')}), HasSubstr("contexts of 350 to 531 tokens"));
  std::string foreign = file;
  foreign.replace(foreign.find("model_sha256 = '") + 16, 4, "0000");
  Write("guard.toml", foreign);
  EXPECT_THAT(refused({}), HasSubstr("SHA-256 0000"));
}

TEST_F(CalibrateTest, WhatCannotBeCertifiedIsSaid) {
  const Outcome few = Run(Calibrate("1%", {}));
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, HasSubstr("without a single difference it takes 299"));
  const Outcome dense = Run(Calibrate("30%", {}, "dense"));
  EXPECT_EQ(dense.code, 2);
  EXPECT_THAT(dense.err, HasSubstr("nothing to guard"));
  EXPECT_FALSE(fs::exists(Path("guard.toml")));
  const Outcome none = Run({"run", "--mode", "guard", "-p", "x"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("condense calibrate"));
}

TEST_F(CalibrateTest, RefreshRuns) {
  const std::vector<std::string> base = {"run",   "--policy", kPolicy, "-f",     Path("prompt"),
                                         "--raw", "-n",       "12",    "--mode", "refresh"};
  const auto with = [&](const std::string& every) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), {"--every", every});
    return Run(arguments);
  };
  const Outcome one = with("1");
  EXPECT_EQ(one.code, 0) << one.err;
  std::vector<std::string> dense = base;
  dense[2] = "dense";
  dense.resize(8);
  EXPECT_EQ(one.out, Run(dense).out);
  const Outcome four = with("4");
  EXPECT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.err, HasSubstr("refresh: every 4, 9 sparse steps"));
  EXPECT_THAT(four.err, HasSubstr("2 dense calls"));
  EXPECT_EQ(with("auto").code, 0);
  const Outcome wrong = with("0");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--every '0'"));
}

}  // namespace
}  // namespace condense
