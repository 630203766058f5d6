#include "app/flag_groups.h"

#include <CLI/CLI.hpp>

namespace condense {
namespace {

void AddTexts(CLI::App* app, std::vector<std::string>& files) {
  app->add_option("-f,--file", files,
                  "a text, once for each; default: the GPL-3 of /usr/share/common-licenses")
      ->type_name("FILE")
      ->type_size(1)
      ->allow_extra_args(false);
}

void AddPromptTokens(CLI::App* app, int64_t& n) {
  app->add_option("--prompt-tokens", n,
                  "tokens of a prefix; default: as many as text, model and -c allow")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
}

// Of a search and its held-out part.
void AddPrefixes(CLI::App* app, int& n_prefixes) {
  app->add_option("--prefixes", n_prefixes,
                  "pieces of the text, the first of every four to search on, the others held out")
      ->check(CLI::Range(2, 10000))
      ->type_name("N")
      ->capture_default_str();
}

void AddConfidence(CLI::App* app, std::string& confidence) {
  app->add_option("--confidence", confidence, "of the bound on the held-out part")
      ->type_name("P%")
      ->capture_default_str();
}

constexpr const char* kTokensOfAPrefix =
    "tokens after each prefix: 1 by the prefill, the rest decisions";

}  // namespace

void AddOffset(CLI::App* app, int64_t& offset) {
  app->add_option("--offset", offset, "tokens of the text to skip")
      ->check(CLI::NonNegativeNumber)
      ->type_name("TOKENS")
      ->capture_default_str();
}

void AddPolicy(CLI::App* app, std::string& policy, const std::string& what) {
  app->add_option("--policy", policy, what + "; default: $CONDENSE_POLICY, else condense:budget=8%")
      ->type_name("SPEC|@FILE");
}

void AddPredict(CLI::App* app, int& n_generate, const std::string& what) {
  app->add_option("-n,--predict", n_generate, what)->type_name("N")->capture_default_str();
}

void AddModel(CLI::App* app, DecodeFlags& flags) {
  app->add_option("-m,--model", flags.model,
                  "GGUF file; default: $CONDENSE_MODEL, else the bundled SmolLM2-135M")
      ->type_name("FILE");
}

void AddCache(CLI::App* app, DecodeFlags& flags) {
  app->add_option("-c,--ctx-size", flags.n_context, "context in tokens; default: as long as needed")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  app->add_option("-t,--threads", flags.n_threads, "threads; default: the physical cores")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app->add_option("--flash-attn", flags.flash_attention,
                  "(-fa) on, always: the plug-in serves flash attention")
      ->check(CLI::IsMember({"on"}))
      ->type_name("on");
  app->add_option("--cache-type-k", flags.k_type,
                  "(-ctk) type of cached keys: f16, bf16, q8_0, f32")
      ->type_name("TYPE")
      ->capture_default_str();
  app->add_option("--cache-type-v", flags.v_type,
                  "(-ctv) type of cached values: f16, bf16, q8_0, f32")
      ->type_name("TYPE")
      ->capture_default_str();
}

void AddModes(CLI::App* run, RunFlags& flags) {
  CLI::Option* mode =
      run->add_option("--mode", flags.mode,
                      "sparse: every step by the policy; exact: dense decoding's text, drafted by "
                      "sparse steps or from the context and verified dense; guard: a step whose "
                      "margin is small is redone dense; refresh: every R-th step is dense and "
                      "rewrites the rows of those before it")
          ->check(CLI::IsMember({"sparse", "exact", "guard", "refresh"}))
          ->type_name("MODE")
          ->capture_default_str();
  run->add_option("--draft", flags.draft,
                  "of exact: what drafts: a policy, lookup (what followed in the context before), "
                  "or both, lookup first; default: the policy")
      ->needs(mode)
      ->type_name("SPEC|@FILE|lookup|lookup+SPEC");
  run->add_option("--draft-tokens", flags.draft_tokens,
                  "of exact: tokens drafted before a verification, 1 to 16, or auto, by what they "
                  "cost and how many are accepted")
      ->needs(mode)
      ->type_name("N|auto")
      ->capture_default_str();
  run->add_flag("--verify-exact", flags.verify_exact,
                "of exact: decode dense afterwards and compare every token")
      ->needs(mode);
  run->add_option("--calibration", flags.calibration,
                  "of guard: the file that `condense calibrate` wrote; its policy is the default")
      ->needs(mode)
      ->type_name("FILE");
  run->add_option("--risk", flags.risk,
                  "of guard: refuse a file that is certified for more; default: the file's own")
      ->needs(mode)
      ->type_name("P%");
  run->add_option("--rewrite", flags.rewrite,
                  "of guard: on: dense steps also rewrite the rows of the sparse steps before them")
      ->needs(mode)
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off")
      ->capture_default_str();
  run->add_option("--every", flags.every, "of refresh: R, or auto, by what steps cost")
      ->needs(mode)
      ->type_name("R|auto")
      ->capture_default_str();
}

CLI::App* AddCalibrate(CLI::App& app, CalibrateFlags& flags) {
  CLI::App* calibrate = app.add_subcommand(
      "calibrate",
      "find the margin above which a sparse step's token may be taken, certify it on a part of "
      "your text held out, and write a file for `run --mode guard`. Exit code 3: no threshold "
      "keeps the risk");
  AddModel(calibrate, flags.decode);
  AddTexts(calibrate, flags.files);
  AddPolicy(calibrate, flags.policy, "the sparse steps' policy");
  calibrate
      ->add_option("--risk", flags.risk,
                   "share of decisions that may be taken and not be dense's, at most")
      ->type_name("P%")
      ->capture_default_str();
  AddConfidence(calibrate, flags.confidence);
  calibrate
      ->add_option("--on", flags.on,
                   "histories of the decisions: the text's own tokens, dense's greedy continuation "
                   "of it, which is nearer to what a run feeds, or both, each of which must hold")
      ->check(CLI::IsMember({"text", "greedy", "both"}))
      ->type_name("text|greedy|both")
      ->capture_default_str();
  calibrate->add_option("--rewrite", flags.rewrite, "as in `run --mode guard`")
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off")
      ->capture_default_str();
  AddPrefixes(calibrate, flags.n_prefixes);
  AddPromptTokens(calibrate, flags.prompt_tokens);
  calibrate
      ->add_option("--from", flags.from,
                   "tokens of the shortest prefix; those between are spread evenly; default: "
                   "all have --prompt-tokens")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  AddPredict(calibrate, flags.n_generate, kTokensOfAPrefix);
  AddCache(calibrate, flags.decode);
  calibrate->add_option("-o,--output", flags.output, "the calibration file")
      ->type_name("OUT.toml")
      ->capture_default_str();
  calibrate
      ->add_option("--records", flags.records,
                   "keep finished prefixes here; a stopped command goes on from them")
      ->type_name("OUT.jsonl");
  return calibrate;
}

CLI::App* AddTune(CLI::App& app, TuneFlags& flags) {
  CLI::App* tune = app.add_subcommand(
      "tune",
      "find the policy that reads least and meets a target of quality on your text, certify it on "
      "a part held out, and write a policy file. Exit code 3: no setting meets the target");
  AddModel(tune, flags.decode);
  AddTexts(tune, flags.files);
  tune->add_option("--target", flags.target,
                   "of decisions on the text's own tokens: tf=99% (share that equals dense's, at "
                   "least), kl=0.01 (mean, nats, at most) or ppl=2% (increase, at most)")
      ->type_name("TARGET")
      ->capture_default_str();
  AddConfidence(tune, flags.confidence);
  tune->add_option("--policies", flags.policies,
                   "policies to try, each at 2, 3, 5, 8, 12, 20, 35 or 50 % of dense's bytes")
      ->type_name("NAME,NAME")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  AddPrefixes(tune, flags.n_prefixes);
  AddPromptTokens(tune, flags.prompt_tokens);
  AddPredict(tune, flags.n_generate, kTokensOfAPrefix);
  AddCache(tune, flags.decode);
  tune->add_option("-o,--output", flags.output, "the policy file")
      ->type_name("OUT.toml")
      ->capture_default_str();
  tune->add_option("--records", flags.records,
                   "folder for a file of records a prefix; a stopped command goes on from them")
      ->type_name("FOLDER");
  return tune;
}

CLI::App* AddReport(CLI::App& app, ReportFlags& flags) {
  CLI::App* report =
      app.add_subcommand("report", "one HTML file of records: charts, tables, what was found");
  report
      ->add_option("records", flags.paths,
                   "folders of `condense lab run`, files of --records; one page of all")
      ->required()
      ->type_name("DIR|FILE");
  report->add_option("-o,--output", flags.out, "the page; opens offline")
      ->type_name("OUT.html")
      ->capture_default_str();
  return report;
}

CLI::App* AddProfile(CLI::App& app, ProfileFlags& flags) {
  CLI::App* profile = app.add_subcommand("profile", "measure a model's heads for a policy");
  CLI::App* duo = profile->add_subcommand(
      "duo",
      "attention mass of each KV head outside its first and last rows, as the file that "
      "duo:profile=FILE reads");
  AddModel(duo, flags.decode);
  AddTexts(duo, flags.files);
  duo->add_option("-o,--output", flags.output, "the profile")->type_name("FILE");
  duo->add_option("--sink", flags.sink, "first rows of a head that streams")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N")
      ->capture_default_str();
  duo->add_option("--window", flags.window, "last rows of a head that streams")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->capture_default_str();
  duo->add_option("--prefixes", flags.n_prefixes, "pieces of the text to measure on")
      ->check(CLI::Range(1, 10000))
      ->type_name("N")
      ->capture_default_str();
  AddPromptTokens(duo, flags.prompt_tokens);
  duo->add_option("-n,--decisions", flags.n_decisions,
                  "decode steps after each prefix, on the text's own tokens")
      ->check(CLI::Range(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  AddCache(duo, flags.decode);
  return profile;
}

}  // namespace condense
