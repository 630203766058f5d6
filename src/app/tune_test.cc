// `condense tune` and `condense profile duo` whole, on the default model with the plug-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class TuneTest : public CommandTest {
 protected:
  // One thread: a busy machine makes teams of threads wait for each other.
  Outcome Run(std::vector<std::string> arguments, const char* threads = "1") const {
    arguments.insert(arguments.end(), {"-t", threads});
    return Start(arguments).Wait();
  }
  std::vector<std::string> Tune(const std::string& target) const {
    return {"tune",
            "--target",
            target,
            "--policies",
            "mean,mean",
            "--prefixes",
            "2",
            "--records",
            Path("r"),
            "-n",
            "6",
            "-o",
            Path("p.toml"),
            "--prompt-tokens",
            "600",
            "--confidence",
            "80%"};
  }
};

TEST_F(TuneTest, WritesAPolicyFileThatOtherCommandsTake) {
  const Outcome outcome = Run(Tune("kl=20"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 to search on, 1 held out (n = 5)"));
  EXPECT_THAT(outcome.out, HasSubstr("not run: ")) << "600 tokens are too few for 2 %";
  const std::string first = "prefix 1: mean:budget=8%: ";
  EXPECT_THAT(outcome.out, HasSubstr(first));
  EXPECT_EQ(outcome.out.find(first), outcome.out.rfind(first)) << "a policy named twice runs once";
  const std::string file = ReadBytes(Path("p.toml"));
  EXPECT_THAT(file, HasSubstr("spec = 'mean:budget="));
  EXPECT_THAT(file, HasSubstr("target = 'kl=20'"));
  EXPECT_THAT(file, HasSubstr("model = 'SmolLM2-135M-Instruct.Q4_1.gguf'"));
  const Outcome run = Run({"run", "-f", "/usr/share/common-licenses/GPL-2", "-n", "3", "--policy",
                           "@" + Path("p.toml")});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("policy mean:budget="));
  EXPECT_THAT(run.err, Not(HasSubstr("another model")));

  // All rows are there: nothing is run again, and the same is found.
  const std::string records = ReadBytes(Path("r/prefix-2.jsonl"));
  EXPECT_THAT(records, HasSubstr("\"policy\":\"control\""));
  fs::remove(Path("p.toml"));
  const Outcome again = Run(Tune("kl=20"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, outcome.out);
  EXPECT_EQ(ReadBytes(Path("p.toml")), file);
  EXPECT_EQ(ReadBytes(Path("r/prefix-2.jsonl")), records);

  EXPECT_EQ(Run({"tune", "--policies", "mean", "--prefixes", "2", "--records", Path("r"), "-n", "7",
                 "-o", Path("q.toml"), "--prompt-tokens", "600"})
                .code,
            2)
      << "records of another run";

  // The same records answer another target; five decisions cannot certify 99 %.
  fs::remove(Path("p.toml"));
  const Outcome unmet = Run(Tune("tf=99%"));
  EXPECT_EQ(unmet.code, 3) << unmet.err;
  EXPECT_THAT(unmet.err, HasSubstr("no policy file was written"));
  EXPECT_FALSE(fs::exists(Path("p.toml")));
}

TEST_F(TuneTest, Refusals) {
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    more.insert(more.begin(), "tune");
    more.insert(more.end(), {"-o", Path("p.toml")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_FALSE(fs::exists(Path("p.toml")));
  };
  refused({"--target", "tf=101%"}, "write tf=99%");
  refused({"--confidence", "95"}, "--confidence '95' is no share");
  refused({"--policies", "maen"}, "did you mean 'mean'?");
  refused({"--policies", "dense"}, "policy 'dense' takes no budget");
  refused({"--policies", "all"}, "name the policies");
  refused({"--prefixes", "40"}, "do not give 40 prefixes");
  refused({"-n", "2"}, "-n 2");
  refused({"--prompt-tokens", "600", "-f", "/nonexistent.txt"}, "/nonexistent.txt");
  EXPECT_EQ(Run({"tune", "-o", "/nonexistent/p.toml"}).code, 2);
}

TEST_F(TuneTest, ProfileIsReadByDuoAndDeterministic) {
  const auto profile = [&](const std::string& name, const char* threads) {
    return Run({"profile", "duo", "--prompt-tokens", "500", "-n", "2", "-o", Path(name)}, threads);
  };
  const Outcome outcome = profile("a, b.tsv", "1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = ReadBytes(Path("a, b.tsv"));
  EXPECT_THAT(text, HasSubstr("SHA-256"));
  int n_lines = 0, n_ones = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    ++n_lines;
    std::istringstream words(line);
    int n_heads = 0;
    for (double need; words >> need; ++n_heads) {
      EXPECT_GE(need, 0);
      EXPECT_LE(need, 1);
      n_ones += need == 1;
    }
    EXPECT_EQ(n_heads, 3);
  }
  EXPECT_EQ(n_lines, 30);
  EXPECT_GE(n_ones, 1) << "the largest is 1";
  EXPECT_EQ(profile("b.tsv", "2").code, 0);
  EXPECT_EQ(ReadBytes(Path("b.tsv")), text);

  // What it says to use is a spec, the comma of the path escaped.
  const size_t use = outcome.out.find("use: duo:");
  ASSERT_NE(use, std::string::npos) << outcome.out;
  const std::string spec = outcome.out.substr(use + 5, outcome.out.find('\n', use) - use - 5);
  EXPECT_THAT(spec, HasSubstr("a\\, b.tsv"));
  const Outcome compare =
      Run({"compare", "--prompt-tokens", "500", "-n", "3", "--speed-pairs", "0", "--policy", spec});
  EXPECT_EQ(compare.code, 0) << compare.err;
  EXPECT_THAT(compare.out, HasSubstr("duo:"));
  const Outcome short_prompt =
      Run({"profile", "duo", "--prompt-tokens", "300", "-o", Path("c.tsv")});
  EXPECT_EQ(short_prompt.code, 2);
  EXPECT_THAT(short_prompt.err, HasSubstr("give --prompt-tokens 321 or more"));
  EXPECT_FALSE(fs::exists(Path("c.tsv")));
  EXPECT_THAT(Run({"profile", "duo"}).err, HasSubstr("-o FILE"));
}

}  // namespace
}  // namespace condense
