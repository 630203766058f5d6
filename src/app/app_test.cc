// The command's parts that need neither model nor plug-in: arguments, cutting of texts, tables,
// output.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "app/arguments.h"
#include "app/bench_table.h"
#include "app/machine.h"
#include "app/output.h"
#include "app/prompt.h"
#include "app/session_setup.h"
#include "app/table.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result<Arguments> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "condense");
  return ParseArguments(static_cast<int>(words.size()), words.data());
}

TEST(Arguments, CompareFlags) {
  const Result<Arguments> parsed = Parse({"compare",
                                          "-m",
                                          "x.gguf",
                                          "-f",
                                          "t.txt",
                                          "--policy",
                                          "mean:blocks=8,window=64",
                                          "--policy",
                                          "quest",
                                          "-n",
                                          "32",
                                          "-c",
                                          "4096",
                                          "-t",
                                          "2",
                                          "-ctk",
                                          "q8_0",
                                          "-ctv=f32",
                                          "--offset",
                                          "5",
                                          "--prompt-tokens",
                                          "100",
                                          "--records",
                                          "r.jsonl",
                                          "--report",
                                          "r.html"});
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  const CompareFlags& flags = parsed->compare;
  EXPECT_EQ(parsed->command, Arguments::Command::kCompare);
  EXPECT_EQ(flags.decode.model, "x.gguf");
  EXPECT_EQ(flags.policies, (std::vector<std::string>{"mean:blocks=8,window=64", "quest"}));
  EXPECT_EQ(flags.n_generate, 32);
  EXPECT_EQ(flags.decode.n_context, 4096);
  EXPECT_EQ(flags.decode.n_threads, 2);
  EXPECT_EQ(flags.decode.k_type, "q8_0");
  EXPECT_EQ(flags.decode.v_type, "f32");
  EXPECT_EQ(flags.offset, 5);
  EXPECT_EQ(flags.prompt_tokens, 100);
  EXPECT_EQ(flags.records, "r.jsonl");
  EXPECT_EQ(flags.report, "r.html");
}

TEST(Arguments, PoliciesAtBudgets) {
  const Result<Arguments> parsed =
      Parse({"compare", "--policies", "mean,quest", "--budgets", "2%,7.5%", "--policy", "sink"});
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->compare.grid_names, (std::vector<std::string>{"mean", "quest"}));
  EXPECT_EQ(parsed->compare.policies, (std::vector<std::string>{"sink"}));
  EXPECT_EQ(parsed->compare.budgets, (std::vector<double>{0.02, 0.075}));
  EXPECT_EQ(Parse({"compare", "--policies", "all"})->compare.budgets,
            (std::vector<double>{0.02, 0.05, 0.1, 0.2}));
  for (const char* wrong : {"2", "0%", "101%", "5%,x", "nan%"}) {
    const Result<Arguments> refused = Parse({"compare", "--policies", "all", "--budgets", wrong});
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(refused.error(), HasSubstr("write 0.01% to 100%"));
  }
  EXPECT_THAT(Parse({"compare", "--budgets", "2%"}).error(), HasSubstr("--policies"));
}

TEST(Arguments, TuneAndProfileFlags) {
  const Result<Arguments> tune = Parse({"tune", "-f", "a.txt", "-f", "b.txt", "--policies",
                                        "mean,quest", "--target", "kl=0.1", "-o", "p.toml"});
  ASSERT_TRUE(tune.ok()) << tune.error();
  EXPECT_EQ(tune->command, Arguments::Command::kTune);
  EXPECT_EQ(tune->tune.files, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(tune->tune.policies, (std::vector<std::string>{"mean", "quest"}));
  EXPECT_EQ(tune->tune.target, "kl=0.1");
  EXPECT_EQ(Parse({"tune"})->tune.policies, (std::vector<std::string>{"condense", "mean"}));
  const Result<Arguments> profile = Parse({"profile", "duo", "-f", "a.txt", "-o", "p.tsv"});
  ASSERT_TRUE(profile.ok()) << profile.error();
  EXPECT_EQ(profile->command, Arguments::Command::kProfile);
  EXPECT_EQ(profile->profile.output, "p.tsv");
  EXPECT_THAT(Parse({"profile"}).error(), HasSubstr("give a profile: duo"));
}

TEST(Arguments, RunFlagsAndDefaults) {
  const Result<Arguments> parsed =
      Parse({"run", "-p", "hi", "-s", "7", "--temp", "0.5", "--top-k", "3", "--raw", "-v"});
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->run.decode.prompt, "hi");
  EXPECT_EQ(parsed->run.seed, 7);
  EXPECT_EQ(parsed->run.temperature, 0.5);
  EXPECT_TRUE(parsed->run.raw);
  EXPECT_TRUE(parsed->verbose);
  EXPECT_EQ(Parse({"run", "-p", "hi"})->run.temperature, 0);
  EXPECT_EQ(Parse({"run", "-p", "hi"})->run.mode, "sparse");
  const Result<Arguments> exact = Parse({"run", "-p", "hi", "--mode", "exact", "--draft", "lookup",
                                         "--draft-tokens", "8", "--verify-exact"});
  ASSERT_TRUE(exact.ok()) << exact.error();
  EXPECT_EQ(exact->run.mode, "exact");
  EXPECT_EQ(exact->run.draft, "lookup");
  EXPECT_EQ(exact->run.draft_tokens, "8");
  EXPECT_TRUE(exact->run.verify_exact);
  EXPECT_EQ(Parse({"compare"})->compare.n_generate, 128);
}

