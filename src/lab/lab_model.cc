#include "lab/lab_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/text.h"
#include "base/whole_file.h"
#include "decode/sha256.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashDigits = 8;

std::string Named(const std::string& path, const std::string& sha256) {
  return fs::path(path).filename().string() + "@" + sha256.substr(0, kHashDigits);
}

Result<std::string> FindText(const std::string& name, const TextPlaces& places) {
  std::vector<fs::path> tried;
  if (fs::path(name).is_absolute()) {
    tried = {name};
  } else {
    if (!places.folder.empty()) tried.push_back(fs::path(places.folder) / name);
    if (!places.spec_folder.empty()) tried.push_back(fs::path(places.spec_folder) / name);
    tried.emplace_back(name);
  }
  std::vector<std::string> shown;
  for (const fs::path& path : tried) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path.string();
    shown.push_back(Quote(path.string()));
  }
  return Error{fmt::format(
      "text {} is not there (looked for {}): name its folder with --texts DIR, or other texts in "
      "the spec",
      Quote(name), JoinNames(shown))};
}

}  // namespace

Result<std::unique_ptr<LabModel>> LabModel::Load(const std::string& path, const Plugin& plugin,
                                                 const Options& options) {
  std::unique_ptr<LabModel> loaded(new LabModel(plugin, options));
  Result<ModelFile> file = ReadModelFile(path);
  if (!file.ok()) return Error{file.error()};
  loaded->file_ = std::move(file.value());
  Result<std::string> sha256 =
      options.sha256.empty() ? FileSha256(path) : Result<std::string>(options.sha256);
  if (!sha256.ok()) return Error{sha256.error()};
  loaded->sha256_ = std::move(sha256.value());
  Result<std::unique_ptr<Model>> model = Model::Load(path);
  if (!model.ok()) return Error{model.error()};
  loaded->model_ = std::move(model.value());
  return loaded;
}

std::string LabModel::Name() const { return Named(file_.path, sha256_); }

std::string LabModel::FileName() const { return fs::path(file_.path).filename().string(); }

Json LabModel::Parameters() const {
  Json parameters{{"model", Name()}};
  if (options_.k_type != "f16") parameters["k_type"] = options_.k_type;
  if (options_.v_type != "f16") parameters["v_type"] = options_.v_type;
  return parameters;
}

Result<std::string> LabModel::Canonical(const std::string& policy) const {
  return plugin_.SetPolicy(policy);
}

Result<const LabText*> LabModel::Text(const std::string& name) {
  const Result<std::string> path = FindText(name, places_);
  if (!path.ok()) return Error{path.error()};
  const auto known = texts_.find(path.value());
  if (known != texts_.end()) return known->second.get();
  auto text = std::make_unique<LabText>();
  text->path = path.value();
  Result<std::string> bytes = ReadWholeFile(text->path);
  if (!bytes.ok())
    return Error{fmt::format("cannot read text {}: {}", Quote(text->path), bytes.error())};
  text->bytes = std::move(bytes.value());
  if (text->bytes.empty()) return Error{fmt::format("text {} is empty", Quote(text->path))};
  text->sha256 = TextSha256(text->bytes);
  text->tokens = model_->Tokenise(text->bytes);
  return (texts_[path.value()] = std::move(text)).get();
}

std::string LabModel::TextParameter(const LabText& text) { return Named(text.path, text.sha256); }

}  // namespace condense
