#include "lab/lab_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "base/whole_file.h"
#include "lab/cells.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

bool NamesFile(const std::string& named) {
  return named.ends_with(".toml") || named.find('/') != std::string::npos;
}

}  // namespace

Result<LabSpec> ReadLabSpec(const std::string& named) {
  if (!NamesFile(named)) {
    const Result<const ExperimentInfo*> info = FindExperiment(named);
    if (!info.ok()) return Error{info.error()};
    return LabSpec{info.value(), "", info.value()->default_spec};
  }
  LabSpec spec;
  spec.path = named;
  std::error_code error;
  if (fs::is_directory(named, error)) return Error{SpecPlace(named, 0) + "is a folder"};
  Result<std::string> text = ReadWholeFile(named);
  if (!text.ok()) return Error{SpecPlace(named, 0) + "cannot be read: " + text.error()};
  spec.text = std::move(text.value());
  Result<SpecReader> reader = SpecReader::Parse(spec.text, named, "experiment = \"\"");
  if (!reader.ok()) return Error{reader.error()};
  if (!reader->Given("experiment")) {
    return Error{SpecPlace(named, 0) +
                 "has no key experiment, which says what it is a spec of: experiment = \"NAME\""};
  }
  const std::string name = reader->Text("experiment");
  const Result<const ExperimentInfo*> info = FindExperiment(name);
  if (!info.ok()) reader->Fail("experiment", info.error());
  // Other keys are the experiment's to read.
  if (!reader->ok()) return Error{reader->Finish().error()};
  spec.info = info.value();
  return spec;
}

Result<std::string> CopySpec(const std::string& folder, const LabSpec& spec) {
  for (int number = 1;; ++number) {
    const std::string name = number == 1 ? spec.info->name + ".toml"
                                         : fmt::format("{}-{}.toml", spec.info->name, number);
    const std::string path = (fs::path(folder) / name).string();
    if (std::error_code error; fs::exists(path, error)) {
      const Result<std::string> there = ReadWholeFile(path);
      if (there.ok() && there.value() == spec.text) return name;
      continue;
    }
    // Whole or not at all: a part of a spec would be taken for another spec.
    const std::string part = path + ".part";
    std::ofstream out(part, std::ios::binary);
    out << spec.text << std::flush;
    out.close();
    if (out && std::rename(part.c_str(), path.c_str()) == 0) return name;
    const std::string why = std::strerror(errno);
    std::remove(part.c_str());
    return Error{fmt::format("cannot write {}: {}", Quote(path), why)};
  }
}

Result<LabJob> MakeLabJob(LabSpec spec, const Plugin& plugin,
                          const std::vector<std::string>& models,
                          const std::string& default_model) {
  Result<SpecReader> reader = SpecReader::Parse(spec.text, spec.Name(), spec.info->default_spec);
  if (!reader.ok()) return Error{reader.error()};
  reader->CheckPoliciesWith([&](const std::string& policy) {
    const Result<std::string> canonical = plugin.SetPolicy(policy);
    return canonical.ok() ? Status() : Status(Error{canonical.error()});
  });
  LabJob job;
  reader->Text("experiment");
  job.models = reader->Texts("models", 0);
  job.experiment = spec.info->make();
  job.experiment->Read(reader.value());
  const Status read = reader->Finish();
  if (!read.ok()) return Error{read.error()};
  if (!models.empty()) job.models = models;
  if (job.models.empty() && !default_model.empty()) job.models = {default_model};
  if (job.models.empty()) {
    return Error{
        "the default model is not there: `make run` fetches it; or name a GGUF file with -m"};
  }
  job.spec = std::move(spec);
  return job;
}

Result<std::vector<LabGroup>> PlanLabGroups(const LabJob& job, size_t job_idx, LabModel& model,
                                            const std::string& texts) {
  model.SetTextPlaces(
      {texts, job.spec.path.empty() ? "" : fs::path(job.spec.path).parent_path().string()});
  Result<std::vector<Cell>> cells = job.experiment->Plan(model);
  const std::string& where = job.spec.Name();
  if (!cells.ok()) return Error{where + ": " + cells.error()};
  if (cells->empty()) return Error{where + ": the spec asks for no cell"};
  std::vector<LabGroup> groups;
  std::set<std::string> ids;
  for (Cell& cell : cells.value()) {
    if (!ids.insert(cell.id).second) {
      return Error{
          fmt::format("{}: two values of the spec come to the same cell, {}: leave one of them out",
                      where, cell.id)};
    }
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const LabGroup& group) {
      return group.cells[0].group == cell.group;
    });
    LabGroup& group = known != groups.end() ? *known : groups.emplace_back();
    group.job = job_idx;
    group.model = model.file().path;
    group.n_rows = std::max(group.n_rows, cell.n_rows);
    group.cells.push_back(std::move(cell));
  }
  return groups;
}

LabMemory MemoryOf(const Cell& cell, int n_rows, int n_vocab) {
  const CellMemory& holds = cell.memory;
  return {n_rows, holds.n_caches,
          sizeof(float) * static_cast<uint64_t>(holds.n_logits) * static_cast<uint64_t>(n_vocab),
          holds.other_bytes};
}

std::string CellLabel(const Cell& cell) {
  std::string label = cell.experiment;
  if (cell.parameters.contains("policy") && cell.parameters["policy"].is_string())
    label += " " + cell.parameters["policy"].get<std::string>();
  for (const auto& [name, value] : cell.parameters.items()) {
    if (name == "policy" || name == "model" || name == "text") continue;
    label += " " + CellId(Json{{name, value}});
  }
  return label;
}

std::string PolicyOf(const Cell& cell) {
  const auto policy = cell.parameters.find("policy");
  return policy != cell.parameters.end() && policy->is_string()
             ? PolicyName(policy->get<std::string>())
             : "";
}

CellRecord FailedRecord(const Cell& cell, const std::string& reason) {
  CellRecord end;
  end.policy = cell.parameters.value("policy", "");
  end.name = PolicyOf(cell);
  end.state = "failed";
  end.reason = reason;
  return end;
}

}  // namespace condense
