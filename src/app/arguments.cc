#include "app/arguments.h"

#include <condense_version.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "app/flag_groups.h"
#include "base/text.h"

namespace condense {
namespace {

// CLI11 has single-letter short options only; llama.cpp's longer ones are spelled out before it
// looks.
constexpr std::pair<const char*, const char*> kLongShorts[] = {
    {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}, {"-fa", "--flash-attn"}};

// "-ngl": a short flag of several letters, which CLI11 would read as -n with the value "gl".
bool IsLongShort(const std::string& word) {
  return word.size() > 2 && word[0] == '-' &&
         std::all_of(word.begin() + 1, word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

std::vector<std::string> SpellOut(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    for (const auto& [shorter, longer] : kLongShorts) {
      const std::string prefix = std::string(shorter) + "=";
      if (argument == shorter) argument = longer;
      if (argument.rfind(prefix, 0) == 0) argument = longer + argument.substr(prefix.size() - 1);
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::string VersionText() {
  return fmt::format("condense {} ({})\nllama.cpp {}, ggml {}\nbuilt by {}{}{}", CONDENSE_VERSION,
                     CONDENSE_COMMIT, CONDENSE_LLAMA_CPP_COMMIT, CONDENSE_GGML_VERSION,
                     CONDENSE_COMPILER, *CONDENSE_FLAGS ? ", flags " : "", CONDENSE_FLAGS);
}

CLI::App* AddCompare(CLI::App& app, CompareFlags& flags, std::vector<std::string>& budget_texts) {
  CLI::App* compare = app.add_subcommand(
      "compare", "decode dense and sparse side by side and measure the difference");
  AddModel(compare, flags.decode);
  CLI::Option* file = compare
                          ->add_option("-f,--file", flags.decode.file,
                                       "the text; default: the GPL-3 of /usr/share/common-licenses")
                          ->type_name("FILE");
  compare->add_option("-p,--prompt", flags.decode.prompt, "the text itself")
      ->type_name("TEXT")
      ->excludes(file);
  AddOffset(compare, flags.offset);
  compare
      ->add_option("--prompt-tokens", flags.prompt_tokens,
                   "tokens of the prompt; the text after them is the second teacher; default: all "
                   "but the last -n")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  compare
      ->add_option(
          "--policy", flags.policies,
          "a policy to compare, once for each (`condense policies` lists them); default, "
          "without --policies: condense at two sizes, mean at four, quest. @FILE: a policy "
          "file, as `condense tune` writes it")
      ->type_name("SPEC|@FILE")
      ->type_size(1)
      ->allow_extra_args(false);
  CLI::Option* policies =
      compare
          ->add_option("--policies", flags.grid_names,
                       "policies to compare at each of --budgets, or all. One without the key "
                       "budget= is told tokens= or window= so that it reads that share of the rows "
                       "visible on average; one with neither runs once. What cannot run is listed "
                       "with the reason")
          ->type_name("all|NAME,NAME")
          ->delimiter(',')
          ->allow_extra_args(false);
  compare
      ->add_option("--budgets", budget_texts,
                   "shares of the K + V bytes that dense attention reads; default: 2%,5%,10%,20%")
      ->type_name("P%,P%")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(policies);
  AddPredict(compare, flags.n_generate, "tokens to generate: 1 by the prefill, the rest decisions");
  AddCache(compare, flags.decode);
  compare
      ->add_option("--records", flags.records,
                   "write every figure as JSON Lines. Rows that the file holds of the same run are "
                   "read and not run again, so a stopped command goes on where it was")
      ->type_name("OUT.jsonl");
  compare->add_option("--report", flags.report, "write one self-contained HTML page")
      ->type_name("OUT.html");
  compare
      ->add_option("--speed-pairs", flags.speed_pairs,
                   "timed pairs of dense and sparse blocks a policy; 0: no timing")
      ->check(CLI::Range(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  return compare;
}

CLI::App* AddRun(CLI::App& app, RunFlags& flags) {
  CLI::App* run = app.add_subcommand("run", "generate text under a policy");
  AddModel(run, flags.decode);
  run->add_option("-f,--file", flags.decode.file,
                  "text of the prompt, before -p where both are given")
      ->type_name("FILE");
  run->add_option("-p,--prompt", flags.decode.prompt, "the prompt, or the question about the file")
      ->type_name("TEXT");
  AddPolicy(run, flags.policy, "policy");
  AddPredict(run, flags.n_generate, "tokens to generate at most");
  AddCache(run, flags.decode);
  run->add_flag("--raw", flags.raw, "no chat template: the text goes on");
  run->add_option("--temp", flags.temperature, "temperature; 0: the likeliest token, always")
      ->check(CLI::NonNegativeNumber)
      ->type_name("T")
      ->capture_default_str();
  run->add_option("--top-k", flags.top_k, "sample among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->type_name("K")
      ->capture_default_str();
  run->add_option("--top-p", flags.top_p, "sample within this probability mass")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P")
      ->capture_default_str();
  run->add_option("--min-p", flags.min_p, "drop tokens below this share of the likeliest")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P")
      ->capture_default_str();
  run->add_option("-s,--seed", flags.seed, "seed of sampling; -1: a new one")
      ->check(CLI::Range(int64_t{-1}, int64_t{4294967294}))
      ->type_name("SEED")
      ->capture_default_str();
  AddModes(run, flags);
  return run;
}

CLI::App* AddProbe(CLI::App& app, ProbeFlags& flags) {
  CLI::App* probe = app.add_subcommand("probe", "measure attention inside one decision");
  CLI::App* mass = probe->add_subcommand(
      "mass",
      "attention mass that a policy's rows hold, by layer, beside the rows always read and the "
      "heaviest blocks; the identity of omitted mass, its bound and the margin condition");
  AddModel(mass, flags.decode);
  mass->add_option("-f,--file", flags.decode.file,
                   "the text; default: the GPL-3 of /usr/share/common-licenses")
      ->type_name("FILE");
  AddOffset(mass, flags.offset);
  mass->add_option("--prompt-tokens", flags.prompt_tokens,
                   "tokens before the probe, which is the text's next one")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str();
  mass->add_option("--policy", flags.policy, "a policy with distant blocks, by blocks= or tokens=")
      ->type_name("SPEC|@FILE")
      ->capture_default_str();
  mass->add_option("--layers", flags.layers, "layers to probe; default: all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::NonNegativeNumber)
      ->type_name("L,L");
  mass->add_option("-n,--decisions", flags.n_decisions,
                   "decisions on which identity, bound and margins are checked")
      ->check(CLI::Range(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  AddCache(mass, flags.decode);
  mass->add_option("--json", flags.json, "write every figure as JSON Lines")
      ->type_name("OUT.jsonl");
  return probe;
}

// "2%,5%" as shares; sets `wrong` to what is wrong with it.
std::vector<double> ReadBudgets(const std::vector<std::string>& texts, std::string& wrong) {
  std::vector<double> shares;
  for (const std::string& text : texts) {
    const Result<double> share = ParseShare(text, 0.01, 100);
    if (!share.ok()) {
      wrong = "--budgets " + share.error() + " of dense's bytes, as in --budgets 2%,5%,10%";
      return {};
    }
    shares.push_back(share.value());
  }
  return shares;
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  for (const auto& [shorter, longer] : kLongShorts) {
    if (std::find(names.begin(), names.end(), longer) != names.end()) names.emplace_back(shorter);
  }
  return names;
}

// "bench decode": the words that name a command.
std::string PathOf(const CLI::App* command) {
  std::string path;
  for (; command != nullptr && command->get_parent() != nullptr; command = command->get_parent()) {
    path = path.empty() ? command->get_name() : command->get_name() + " " + path;
  }
  return path;
}

std::vector<std::string> SubcommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({})) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

// What the user most likely meant by an argument that nothing took.
std::string ExplainExtra(const CLI::App& app, const CLI::App* command, const std::string& extra) {
  const std::string path = PathOf(command);
  if (extra.starts_with('-')) {
    const CLI::App& where = command ? *command : app;
    const std::string name = extra.substr(0, extra.find('='));
    return fmt::format("unknown flag '{}'{}\nrun `condense {}--help` for the flags", name,
                       DidYouMean(name, FlagNames(where)), command ? path + " " : "");
  }
  if (command && SubcommandNames(*command).empty()) {
    return fmt::format(
        "'{}' is not a flag or its value: text goes behind -p or -f\nrun `condense {} --help`",
        extra, path);
  }
  std::vector<std::string> names = SubcommandNames(command ? *command : app);
  names.emplace_back("help");
  return fmt::format("unknown command '{}'{}\nrun `condense {}` for the commands", extra,
                     DidYouMean(extra, names), command ? path + " --help" : "help");
}

// The command that the words name, before anything is parsed.
const CLI::App* NamedCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* named = nullptr;
  for (const std::string& word : words) {
    for (const CLI::App* command : (named ? named : &app)->get_subcommands({})) {
      if (command->get_name() == word) {
        named = command;
        break;
      }
    }
  }
  return named;
}

}  // namespace

Result<Arguments> ParseArguments(int argc, const char* const* argv) {
  Arguments arguments;
  arguments.argv.assign(argv, argv + argc);
  CLI::App app(
      "Sparse decoding over a long KV cache, measured beside dense on real weights.\n"
      "Exit codes: 0 done, 1 the work failed or was stopped, 2 something to mend before work "
      "begins, 3 no setting meets the target.",
      "condense");
  app.set_help_all_flag("--help-all", "help of every command");
  app.add_flag("-v,--verbose", arguments.verbose, "llama.cpp's own log on stderr");
  bool version = false;
  app.add_flag("--version", version,
               "versions of Condense, llama.cpp and ggml, and how they were built");
  std::vector<std::string> budget_texts;
  const CLI::App* compare = AddCompare(app, arguments.compare, budget_texts);
  const CLI::App* tune = AddTune(app, arguments.tune);
  const CLI::App* calibrate = AddCalibrate(app, arguments.calibrate);
  const CLI::App* run = AddRun(app, arguments.run);
  const CLI::App* probe = AddProbe(app, arguments.probe);
  const CLI::App* profile = AddProfile(app, arguments.profile);
  const CLI::App* bench = AddBench(app, arguments.bench);
  const CLI::App* lab = AddLab(app, arguments.lab);
  const CLI::App* report = AddReport(app, arguments.report);
  CLI::App* env =
      app.add_subcommand("env", "print the exports that load the plug-in into another program");
  AddPolicy(env, arguments.env_policy, "policy for that program");
  CLI::App* policies = app.add_subcommand("policies", "list the policies and their keys");
  policies->add_flag("--json", arguments.policies_json, "as JSON");
  CLI::App* info = app.add_subcommand(
      "info", "the model's shape, the machine, and whether the plug-in serves it");
  AddModel(info, arguments.info);
  AddCache(info, arguments.info);
  const CLI::App* help = app.add_subcommand("help", "this text");
  const auto for_every_command = [&](const std::function<void(CLI::App&)>& act) {
    for (CLI::App* subcommand : app.get_subcommands({})) {
      act(*subcommand);
      for (CLI::App* inner : subcommand->get_subcommands({})) act(*inner);
    }
  };
  for_every_command([](CLI::App& subcommand) { subcommand.fallthrough(); });

  std::vector<std::string> reversed = SpellOut(argc, argv);
  for (const std::string& word : reversed) {
    if (IsLongShort(word)) return Error{ExplainExtra(app, NamedCommand(app, reversed), word)};
  }
  std::reverse(reversed.begin(), reversed.end());  // CLI11 takes the last first
  const auto command = [&]() -> const CLI::App* {
    const CLI::App* chosen = nullptr;
    for (auto parsed = app.get_subcommands(); !parsed.empty(); parsed = chosen->get_subcommands()) {
      chosen = parsed.front();
    }
    return chosen;
  };
  const std::string general_help = app.help();  // once a command is parsed, help is that command's
  try {
    app.allow_extras();
    for_every_command([](CLI::App& subcommand) { subcommand.allow_extras(); });
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    arguments.text = command() ? command()->help() : general_help;
    return arguments;
  } catch (const CLI::CallForAllHelp&) {
    arguments.text = app.help("", CLI::AppFormatMode::All);
    return arguments;
  } catch (const CLI::Error& error) {
    return Error{fmt::format("{}\nrun `condense {}--help`", error.what(),
                             command() ? PathOf(command()) + " " : "")};
  }
  if (const std::vector<std::string> extras = app.remaining(true); !extras.empty()) {
    return Error{ExplainExtra(app, command(), extras.front())};
  }
  const std::pair<const CLI::App*, const char*> of_several[] = {
      {probe, "a probe"}, {profile, "a profile"}, {bench, "a benchmark"}, {lab, "what to do"}};
  for (const auto& [outer, what] : of_several) {
    if (version || !outer->parsed() || !outer->get_subcommands().empty()) continue;
    return Error{fmt::format("give {}: {} (`condense {} --help` tells more)", what,
                             JoinNames(SubcommandNames(*outer)), outer->get_name())};
  }
  if (version) {
    arguments.text = VersionText();
  } else if (compare->parsed()) {
    arguments.command = Arguments::Command::kCompare;
    std::string wrong;
    if (!budget_texts.empty()) arguments.compare.budgets = ReadBudgets(budget_texts, wrong);
    if (!wrong.empty()) return Error{wrong};
  } else if (tune->parsed()) {
    arguments.command = Arguments::Command::kTune;
  } else if (calibrate->parsed()) {
    arguments.command = Arguments::Command::kCalibrate;
  } else if (run->parsed()) {
    arguments.command = Arguments::Command::kRun;
  } else if (probe->parsed()) {
    arguments.command = Arguments::Command::kProbe;
  } else if (profile->parsed()) {
    arguments.command = Arguments::Command::kProfile;
  } else if (bench->parsed()) {
    arguments.command = Arguments::Command::kBench;
  } else if (lab->parsed()) {
    arguments.command = Arguments::Command::kLab;
  } else if (report->parsed()) {
    arguments.command = Arguments::Command::kReport;
  } else if (env->parsed()) {
    arguments.command = Arguments::Command::kEnv;
  } else if (policies->parsed()) {
    arguments.command = Arguments::Command::kPolicies;
  } else if (info->parsed()) {
    arguments.command = Arguments::Command::kInfo;
  } else if (help->parsed()) {
    arguments.text = general_help;
  } else {
    return Error{
        "give a command: compare, tune, calibrate, run, probe, profile, bench, lab, report, env, "
        "policies or info (`condense help` tells more)"};
  }
  return arguments;
}

}  // namespace condense
