#include "app/lab_arguments.h"

#include <CLI/CLI.hpp>

namespace condense {
namespace {

using What = LabFlags::What;

CLI::App* AddOne(CLI::App& lab, LabFlags& flags, const char* name, What what,
                 const char* description) {
  CLI::App* one = lab.add_subcommand(name, description);
  one->callback([&flags, what] { flags.what = what; });
  return one;
}

void AddFolder(CLI::App* one, LabFlags& flags) {
  one->add_option("folder", flags.folder, "what `lab run` wrote (its --out)")
      ->required()
      ->type_name("DIR");
}

}  // namespace

CLI::App* AddLab(CLI::App& app, LabFlags& flags) {
  CLI::App* lab = app.add_subcommand(
      "lab", "repeat published experiments: from a spec to records and tables, resumable");
  CLI::App* list = AddOne(*lab, flags, "list", What::kList, "list the experiments");
  list->add_option("--spec", flags.spec, "print this experiment's default spec, for editing")
      ->type_name("NAME");
  CLI::App* run =
      AddOne(*lab, flags, "run", What::kRun,
             "run experiments. Cells that the folder holds are not run again, so a stopped or "
             "killed command goes on where it was; cells that failed are tried again. Started by "
             "mpirun, its processes share the work (docs/LAB.md)");
  run->add_option("specs", flags.specs,
                  "spec files (`lab list --spec NAME` prints one), or experiments' names for their "
                  "default specs")
      ->required()
      ->type_name("SPEC.toml|NAME…");
  run->add_option("-o,--out", flags.folder, "folder for records and copies of the specs")
      ->type_name("DIR")
      ->capture_default_str();
  run->add_option("-m,--model", flags.models,
                  "a GGUF file, once for each; default: those of the spec, else $CONDENSE_MODEL, "
                  "else the bundled SmolLM2-135M")
      ->type_name("FILE")
      ->type_size(1)
      ->allow_extra_args(false);
  run->add_option("--texts", flags.texts, "folder of the texts that specs name")->type_name("DIR");
  run->add_option("-t,--threads", flags.n_threads, "threads; default: the physical cores")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  run->add_option("--cache-type-k", flags.k_type,
                  "(-ctk) type of cached keys: f16, bf16, q8_0, f32")
      ->type_name("TYPE")
      ->capture_default_str();
  run->add_option("--cache-type-v", flags.v_type,
                  "(-ctv) type of cached values: f16, bf16, q8_0, f32")
      ->type_name("TYPE")
      ->capture_default_str();
  run->add_option("--lost-after", flags.lost_after,
                  "under mpirun: a process of which nothing is heard for so long is lost; its cell "
                  "fails, the others run what is left")
      ->check(CLI::Range(1.0, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  AddFolder(AddOne(*lab, flags, "status", What::kStatus,
                   "what a folder holds: cells done, failed with their reasons, left; the tables"),
            flags);
  CLI::App* exported =
      AddOne(*lab, flags, "export", What::kExport, "write a folder's records in another form");
  AddFolder(exported, flags);
  exported->add_flag("--csv", flags.csv, "one CSV file a kind of record, in DIR/csv")->required();
  return lab;
}

}  // namespace condense
