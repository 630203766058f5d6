// What the commands that compare policies write to their records alike: the `run` line, a row's
// lines, and how they go on behind what an earlier run left.
#pragma once

#include <string>
#include <vector>

#include "app/arguments.h"
#include "base/result.h"
#include "decode/model.h"
#include "decode/model_file.h"
#include "decode/plugin.h"
#include "lab/compare.h"
#include "lab/kept.h"
#include "lab/records.h"

namespace condense {

struct RunParts {
  const DecodeFlags& decode;
  const ModelFile& file;
  const Model& model;
  const Plugin& plugin;
  int n_context = 0;
};

// The `run` line but for text, lengths, timing and the model's hash.
RunRecord BeginRunRecord(const std::string& program, const RunParts& parts,
                         const std::vector<std::string>& argv);

// Writes one finished row, its policy lines first and its cell last: a row whose cell is there is
// whole.
Status WriteRow(RecordWriter& writer, const RunRecord& run, const CompareRow& row);

// Creates the file, or goes on behind `kept`, which was read from it; records of another run are an
// error. The `run` line is not written.
Result<RecordWriter> OpenRunRecords(const std::string& path, const RunRecord& run,
                                    const KeptRecords& kept);

}  // namespace condense
