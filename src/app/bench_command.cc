// `condense bench`: flags to options, records to tables and JSON Lines.
#include <condense_version.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <optional>

#include "app/bench_table.h"
#include "app/commands.h"
#include "app/exit_code.h"
#include "app/machine.h"
#include "app/output.h"
#include "bench/candidate.h"
#include "bench/equal_rows.h"
#include "bench/operators.h"
#include "bench/record.h"
#include "bench/yardstick.h"
#include "decode/model_file.h"
#include "decode/stop.h"
#include "kernels/target.h"
#include "lab/records.h"

namespace condense {
namespace {

using What = BenchFlags::What;

Status TakeModel(const std::string& path, BenchOptions& options) {
  Shape& shape = options.shape;
  const Result<ModelFile> model = ReadModelFile(path);
  if (!model.ok()) return Error{model.error()};
  if (model->k_head_dim != model->v_head_dim) {
    return Error{
        fmt::format("model '{}' has keys of {} and values of {} channels: unlike head "
                    "sizes are left to llama.cpp",
                    path, model->k_head_dim, model->v_head_dim)};
  }
  shape.n_query_heads = model->n_query_heads;
  shape.n_kv_heads = *std::max_element(model->n_kv_heads.begin(), model->n_kv_heads.end());
  shape.head_dim = model->k_head_dim;
  options.n_model_layers = model->n_layers;
  if (shape.n_query_heads < 1 || shape.n_kv_heads < 1) {
    return Error{fmt::format("model '{}' names no attention heads", path)};
  }
  return {};
}

Result<BenchOptions> ToOptions(const BenchFlags& flags) {
  BenchOptions options;
  for (const std::string& type : {flags.k_type, flags.v_type}) {
    const Status status = CheckCacheType(type);
    if (!status.ok()) return Error{status.error()};
  }
  Shape& shape = options.shape;
  shape.k_type = *ParseKvType(flags.k_type);
  shape.v_type = *ParseKvType(flags.v_type);
  if (flags.what == What::kCandidate) shape.n_query_heads = shape.n_kv_heads = 12;
  if (!flags.model.empty()) {
    const Status status = TakeModel(flags.model, options);
    if (!status.ok()) return Error{status.error()};
  }
  shape.n_query_heads = flags.query_heads.value_or(shape.n_query_heads);
  shape.n_kv_heads = flags.kv_heads.value_or(shape.n_kv_heads);
  shape.head_dim = flags.head_dim.value_or(shape.head_dim);
  if (flags.what == What::kSingle) shape.n_rows = 131072;
  if (flags.rows.size() == 1) shape.n_rows = flags.rows[0];
  options.n_threads = flags.n_threads > 0 ? flags.n_threads : PhysicalCores();
  options.n_layers = flags.n_layers;
  options.n_rounds = flags.n_rounds;
  options.n_query_rows = flags.n_query_rows;
  options.policies = flags.policies;
  if (!flags.grid_names.empty()) {
    Result<EqualRows> equal = PoliciesAtEqualRows(flags.grid_names, flags.n_tokens, shape.n_rows);
    if (!equal.ok()) return Error{equal.error()};
    std::move(equal->specs.begin(), equal->specs.end(), std::back_inserter(options.policies));
    for (const std::string& why : equal->left_out) PrintNote("left out: " + why);
  }
  const bool sparse = flags.what == What::kDecode || flags.what == What::kSelect;
  if (sparse && options.policies.empty()) options.policies = {"mean:blocks=8"};
  options.check = flags.check;
  options.host = flags.host;
  options.huge_pages = !flags.small_pages;
  options.buffer_bytes = static_cast<uint64_t>(flags.buffer_mb) * 1000000;
  options.free_bytes = AvailableMemory();
  return options;
}

std::optional<OperatorBench> OperatorOf(What what) {
  switch (what) {
    case What::kDecode:
      return OperatorBench::kDecode;
    case What::kSelect:
      return OperatorBench::kSelect;
    case What::kVerify:
      return OperatorBench::kVerify;
    case What::kPrefill:
      return OperatorBench::kPrefill;
    default:
      return std::nullopt;
  }
}

std::vector<int> CandidateRows(const BenchFlags& flags) {
  return flags.rows.empty() ? std::vector<int>{8192, 32768, 65536, 131072} : flags.rows;
}

// Everything that is wrong with what was asked, before work begins.
Status CheckBefore(const BenchFlags& flags, const BenchOptions& options) {
  if (const auto bench = OperatorOf(flags.what)) return CheckOptions(*bench, options);
  if (flags.what == What::kCandidate) return CheckCandidate(options, CandidateRows(flags));
  if (flags.what == What::kSingle) return CheckSingle(options);
  return {};
}

Result<BenchOutcome> RunBench(const BenchFlags& flags, const BenchOptions& options,
                              const BenchControl& control) {
  if (const auto bench = OperatorOf(flags.what)) return BenchOperator(*bench, options, control);
  if (flags.what == What::kCandidate) {
    return BenchCandidate(options, CandidateRows(flags), control);
  }
  if (flags.what == What::kSingle) return BenchSingle(options, control);
  return BenchMachine(options, control);
}

std::vector<std::pair<std::string, std::string>> Origin() {
  return {{"version", CONDENSE_VERSION},
          {"commit", CONDENSE_COMMIT},
          {"llama_cpp_commit", CONDENSE_LLAMA_CPP_COMMIT},
          {"ggml_version", CONDENSE_GGML_VERSION},
          {"compiler",
           fmt::format("{}{}{}", CONDENSE_COMPILER, *CONDENSE_FLAGS ? " " : "", CONDENSE_FLAGS)},
          {"instruction_set", CurrentTarget()},
          {"cpu", CpuName()},
          {"time_utc", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
}

}  // namespace

int BenchCommand(const BenchFlags& flags) {
  const Result<BenchOptions> options = ToOptions(flags);
  if (!options.ok()) return Fail(kExitUsage, options.error());
  const Status checked = CheckBefore(flags, options.value());
  if (!checked.ok()) return Fail(kExitUsage, checked.error());
  std::optional<RecordWriter> writer;
  if (!flags.json.empty()) {
    Result<RecordWriter> created = RecordWriter::Create(flags.json);
    if (!created.ok()) return Fail(kExitUsage, created.error());
    writer = std::move(created.value());
  }

  fmt::print("{}, {}, {} threads\n", CpuName(), CurrentTarget(), options->n_threads);
  std::fflush(stdout);
  Progress progress;
  BenchControl control;
  control.stopped = StopRequested;
  control.on_progress = [&](const std::string& label, int64_t n_done, int64_t n_total) {
    if (n_done == 1) progress.Stage();
    progress.Update(label, n_done, n_total);
  };
  int n_tables = 0;
  control.on_records = [&](std::span<const BenchRecord> records) {
    progress.Clear();
    fmt::print("\n{}", BenchTable(records, OutputWidth()));
    std::fflush(stdout);
    ++n_tables;
    if (!writer) return Status();
    for (BenchRecord record : records) {
      record.origin = Origin();
      Status written = writer->Write(record);
      if (!written.ok()) return written;
    }
    return Status();
  };
  const Result<BenchOutcome> outcome = RunBench(flags, options.value(), control);
  progress.Clear();
  if (!outcome.ok()) return Fail(kExitFailed, outcome.error());
  if (writer) fmt::print("records: {}\n", flags.json);
  switch (outcome.value()) {
    case BenchOutcome::kDone:
      return kExitOk;
    case BenchOutcome::kStopped:
      return Fail(kExitFailed, n_tables > 0 ? "stopped; what was measured stands above"
                                            : "stopped before anything was measured");
    case BenchOutcome::kCheckFailed:
      return Fail(kExitFailed,
                  "--check failed: an output is further from the reference than its "
                  "bound");
  }
  return kExitFailed;
}

}  // namespace condense
