// The program `condense` as users start it: messages and exit codes of everything that must be
// refused before work begins. Runs the real binary; what needs a decode is tested end to end
// elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "app/test_command.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CliTest : public CommandTest {
 protected:
  Outcome Run(const std::vector<std::string>& arguments) const { return Start(arguments).Wait(); }

  // Refused as usage: code 2, nothing on stdout, one line that says why.
  void ExpectRefused(const std::vector<std::string>& arguments, const std::string& why) const {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_THAT(outcome.err, HasSubstr("condense: "));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
};

TEST_F(CliTest, ReportRefusesBeforeItReads) {
  ExpectRefused({"report"}, "records is required");
  ExpectRefused({"report", "none.jsonl"}, "'none.jsonl' is neither a file of records nor a folder");
  const std::string records = Write("made.jsonl", "{}\n");
  ExpectRefused({"report", records, "-o", folder_}, "is a folder: name a file, as in");
  ExpectRefused({"report", records, "-o", records}, "would be written over the records");
  ExpectRefused({"report", records, "-o", "no/such/out.html"}, "there is no folder 'no/such'");
  std::filesystem::create_directories(Path("lab"));
  const std::string rank = Write("lab/records-0.jsonl", "{\"schema\":1,\"record\":\"run\"}\n");
  ExpectRefused({"report", Path("lab"), "-o", rank}, "would lie among the records");
  ExpectRefused({"report", records, "-o", rank}, "would be written over the records");
  EXPECT_EQ(std::filesystem::file_size(rank), 28u);
}

TEST_F(CliTest, ReportNamesTheLineThatIsWrong) {
  const std::string records = Write("bad.jsonl", "{}\n");
  const Outcome outcome = Run({"report", records, "-o", Path("out.html")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("bad.jsonl:1: no 'schema': not a record of Condense"));
  EXPECT_FALSE(std::filesystem::exists(Path("out.html")));
}

TEST_F(CliTest, ReportOfALabFolderIsAPage) {
  std::filesystem::create_directories(Path("lab"));
  Write("lab/records-0.jsonl",
        R"({"schema":1,"record":"run","program":"condense lab","model":"made.gguf"})"
        "\n"
        R"({"schema":1,"record":"policy","experiment":"made","cell":"policy=mean",)"
        R"("policy":"mean","teacher":"greedy","tf_match":0.9,"kv_read_share":0.1})"
        "\n"
        R"({"schema":1,"record":"cell","experiment":"made","cell":"policy=mean",)"
        R"("policy":"mean","state":"done","group":"","parameters":{"policy":"mean"}})"
        "\n");
  const std::string out = Path("lab.html");
  const Outcome outcome = Run({"report", Path("lab"), "-o", out});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "report: " + out + "\n");
  std::ifstream page(out);
  const std::string html((std::istreambuf_iterator<char>(page)), {});
  EXPECT_THAT(html, HasSubstr("<article class=\"run\" id=\"lab-made\">"));
  EXPECT_THAT(html, HasSubstr("href=\"./lab/records-0.jsonl\""));
}

