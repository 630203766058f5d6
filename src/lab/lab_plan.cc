#include "lab/lab_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "base/whole_file.h"

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

Result<LabJob> MakeLabJob(LabSpec spec, const std::vector<std::string>& models,
                          const std::string& default_model) {
  Result<SpecReader> reader = SpecReader::Parse(spec.text, spec.Name(), spec.info->default_spec);
  if (!reader.ok()) return Error{reader.error()};
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

}  // namespace condense
