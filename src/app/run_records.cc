#include "app/run_records.h"

#include <condense_version.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "app/machine.h"
#include "app/session_setup.h"
#include "lab/lab_records.h"

namespace condense {

RunRecord BeginRunRecord(const std::string& program, const RunParts& parts,
                         const std::vector<std::string>& argv) {
  const ModelFile& file = parts.file;
  const DecodeFlags& flags = parts.decode;
  RunRecord run;
  run.program = program;
  run.version = CONDENSE_VERSION;
  run.commit = CONDENSE_COMMIT;
  run.llama_cpp_commit = CONDENSE_LLAMA_CPP_COMMIT;
  run.ggml_version = CONDENSE_GGML_VERSION;
  run.compiler =
      fmt::format("{}{}{}", CONDENSE_COMPILER, *CONDENSE_FLAGS ? " " : "", CONDENSE_FLAGS);
  run.instruction_set = parts.plugin.InstructionSet();
  run.cpu = CpuName();
  run.threads = ThreadsOf(flags);
  run.model = file.FileName();
  run.model_desc = parts.model.Description();
  run.n_layers = parts.model.n_layers();
  run.n_query_heads = parts.model.n_query_heads();
  run.n_kv_heads = parts.model.n_kv_heads();
  run.head_dim = file.k_head_dim;
  run.kv_type_k = flags.k_type;
  run.kv_type_v = flags.v_type;
  run.kv_bytes_per_token = file.KvBytesPerToken(flags.k_type, flags.v_type).value();
  run.context = parts.n_context;
  run.time_utc = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  run.argv = argv;
  return run;
}

Status WriteRow(RecordWriter& writer, const RunRecord& run, const CompareRow& row) {
  for (const Json& line : RowLines(row, run.model, run.model_sha256)) {
    const Status status = writer.WriteLine(line);
    if (!status.ok()) return status;
  }
  return writer.Write(row.cell);
}

Result<RecordWriter> OpenRunRecords(const std::string& path, const RunRecord& run,
                                    const KeptRecords& kept) {
  if (kept.n_bytes == 0) return RecordWriter::Create(path);
  const Status same = CheckSameRun(kept, run, path);
  if (!same.ok()) return Error{same.error()};
  return RecordWriter::GoOn(path, kept.n_bytes);
}

}  // namespace condense