TEST(Arguments, BenchFlags) {
  const Result<Arguments> parsed = Parse(
      {"bench",         "decode",   "--rows",  "4096",   "-m",        "x.gguf",
       "--query-heads", "12",       "-ctk",    "q8_0",   "--policy",  "mean:blocks=8,window=64",
       "--policy",      "quest",    "-t",      "2",      "--layers",  "3",
       "--rounds",      "5",        "--check", "--json", "out.jsonl", "--no-host",
       "--small-pages", "--buffer", "16"});
  ASSERT_TRUE(parsed.ok()) << parsed.error();
  EXPECT_EQ(parsed->command, Arguments::Command::kBench);
  const BenchFlags& flags = parsed->bench;
  EXPECT_EQ(flags.what, BenchFlags::What::kDecode);
  EXPECT_EQ(flags.rows, std::vector<int>{4096});
  EXPECT_EQ(flags.model, "x.gguf");
  EXPECT_EQ(flags.query_heads, 12);
  EXPECT_FALSE(flags.kv_heads.has_value());
  EXPECT_EQ(flags.k_type, "q8_0");
  EXPECT_EQ(flags.policies, (std::vector<std::string>{"mean:blocks=8,window=64", "quest"}));
  EXPECT_EQ(flags.n_threads, 2);
  EXPECT_EQ(flags.n_layers, 3);
  EXPECT_EQ(flags.n_rounds, 5);
  EXPECT_EQ(flags.buffer_mb, 16);
  EXPECT_TRUE(flags.check);
  EXPECT_FALSE(flags.host);
  EXPECT_TRUE(flags.small_pages);
  EXPECT_EQ(flags.json, "out.jsonl");
  EXPECT_TRUE(Parse({"bench", "prefill"})->bench.host);
  EXPECT_EQ(Parse({"bench", "candidate", "--rows", "8192,600"})->bench.rows,
            (std::vector<int>{8192, 600}));
  using What = BenchFlags::What;
  for (const auto& [name, what] :
       std::initializer_list<std::pair<const char*, What>>{{"machine", What::kMachine},
                                                           {"select", What::kSelect},
                                                           {"verify", What::kVerify},
                                                           {"single", What::kSingle}}) {
    EXPECT_EQ(Parse({"bench", name})->bench.what, what) << name;
  }
}

TEST(Arguments, BenchMistakes) {
  EXPECT_THAT(Parse({"bench"}).error(), HasSubstr("give a benchmark: machine, decode, select"));
  EXPECT_THAT(Parse({"bench", "decod"}).error(), HasSubstr("did you mean 'decode'?"));
  EXPECT_THAT(Parse({"bench", "decode", "--polcy", "mean"}).error(),
              HasSubstr("unknown flag '--polcy'; did you mean '--policy'?"));
  EXPECT_THAT(Parse({"bench", "decode", "--polcy", "mean"}).error(),
              HasSubstr("run `condense bench decode --help`"));
  EXPECT_THAT(Parse({"bench", "verify", "--policy", "mean"}).error(), HasSubstr("unknown flag"));
  EXPECT_THAT(Parse({"bench", "decode", "-ngl", "3"}).error(), HasSubstr("unknown flag '-ngl'"));
  EXPECT_THAT(Parse({"bench", "decode", "--rows", "0"}).error(), HasSubstr("--rows"));
  EXPECT_THAT(Parse({"bench", "decode", "--rounds", "many"}).error(), HasSubstr("bench decode"));
  EXPECT_THAT(Parse({"bench", "--help"})->text, HasSubstr("candidate"));
  EXPECT_THAT(Parse({"bench", "verify", "--help"})->text, HasSubstr("--query-rows"));
}

