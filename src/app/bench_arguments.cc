#include "app/bench_arguments.h"

#include <CLI/CLI.hpp>

#include "app/flag_groups.h"

namespace condense {
namespace {

using What = BenchFlags::What;

CLI::App* AddOne(CLI::App& bench, BenchFlags& flags, const char* name, What what,
                 const char* description) {
  CLI::App* one = bench.add_subcommand(name, description);
  one->callback([&flags, what] { flags.what = what; });
  AddThreads(one, flags.n_threads);
  one->add_option("--rounds", flags.n_rounds, "rounds in which all arms take their turns")
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  one->add_option("--buffer", flags.buffer_mb,
                  "MB that the stream yardstick reads; default: 768, or 2.5 last-level caches")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("MB");
  one->add_flag("--small-pages", flags.small_pages,
                "no huge pages, neither for the yardstick nor for caches");
  one->add_option("--json", flags.json, "write every figure as JSON Lines")->type_name("OUT.jsonl");
  return one;
}

void AddRows(CLI::App* one, BenchFlags& flags, const char* help, bool several = false) {
  CLI::Option* rows = one->add_option("--rows", flags.rows, help)
                          ->check(CLI::Range(2, 1 << 24))
                          ->type_name(several ? "N,N" : "N");
  if (several) {
    rows->delimiter(',');
  } else {
    rows->expected(1);
  }
}

void AddShape(CLI::App* one, BenchFlags& flags) {
  AddRows(one, flags, "rows of the cache; default: 8192");
  one->add_option("-m,--model", flags.model, "GGUF file whose heads are taken")->type_name("FILE");
  one->add_option("--query-heads", flags.query_heads, "query heads; default: 9")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  one->add_option("--kv-heads", flags.kv_heads, "KV heads; default: 3")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  one->add_option("--head-dim", flags.head_dim, "channels of a head; default: 64")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  AddCacheTypes(one, flags.k_type, flags.v_type);
}

void AddLayers(CLI::App* one, BenchFlags& flags) {
  one->add_option("--layers", flags.n_layers,
                  "caches; where they fit the last-level cache, rows come from there; default: as "
                  "many as take more than the stream's buffer, and rows from memory")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
}

void AddCheck(CLI::App* one, BenchFlags& flags) {
  one->add_flag("--check", flags.check,
                "compare outputs with attention in double; exit code 1 beyond the bound");
}

void AddHost(CLI::App* one, BenchFlags& flags) {
  one->add_flag("--host,!--no-host", flags.host, "ggml's CPU operator beside (default), or not");
}

void AddPolicies(CLI::App* one, BenchFlags& flags) {
  one->add_option("--policy", flags.policies,
                  "a sparse arm, once for each; default: mean:blocks=8; dense: none")
      ->type_name("SPEC|@FILE")
      ->type_size(1)
      ->allow_extra_args(false);
  CLI::Option* grid =
      one->add_option("--policies", flags.grid_names,
                      "all, or names: these policies side by side, each reading --tokens rows")
          ->delimiter(',')
          ->type_name("all|NAME,NAME");
  one->add_option(
         "--tokens", flags.n_tokens,
         "rows that each of --policies reads (the same bytes, where its budget is of bytes)")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->needs(grid)
      ->type_name("N");
}

void AddQueryRows(CLI::App* one, BenchFlags& flags, const char* help) {
  one->add_option("--query-rows", flags.n_query_rows, help)
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
}

}  // namespace

CLI::App* AddBench(CLI::App& app, BenchFlags& flags) {
  CLI::App* bench = app.add_subcommand(
      "bench", "speed of attention on this machine, beside what the machine can do");
  AddOne(*bench, flags, "machine", What::kMachine,
         "the yardstick: stream reads from memory and cache, FP32 multiply-adds");

  CLI::App* decode = AddOne(*bench, flags, "decode", What::kDecode,
                            "a rolling loop of decode steps, dense and sparse in turns");
  AddShape(decode, flags);
  AddPolicies(decode, flags);
  AddLayers(decode, flags);
  AddCheck(decode, flags);
  AddHost(decode, flags);

  CLI::App* select = AddOne(*bench, flags, "select", What::kSelect,
                            "what choosing costs, and keeping summaries current");
  AddShape(select, flags);
  AddPolicies(select, flags);
  AddLayers(select, flags);
  AddCheck(select, flags);

  CLI::App* verify =
      AddOne(*bench, flags, "verify", What::kVerify, "a few query rows at once against one by one");
  AddShape(verify, flags);
  AddQueryRows(verify, flags, "query rows, 2 to 16; default: 8");
  AddLayers(verify, flags);
  AddCheck(verify, flags);

  CLI::App* prefill = AddOne(*bench, flags, "prefill", What::kPrefill,
                             "many query rows at the end of a causal cache");
  AddShape(prefill, flags);
  AddQueryRows(prefill, flags, "query rows; default: 512");
  AddLayers(prefill, flags);
  AddCheck(prefill, flags);
  AddHost(prefill, flags);

  CLI::App* candidate = AddOne(*bench, flags, "candidate", What::kCandidate,
                               "every query of a sequence over 96 given rows, 12 heads of 64");
  AddRows(candidate, flags, "lengths of the sequence; default: 8192,32768,65536,131072", true);
  AddCacheTypes(candidate, flags.k_type, flags.v_type);
  AddCheck(candidate, flags);
  AddHost(candidate, flags);

  CLI::App* single =
      AddOne(*bench, flags, "single", What::kSingle,
             "one query at 131K rows: GPT-2-sized and grouped, fresh scan and reuse");
  AddRows(single, flags, "rows of the cache; default: 131072");
  AddCacheTypes(single, flags.k_type, flags.v_type);
  AddLayers(single, flags);
  AddCheck(single, flags);
  AddHost(single, flags);
  return bench;
}

}  // namespace condense
