// Policy files: what they say, and that every mistake in one is named with its place.
#include "select/policy_file.h"

#include "base/test_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

class PolicyFileTest : public FolderTest {
 protected:
  // The canonical spec, or the error.
  std::string Made(const std::string& text) const {
    const Result<BoundPolicy> bound = MakePolicy("@" + Write("p.toml", text));
    return bound.ok() ? bound->spec : bound.error();
  }
};

TEST_F(PolicyFileTest, StandsForItsSpec) {
  EXPECT_EQ(Made("spec = \"mean:blocks=4\"\n"), "mean:blocks=4");
  EXPECT_EQ(Made("spec = \"mean\"\n[keys]\nblocks = 4\n\"window@0-3\" = \"128\"\n"),
            "mean:blocks=4,window@0-3=128");
}

TEST_F(PolicyFileTest, PathsMayHoldWhatASpecCannotSpell) {
  const std::string profile = Write("a,b\\,c.tsv", "1\t0\n");
  const std::string text = "spec = \"duo:sink=8\"\n[keys]\nprofile = '" + profile + "'\n";
  const Result<BoundPolicy> bound = MakePolicy("@" + Write("p.toml", text));
  ASSERT_TRUE(bound.ok()) << bound.error();
  const Result<PolicySpec> spec = ParseSpec(bound->spec);
  ASSERT_TRUE(spec.ok()) << spec.error();
  EXPECT_EQ(spec->keys.back(), std::make_pair(std::string("profile"), profile));
  const Result<BoundPolicy> again = MakePolicy(bound->spec);
  ASSERT_TRUE(again.ok()) << "the canonical spec is a spec: " << again.error();
  EXPECT_EQ(again->spec, bound->spec);
}

TEST_F(PolicyFileTest, MistakesAreNamedWithTheirLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "has no key spec"},
      {"spec = 3\n", "line 1: spec is no text"},
      {"\nspec = \"@x\"\n", "line 2: spec names another policy file"},
      {"spec = \"mean:blocks\"\n", "line 1: key 'blocks' has no value"},
      {"\n\nspec = \"quset\"\n", "line 3: policy 'quset' is unknown; did you mean 'quest'?"},
      {"spec = \"mean\"\nspce = 1\n", "line 2: key 'spce' is unknown; did you mean 'spec'?"},
      {"spec = \"mean\"\n[keys]\nblocks = 4\nblokcs = 4\n",
       "line 4: policy 'mean' has no key 'blokcs'; did you mean 'blocks'?"},
      {"spec = \"mean\"\n[keys]\nwindow = 64\nblocks = -1\n", "line 4: mean: blocks=-1 is out of"},
      {"spec = \"mean\"\n[keys]\nshare = \"all\"\n", "line 3: mean: share=all is unknown"},
      {"spec = \"duo\"\n[keys]\nthreshold = \"0.5\"\n", "line 3: duo: threshold=0.5 has no effect"},
      {"spec = \"mean\"\n[keys]\nwindow = 64\n\"window@0-3\" = -1\n",
       "line 4: mean: window@0-3=-1 is out of"},
      {"spec = \"mean\"\n[keys]\nwindow = 64\n\"window@3-0\" = 64\n", "line 4: mean: window@3-0: "},
      {"spec = \"mean\"\n[keys]\n\"window@0-3\" = 8\n\"window@3-4\" = 8\n",
       "window@0-3 and window@3-4 overlap"},
      {"spec = \"mean:blocks=4\"\n[keys]\nblocks = 4\n", "line 3: key 'blocks' is given twice"},
      {"spec = \"mean\"\n[keys]\nblocks = 4.5\n", "line 3: blocks is no text"},
      {"spec = \"mean\"\nkeys = 4\n", "line 2: keys is no table"},
      {"spec = \"mean\"\n[made]\nmodel = 4\n", "line 3: model is no text"},
      {"spec = \"mean\"\n[made]\nmodle = \"x\"\n", "line 3: key 'modle' of [made] is unknown"},
      {"spec = \"mean\"\nspec = \"quest\"\n", "line 2: "},
      {"spec = \"mean", "line 1: "},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(Made(text), HasSubstr(message)) << text;
    EXPECT_THAT(Made(text), HasSubstr("p.toml'")) << text;
  }
}

TEST_F(PolicyFileTest, AbsentFilesAreNamed) {
  const std::string path = Path("none.toml");
  EXPECT_THAT(MakePolicy("@" + path).error(),
              HasSubstr("policy file '" + path + "': cannot be read: No such file"));
  EXPECT_THAT(MakePolicy("@" + folder_).error(), HasSubstr("cannot be read: Is a dir"));
  EXPECT_THAT(MakePolicy("@").error(), HasSubstr("write @FILE"));
}

TEST(PolicyFile, PrintingAndParsingRoundTrip) {
  const PolicySpec spec{.name = "duo", .keys = {{"profile", "a,\"b\"\\,\n.tsv"}, {"sink", "8"}}};
  PolicyProvenance made;
  made.program = "condense tune";
  made.model = "a \"model\".gguf";
  made.model_sha256 = std::string(64, 'a');
  made.text = {"a.txt", "b, c.txt"};
  made.target = "tf=99%";
  const std::string text = PrintPolicyFile(spec, made, {"what it is"});
  const Result<PolicyFile> file = ParsePolicyFile(text, "x");
  ASSERT_TRUE(file.ok()) << file.error() << "\n" << text;
  EXPECT_EQ(file->spec, spec);
  EXPECT_EQ(file->made.model, made.model);
  EXPECT_EQ(file->made.model_sha256, made.model_sha256);
  EXPECT_EQ(file->made.text, made.text);
  EXPECT_EQ(file->made.target, made.target);
  EXPECT_EQ(file->made.confidence, "");
}

}  // namespace
}  // namespace condense