TEST(BenchTable, FitsItsWidthAndSaysWhatFailed) {
  BenchRecord dense;
  dense.bench = "decode";
  dense.arm = "dense";
  dense.per = "layer-step";
  dense.source = "memory";
  dense.ns = {9, 4e5, 4.1e5, 4.2e5};
  dense.bytes = 6e6;
  dense.flops = 2e7;
  dense.stream_share = dense.peak_share = Sample{9, 0.4, 0.5, 0.6};
  dense.yardstick = {{9, 1e10, 1.1e10, 1.2e10}, {9, 1e11, 1e11, 1e11}, 768000000, 1.0, true};
  BenchRecord sparse = dense;
  sparse.arm = "mean:blocks=8,window=128,share=head_union,reuse=4";
  sparse.ratio_to_dense = Sample{9, 4, 4.5, 5};
  sparse.max_error = 0.5;
  sparse.error_bound = 1e-5;
  sparse.check_failed = true;
  const std::vector<BenchRecord> records = {dense, sparse};
  for (int width : {80, 120, 160}) {
    const std::string table = BenchTable(records, width);
    const std::string rows =
        table.substr(0, table.find("mean:blocks=8,window=128,share=head_union,reuse=4: check"));
    EXPECT_THAT(rows, HasSubstr("4.50x"));
    EXPECT_THAT(table, HasSubstr("check FAILED"));
    EXPECT_THAT(table, Not(HasSubstr("over ggml")));
  }
  EXPECT_EQ(FormatNs(84890), "84.89 µs");
  EXPECT_EQ(FormatNs(2.5e9), "2.50 s");
  EXPECT_EQ(FormatNs(12), "12 ns");
}

TEST(Arguments, NearestNames) {
  EXPECT_THAT(Parse({"compare", "--polcy", "mean"}).error(),
              HasSubstr("unknown flag '--polcy'; did you mean '--policy'?"));
  EXPECT_THAT(Parse({"run", "--tmp=0"}).error(), HasSubstr("did you mean '--temp'?"));
  EXPECT_THAT(Parse({"compair"}).error(),
              HasSubstr("unknown command 'compair'; did you mean 'compare'?"));
  EXPECT_THAT(Parse({"compare", "text.txt"}).error(), HasSubstr("behind -p or -f"));
  EXPECT_THAT(Parse({"compare", "-n"}).error(), HasSubstr("condense compare --help"));
  EXPECT_THAT(Parse({"run", "-ngl", "0"}).error(), HasSubstr("unknown flag '-ngl'"));
  EXPECT_THAT(Parse({"run", "-ctx", "0"}).error(), HasSubstr("did you mean '-ctk'?"));
  EXPECT_TRUE(Parse({"run", "-p", "x", "-fa", "on", "-n128"}).ok());
  EXPECT_FALSE(Parse({"run", "-p", "x", "-fa", "off"}).ok());
  EXPECT_FALSE(Parse({"compare", "-n", "many"}).ok());
  EXPECT_FALSE(Parse({"compare", "-f", "a", "-p", "b"}).ok());
  EXPECT_FALSE(Parse({"compare", "-t", "0"}).ok());
  EXPECT_FALSE(Parse({}).ok());
}

TEST(Arguments, HelpAndVersion) {
  EXPECT_THAT(Parse({"--version"})->text, HasSubstr("llama.cpp"));
  EXPECT_THAT(Parse({"help"})->text, HasSubstr("compare"));
  EXPECT_THAT(Parse({"--help"})->text, HasSubstr("policies"));
  EXPECT_THAT(Parse({"compare", "--help"})->text, HasSubstr("--prompt-tokens"));
}

