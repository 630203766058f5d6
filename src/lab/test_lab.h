// For tests: the lab run in a process of its own, with the plug-in, on the default model, into a
// folder of the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "decode/log.h"
#include "lab/lab_folder.h"
#include "lab/lab_run.h"

namespace condense {

class LabTest : public FolderTest {
 protected:
  static void SetUpTestSuite() {
    SetLogSink([](LogLevel, std::string_view) {});
    Result<Plugin> plugin = Plugin::Load(CONDENSE_TEST_PLUGIN);
    ASSERT_TRUE(plugin.ok()) << plugin.error();
    plugin_ = std::make_unique<Plugin>(plugin.value());
  }
  static void TearDownTestSuite() { plugin_.reset(); }

  // For a run into Path("out").
  LabOptions Options() const {
    LabOptions options;
    options.folder = Path("out");
    options.default_model = CONDENSE_TEST_MODEL;
    options.describe = [](const LabModel& model) {
      RunRecord run;
      run.program = "test";
      run.model = model.FileName();
      run.model_sha256 = model.sha256();
      return run;
    };
    return options;
  }
  LabSpec Spec(const std::string& experiment, const std::string& keys) const {
    Result<LabSpec> spec =
        ReadLabSpec(Write("x.toml", "experiment = \"" + experiment + "\"\n" + keys));
    EXPECT_TRUE(spec.ok()) << spec.error();
    return spec.ok() ? spec.value() : LabSpec();
  }
  LabFolder Kept() const {
    Result<LabFolder> kept = ReadLabFolder(Path("out"));
    EXPECT_TRUE(kept.ok()) << kept.error();
    return kept.ok() ? kept.value() : LabFolder();
  }
  // The default model by another name.
  std::string ModelNamed(const std::string& name) const {
    std::filesystem::create_symlink(CONDENSE_TEST_MODEL, Path(name));
    return Path(name);
  }

  inline static std::unique_ptr<Plugin> plugin_;
};

}  // namespace condense