// Into a file, as here, a table has all its columns, however wide; COLUMNS says otherwise.
TEST_F(CliTest, ATableInAFileIsWhole) {
  std::filesystem::create_directories(Path("lab"));
  Write("lab/records-0.jsonl",
        R"({"schema":1,"record":"run","program":"condense lab","model":"made.gguf"})"
        "\n"
        R"({"schema":1,"record":"plan","experiment":"survival","cells":["policy=mean"]})"
        "\n"
        R"({"schema":1,"record":"policy","experiment":"survival","cell":"policy=mean",)"
        R"("policy":"mean","teacher":"greedy","n_decisions":127,"tf_match":0.5,"kl_mean":0.5,)"
        R"("ppl_ratio":1.5,"kv_read_share":0.1,"nominal_rows_per_query_head":97})"
        "\n"
        R"({"schema":1,"record":"cell","experiment":"survival","cell":"policy=mean",)"
        R"("policy":"mean","state":"done","group":"","parameters":{"policy":"mean"}})"
        "\n");
  const auto header = [&] {
    const Outcome outcome = Run({"lab", "status", Path("lab")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const size_t begin = outcome.out.find("context  policy");
    if (begin == std::string::npos) return outcome.out;
    return outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
  };
  unsetenv("COLUMNS");
  const std::string whole = header();
  for (const char* column : {"rows", "read", "T_sig", "TF match", "ΔPPL", "KL"})
    EXPECT_THAT(whole, HasSubstr(column));
  EXPECT_GT(whole.size(), 90u);
  setenv("COLUMNS", "60", 1);
  const std::string narrow = header();
  unsetenv("COLUMNS");
  EXPECT_LE(narrow.size(), 60u);
  EXPECT_THAT(narrow, Not(HasSubstr("read")));
  EXPECT_THAT(narrow, HasSubstr("TF match"));
}

TEST_F(CliTest, ALabSpecSaysWhereAPolicyIsNone) {
  const auto refused = [&](const std::string& experiment, const std::string& key,
                           const std::string& value, const std::string& why) {
    const std::string spec = Write(
        "x.toml", "experiment = \"" + experiment + "\"\n" + key + " = [\n  \"" + value + "\"]\n");
    ExpectRefused({"lab", "run", spec, "--out", Path("made")},
                  "condense: spec '" + spec + "', line 3: " + key + " = '" + value + "': " + why);
  };
  const std::string near = "policy 'quset' is unknown; did you mean 'quest'?";
  for (const char* experiment : {"equal-bytes", "survival", "needle", "guard", "mass"})
    refused(experiment, "policies", "quset", near);
  refused("exact", "drafts", "lookup+quset:blocks=4", near);
  refused("survival", "policies", "mean:blocsk=2",
          "policy 'mean' has no key 'blocsk'; did you mean 'blocks'?");
  refused("equal-bytes", "policies", "mean:window=64", "name it without its keys");
  EXPECT_FALSE(std::filesystem::exists(Path("made")));
}

TEST_F(CliTest, HelpAndVersionSucceed) {
  for (const char* word : {"help", "--help", "--version"}) {
    const Outcome outcome = Run({word});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("condense"));
    EXPECT_THAT(outcome.err, IsEmpty());
  }
}

TEST_F(CliTest, UnknownNames) {
  ExpectRefused({"compare", "--recrods", "x"}, "did you mean '--records'?");
  ExpectRefused({"rnu"}, "did you mean 'run'?");
  ExpectRefused({}, "compare");
}

TEST_F(CliTest, NumbersThatMakeNoSense) {
  ExpectRefused({"compare", "-n", "0"}, "-n 0");
  ExpectRefused({"compare", "-n", "1"}, "-n 1 leaves no decision");
  ExpectRefused({"run", "-p", "hi", "-n", "0"}, "-n 0 generates nothing");
  ExpectRefused({"compare", "-t", "-3"}, "--threads");
  ExpectRefused({"compare", "-ctk", "q4_0"}, "'q4_0'");
}

TEST_F(CliTest, Texts) {
  ExpectRefused({"compare", "-p", ""}, "empty");
  ExpectRefused({"run"}, "empty");
  ExpectRefused({"compare", "-f", Path("none.txt")}, "none.txt': No such file");
  ExpectRefused({"compare", "-f", folder_}, "is a directory");
  ExpectRefused({"compare", "-f", Write("empty.txt", "")}, "is empty");
}

TEST_F(CliTest, Models) {
  ExpectRefused({"compare", "-m", Path("none.gguf")}, "none.gguf': No such file");
  ExpectRefused({"compare", "-m", Write("text.gguf", "no model at all")}, "not a GGUF model");
  const std::string model = ReadBytes(CONDENSE_TEST_MODEL);
  ASSERT_GT(model.size(), 90000000u);
  ExpectRefused({"compare", "-m", Write("cut.gguf", model.substr(0, model.size() - 1000))},
                "is truncated: tensor");
  ExpectRefused({"info", "-m", Write("head.gguf", model.substr(0, 5000))}, "truncated");
}

TEST_F(CliTest, LengthsAndMemory) {
  const Outcome too_long = Run({"compare", "-c", "1024"});
  EXPECT_EQ(too_long.code, 2);
  EXPECT_THAT(too_long.err, HasSubstr("7,511 tokens"));
  EXPECT_THAT(too_long.err, HasSubstr("the context takes 1,024"));
  ExpectRefused({"compare", "--prompt-tokens", "9000"}, "more than the 7,639 tokens");
  ExpectRefused({"compare", "--offset", "7639"}, "leaves nothing");
  const Outcome too_big = Run({"compare", "-c", "2000000000"});
  EXPECT_EQ(too_big.code, 2);
  EXPECT_THAT(too_big.err, HasSubstr("does not fit in memory"));
  EXPECT_THAT(too_big.err, HasSubstr("46080000000000 bytes"));
}

TEST_F(CliTest, Policies) {
  ExpectRefused({"compare", "--policy", "quset"}, "quest");
  ExpectRefused({"run", "-p", "hi", "--policy", "mean:blokcs=8"}, "blocks");
  ExpectRefused({"compare", "--policies", "mean,quset"}, "did you mean 'quest'?");
  ExpectRefused({"compare", "--policies", "mean", "--budgets", "5"}, "'5' is no share");
  ExpectRefused({"compare", "--budgets", "5%"}, "--policies");
  ExpectRefused({"probe", "mass", "--policy", "mean:budget=5%"}, "with blocks= or tokens=");
  ExpectRefused({"probe", "mass", "--policy", "dense"}, "dense_layers");
  ExpectRefused({"probe"}, "give a probe: mass");
  ExpectRefused({"env", "--policy", "nothing:at=all"}, "nothing");
  const Outcome list = Run({"policies"});
  EXPECT_EQ(list.code, 0) << list.err;
  for (const char* name : {"dense", "mean", "quest", "window", "random"})
    EXPECT_THAT(list.out, HasSubstr(name));
  const Outcome json = Run({"policies", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.out.front(), '[');
}

TEST_F(CliTest, ExactDecoding) {
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    more.insert(more.begin(), {"run", "-p", "hi"});
    ExpectRefused(more, why);
  };
  refused({"--mode", "exat"}, "--mode");
  refused({"--draft", "lookup"}, "--mode");
  refused({"--mode", "sparse", "--verify-exact"}, "go with --mode exact");
  refused({"--mode", "exact", "--draft-tokens", "17"}, "'17' is neither auto nor 1 to 16");
  refused({"--mode", "exact", "--draft-tokens", "many"}, "'many' is neither");
  refused({"--mode", "exact", "--draft", "quset"}, "did you mean 'quest'?");
  refused({"--mode", "exact", "--draft", "lookup+quset"}, "did you mean 'quest'?");
  refused({"--mode", "exact", "--draft", "lookup+"}, "names no policy");
  refused({"--mode", "exact", "--policy", "dense"}, "dense reads everything");
  refused({"--mode", "exact", "--policy", "mean", "--draft", "lookup"}, "both say what drafts");
}

TEST_F(CliTest, PolicyFiles) {
  const std::string good = Write("good, and so on.toml", "spec = \"mean:blocks=4\"\n");
  const Outcome env = Run({"env", "--policy", "@" + good});
  EXPECT_EQ(env.code, 0) << env.err;
  EXPECT_THAT(env.out, HasSubstr("export CONDENSE_POLICY='mean:blocks=4'"));
  setenv("CONDENSE_POLICY", ("@" + good).c_str(), 1);
  EXPECT_THAT(Run({"env"}).out, HasSubstr("export CONDENSE_POLICY='mean:blocks=4'"));
  unsetenv("CONDENSE_POLICY");
  const std::string bad = Write("bad.toml", "spec = \"mean\"\nspeck = \"mean\"\n");
  const std::string why = "policy file '" + bad + "', line 2: key 'speck' is unknown";
  ExpectRefused({"env", "--policy", "@" + bad}, why);
  ExpectRefused({"run", "-p", "hi", "--policy", "@" + bad}, why);
  ExpectRefused({"compare", "--policy", "@" + bad}, why);
  ExpectRefused({"probe", "mass", "--policy", "@" + bad}, why);
  ExpectRefused({"bench", "decode", "--policy", "@" + bad}, why);
  ExpectRefused({"run", "-p", "hi", "--policy", "@" + Path("none.toml")},
                "none.toml': cannot be read: No such file");
}

TEST_F(CliTest, PolicyFilesOfAnotherModelWarn) {
  const std::string other =
      Write("p.toml", "spec = \"mean\"\n[made]\nmodel = \"other.gguf\"\nmodel_sha256 = \"12\"\n");
  const Outcome outcome = Run({"run", "-p", "hi", "-n", "2", "-c", "1", "--policy", "@" + other});
  EXPECT_EQ(outcome.code, 2) << "one row of cache is too few: refused before work, but warned";
  EXPECT_THAT(outcome.err, HasSubstr("was made for another model, other.gguf"));
  setenv("CONDENSE_POLICY", ("@" + other).c_str(), 1);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", "-p", "hi", "-n", "2", "-c", "1"},
        {"calibrate", "-c", "1", "-o", Path("g.toml")}}) {
    const Outcome by_environment = Run(command);
    EXPECT_EQ(by_environment.code, 2);
    EXPECT_THAT(by_environment.err, HasSubstr("was made for another model, other.gguf"))
        << command[0];
  }
  unsetenv("CONDENSE_POLICY");
}