std::vector<Token> Numbers(int n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(CutTokens, WholeTextHoldsBackItsEnd) {
  TextCut cut;
  cut.n_generate = 10;
  cut.n_positions = 1000;
  const Result<CutText> result = CutTokens(Numbers(100), cut);
  ASSERT_TRUE(result.ok()) << result.error();
  EXPECT_TRUE(result->held_back);
  EXPECT_EQ(result->prompt.size(), 90u);
  EXPECT_EQ(result->continuation.front(), 90);
  EXPECT_EQ(result->continuation.size(), 10u);
}

TEST(CutTokens, ShortTextIsThePromptWhole) {
  TextCut cut;
  cut.n_generate = 10;
  const Result<CutText> result = CutTokens(Numbers(39), cut);
  ASSERT_TRUE(result.ok()) << result.error();
  EXPECT_FALSE(result->held_back);
  EXPECT_EQ(result->prompt.size(), 39u);
  EXPECT_TRUE(result->continuation.empty());
}

TEST(CutTokens, OffsetLengthAndBos) {
  TextCut cut;
  cut.offset = 20;
  cut.prompt_tokens = 50;
  cut.n_generate = 10;
  cut.add_bos = true;
  cut.bos = 777;
  const Result<CutText> result = CutTokens(Numbers(100), cut);
  ASSERT_TRUE(result.ok()) << result.error();
  EXPECT_EQ(result->prompt.size(), 51u);
  EXPECT_EQ(result->prompt[0], 777);
  EXPECT_EQ(result->prompt[1], 20);
  EXPECT_EQ(result->prompt.back(), 69);
  EXPECT_EQ(result->continuation.front(), 70);
  // Nine tokens are left: too few for a teacher.
  cut.prompt_tokens = 71;
  EXPECT_TRUE(CutTokens(Numbers(100), cut)->continuation.empty());
}

TEST(CutTokens, ErrorsNameBothNumbers) {
  TextCut cut;
  cut.n_generate = 128;
  cut.n_positions = 8192;
  const std::string too_long = CutTokens(Numbers(9120), cut).error();
  EXPECT_THAT(too_long, HasSubstr("8,992"));
  EXPECT_THAT(too_long, HasSubstr("8,192"));
  cut.n_context = 4096;
  EXPECT_THAT(CutTokens(Numbers(9120), cut).error(), HasSubstr("4,096"));
  cut.n_context = 16384;  // asked for beyond the model's positions: the user's choice
  EXPECT_TRUE(CutTokens(Numbers(9120), cut).ok());
  EXPECT_THAT(CutTokens({}, cut).error(), HasSubstr("empty"));
  cut.offset = 9120;
  EXPECT_THAT(CutTokens(Numbers(9120), cut).error(), HasSubstr("--offset 9120"));
  cut.offset = 9000;
  cut.prompt_tokens = 121;
  EXPECT_THAT(CutTokens(Numbers(9120), cut).error(), HasSubstr("more than the 120 tokens"));
  cut.prompt_tokens = 120;
  EXPECT_TRUE(CutTokens(Numbers(9120), cut).ok());
}

TEST(Text, Utf8) {
  EXPECT_TRUE(IsUtf8("plain, naïve, 漢字 🙂"));
  for (const char* bad : {"\xFF", "caf\xE9", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "a\xE6\xBC"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

TEST(Text, NumbersForPeople) {
  EXPECT_EQ(FormatCount(7639), "7,639");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatCount(12), "12");
  EXPECT_EQ(FormatDuration(65.4), "1:05");
  EXPECT_EQ(FormatDuration(7390), "2:03:10");
  EXPECT_EQ(FormatBytes(23040), "23 kB");
  EXPECT_EQ(FormatBytes(1536), "1.5 kB");
  EXPECT_EQ(FormatBytes(98000000), "98 MB");
  EXPECT_EQ(FormatBytes(1600000000), "1.6 GB");
}

TEST(Machine, SaysSomethingPlausible) {
  EXPECT_GE(PhysicalCores(), 1);
  EXPECT_GT(AvailableMemory(), 1u << 20);
  EXPECT_FALSE(CpuName().empty());
}

std::vector<CompareRow> MadeRows(const std::string& long_name) {
  std::vector<CompareRow> rows;
  for (const std::string& name : {std::string("dense"), std::string("control"), long_name}) {
    PolicyRecord greedy;
    greedy.policy = name;
    greedy.teacher = "greedy";
    if (name == long_name) greedy.t_div = 12;
    greedy.figures.match = 0.976;
    greedy.figures.ppl_ratio = 1.5;
    greedy.speed.n_pairs = 5;
    greedy.speed.ratio = {2.9, 3.1, 3.3};
    PolicyRecord text = greedy;
    text.teacher = "text";
    text.figures.kl_mean = 0.123;
    CompareRow row;
    row.teachers = {greedy, text};
    rows.push_back(row);
  }
  return rows;
}

int LongestLine(const std::string& text) {
  int longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    longest = std::max(longest, DisplayWidth(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return longest;
}

// stdout as another file while it lives.
class StdoutTo {
 public:
  explicit StdoutTo(int file) : before_(dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    dup2(file, STDOUT_FILENO);
  }
  ~StdoutTo() {
    dup2(before_, STDOUT_FILENO);
    close(before_);
  }

 private:
  const int before_;
};

TEST(OutputWidth, IsTheTerminalsAndAPipeHasNone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  winsize size = {};
  size.ws_col = 132;
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  const auto width = [](int file) {
    const StdoutTo here(file);
    return OutputWidth();
  };
  unsetenv("COLUMNS");
  EXPECT_EQ(width(ends[1]), kNoWidthLimit);
  EXPECT_EQ(width(terminal), 132);
  setenv("COLUMNS", "100", 1);
  EXPECT_EQ(width(ends[1]), 100);
  EXPECT_EQ(width(terminal), 100) << "COLUMNS wins over the terminal";
  for (const char* nothing : {"", "0", "-5", "wide", "80x"}) {
    setenv("COLUMNS", nothing, 1);
    EXPECT_EQ(width(terminal), 132) << nothing;
  }
  unsetenv("COLUMNS");
  close(terminal);
  close(ends[0]);
  close(ends[1]);
}

TEST(CheckMemory, CountsEveryCacheAndWhatIsBeside) {
  MemoryNeed need{.n_context = 1000, .n_caches = 2, .logits_bytes = 300, .other_bytes = 70};
  EXPECT_TRUE(CheckMemory(need, 10, 20370).ok());
  EXPECT_TRUE(CheckMemory(need, 10, 0).ok()) << "not known";
  need.way_out = "give smaller contexts";
  const std::string why = CheckMemory(need, 10, 20369).error();
  EXPECT_THAT(why, HasSubstr("a context of 1,000 tokens does not fit in memory"));
  EXPECT_THAT(why, HasSubstr("its KV cache takes 10 kB (10 B a token), and 2 are held at once"));
  EXPECT_THAT(why, HasSubstr("the logits kept 300 B, compute buffers 70 B"));
  EXPECT_THAT(why, HasSubstr("(20370 bytes of 20369): give smaller contexts"));
}

TEST(Table, WithoutALimitHasEveryColumnWhole) {
  const auto rows = MadeRows("mean:blocks=44,window=128,share=head_union,reuse=4,dense_layers=0-1");
  const std::string table = CompareTable(rows, 128, kNoWidthLimit);
  EXPECT_THAT(table, HasSubstr("dense_layers=0-1"));
  EXPECT_THAT(table, HasSubstr("quartiles"));
  EXPECT_THAT(table, HasSubstr("KL max"));
}

TEST(Table, FitsItsWidth) {
  const auto rows = MadeRows("mean:blocks=44");
  for (int width : {60, 80, 100, 160}) {
    const std::string table = CompareTable(rows, 128, width);
    EXPECT_LE(LongestLine(table), width) << table;
    EXPECT_THAT(table, HasSubstr("mean:blocks=44"));
    EXPECT_THAT(table, HasSubstr("97.6%"));
    EXPECT_THAT(table, HasSubstr(">127"));
    EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(CompareTable(rows, 128, 80), HasSubstr("3.10x"));
  EXPECT_THAT(CompareTable(rows, 128, 80), HasSubstr("+50.0%"));
  EXPECT_THAT(CompareTable(rows, 128, 160), HasSubstr("2.90-3.30x"));
}

TEST(Table, LongPolicyNamesAreShortened) {
  const auto rows = MadeRows("mean:blocks=44,window=128,share=head_union,reuse=4,dense_layers=0-1");
  const std::string table = CompareTable(rows, 128, 80);
  EXPECT_LE(LongestLine(table), 80) << table;
  EXPECT_THAT(table, HasSubstr("…"));
}

TEST(Table, WidthCountsCharacters) {
  EXPECT_EQ(DisplayWidth("ΔPPL"), 4);
  EXPECT_EQ(DisplayWidth("…"), 1);
  const std::string table = RenderTable(
      {{.title = "a", .left = true, .cells = {"é"}}, {.title = "Δ", .cells = {"10"}}}, 80);
  EXPECT_EQ(table, "a   Δ\né  10\n");
}

}  // namespace
}  // namespace condense
