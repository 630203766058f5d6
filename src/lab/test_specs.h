// For tests of experiments: an experiment by name, and what its spec reader says of keys.
#pragma once

#include <string>

#include "base/result.h"
#include "lab/experiment.h"
#include "lab/spec_reader.h"

namespace condense {

inline const ExperimentInfo& Info(const std::string& name) {
  const Result<const ExperimentInfo*> info = FindExperiment(name);
  CONDENSE_CHECK(info.ok());
  return *info.value();
}

// The error of a spec, or "".
inline std::string SpecError(const std::string& name, const std::string& spec) {
  const ExperimentInfo& info = Info(name);
  Result<SpecReader> reader =
      SpecReader::Parse("experiment = \"" + name + "\"\n" + spec, "x.toml", info.default_spec);
  if (!reader.ok()) return reader.error();
  reader->Text("experiment");
  reader->Texts("models", 0);
  info.make()->Read(reader.value());
  const Status read = reader->Finish();
  return read.ok() ? "" : read.error();
}

}  // namespace condense
