#include "lab/experiment.h"

#include <map>

#include "base/text.h"

namespace condense {
namespace {

// Filled by registrars before main, only read afterwards.
std::map<std::string, ExperimentInfo>& Registered() {
  static std::map<std::string, ExperimentInfo> table;
  return table;
}

}  // namespace

ExperimentRegistrar::ExperimentRegistrar(ExperimentInfo info) {
  CONDENSE_CHECK(info.make && info.tables && !info.default_spec.empty());
  const std::string name = info.name;
  CONDENSE_CHECK(Registered().emplace(name, std::move(info)).second);
}

std::string PublishedAt(const ExperimentInfo& info, const std::string& metric, const Json& at) {
  for (const PublishedFigure& figure : info.published) {
    if (figure.metric == metric && figure.at == at) return figure.value;
  }
  return "";
}

std::vector<const ExperimentInfo*> Experiments() {
  std::vector<const ExperimentInfo*> all;
  for (const auto& [name, info] : Registered()) all.push_back(&info);
  return all;
}

Result<const ExperimentInfo*> FindExperiment(const std::string& name) {
  const auto found = Registered().find(name);
  if (found != Registered().end()) return &found->second;
  std::vector<std::string> names;
  for (const auto& [known, info] : Registered()) names.push_back(known);
  return Error{"experiment " + Quote(name) + " is unknown" + DidYouMean(name, names) +
               " (`condense lab list` lists them)"};
}

}  // namespace condense