TEST_F(CliTest, EnvironmentForOtherPrograms) {
  const Outcome env = Run({"env", "--policy", "mean:blocks=8"});
  EXPECT_EQ(env.code, 0) << env.err;
  EXPECT_THAT(env.out, HasSubstr("export GGML_BACKEND_PATH='/"));
  EXPECT_THAT(env.out, HasSubstr("export CONDENSE_POLICY='mean"));
  EXPECT_THAT(Run({"env"}).out, HasSubstr("export CONDENSE_POLICY='condense:budget=8%'"));
  setenv("CONDENSE_POLICY", "quest", 1);
  EXPECT_THAT(Run({"env"}).out, HasSubstr("export CONDENSE_POLICY='quest:blocks=8'"));
  setenv("CONDENSE_POLICY", "", 1);
  EXPECT_THAT(Run({"env"}).out, HasSubstr("export CONDENSE_POLICY='condense:budget=8%'"));
  unsetenv("CONDENSE_POLICY");
}

TEST_F(CliTest, MissingPlugin) {
  setenv("CONDENSE_PLUGIN", "/nonexistent.so", 1);
  const Outcome outcome = Run({"policies"});
  unsetenv("CONDENSE_PLUGIN");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent.so"));
}

TEST_F(CliTest, RecordsThatCannotBeWritten) {
  ExpectRefused({"compare", "--records", "/nonexistent/r.jsonl"}, "/nonexistent/r.jsonl");
  ExpectRefused({"compare", "--report", "/nonexistent/r.html"}, "/nonexistent/r.html");
}

TEST_F(CliTest, FilesThatAreNoRecordsStayAsTheyAre) {
  const std::string diary = Write("diary.txt", "dear diary\n");
  ExpectRefused({"compare", "--prompt-tokens", "300", "-n", "4", "--records", diary},
                "holds no records of Condense");
  EXPECT_EQ(ReadBytes(diary), "dear diary\n");
}

}  // namespace
}  // namespace condense
