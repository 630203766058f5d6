// The command line: subcommands and flags, spelled as llama.cpp spells them, parsed by CLI11.
// Unknown names are answered with the nearest one. Checks the form and range of single values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/bench_arguments.h"
#include "app/lab_arguments.h"
#include "base/result.h"

namespace condense {

// Flags of every command that decodes.
struct DecodeFlags {
  std::string model;  // empty: the default model
  std::string file;
  std::optional<std::string> prompt;
  int n_context = 0;  // 0: as long as needed
  int n_threads = 0;  // 0: the physical cores
  std::string k_type = "f16", v_type = "f16";
  std::string flash_attention = "on";  // the only value there is
};

struct CompareFlags {
  DecodeFlags decode;
  int64_t offset = 0;                   // tokens of the text before the prompt
  int64_t prompt_tokens = 0;            // 0: all, but for a continuation held back
  std::vector<std::string> policies;    // specs
  std::vector<std::string> grid_names;  // --policies: names, or "all"; each at every budget
  std::vector<double> budgets = {0.02, 0.05, 0.1, 0.2};  // shares of dense's bytes
  int n_generate = 128;
  std::string records, report;
  int speed_pairs = 5;
};

struct RunFlags {
  DecodeFlags decode;
  std::string policy;  // empty: what is in force (CONDENSE_POLICY, else the default)
  int n_generate = 256;
  bool raw = false;
  double temperature = 0, top_p = 0.95, min_p = 0.05;
  int top_k = 40;
  int64_t seed = -1;  // -1: a new one each time
  std::string mode = "sparse";
  std::string draft, draft_tokens = "auto";  // of exact; draft "": the policy in force
  bool verify_exact = false;
  std::string risk, calibration, rewrite = "off";  // of guard; risk "": the file's
  std::string every = "auto";                      // of refresh
};

// `probe mass`.
struct ProbeFlags {
  DecodeFlags decode;
  int64_t offset = 0;
  int64_t prompt_tokens = 2041;  // with the probe itself, 2,042 rows
  std::string policy = "mean:blocks=2";
  std::vector<int> layers;  // empty: all
  int n_decisions = 32;
  std::string json;
};

struct ReportFlags {
  std::vector<std::string> paths;  // files of records, folders of `lab run`
  std::string out = "report.html";
};

struct TuneFlags {
  DecodeFlags decode;
  std::vector<std::string> files;  // empty: the default text
  std::string target = "tf=99%", confidence = "95%";
  std::vector<std::string> policies = {"condense", "mean"};  // names
  int n_prefixes = 4;         // the first of every four is searched on, the others are held out
  int64_t prompt_tokens = 0;  // 0: as many as the texts allow
  int n_generate = 256;
  std::string output = "condense-policy.toml";
  std::string records;  // a folder
};

struct CalibrateFlags {
  DecodeFlags decode;
  std::vector<std::string> files;  // empty: the default text
  std::string policy;              // empty: what is in force
  std::string risk = "1%", confidence = "95%", rewrite = "off", on = "both";
  int n_prefixes = 8;         // the first of every four is searched on, the others are held out
  int64_t prompt_tokens = 0;  // 0: as many as the texts allow
  int64_t from = 0;           // least tokens of a prompt; 0: all have as many
  int n_generate = 256;
  std::string output = "condense-guard.toml";
  std::string records;  // a file
};

// `profile duo`.
struct ProfileFlags {
  DecodeFlags decode;
  std::vector<std::string> files;  // empty: the default text
  int sink = 64, window = 256;
  int n_prefixes = 1;
  int64_t prompt_tokens = 0;  // 0: as many as the texts allow
  int n_decisions = 32;
  std::string output;
};

struct Arguments {
  enum class Command {
    kCompare,
    kTune,
    kCalibrate,
    kRun,
    kProbe,
    kProfile,
    kBench,
    kLab,
    kReport,
    kEnv,
    kPolicies,
    kInfo,
    kText
  } command = Command::kText;
  CompareFlags compare;
  TuneFlags tune;
  CalibrateFlags calibrate;
  RunFlags run;
  ProbeFlags probe;
  ProfileFlags profile;
  BenchFlags bench;
  LabFlags lab;
  ReportFlags report;
  std::string env_policy;
  DecodeFlags info;
  bool policies_json = false;
  bool verbose = false;
  std::string text;  // kText: the help or version to print
  std::vector<std::string> argv;
};

// Errors are one or two lines for the user, ready to print.
Result<Arguments> ParseArguments(int argc, const char* const* argv);

}  // namespace condense
