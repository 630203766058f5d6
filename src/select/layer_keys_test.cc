// Budget keys that differ by layer: spelling, errors, and what each layer reads.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "select/key_reader.h"
#include "select/test_cache.h"
#include "select/test_choice.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(LayerKeys, CanonicalSpecs) {
  EXPECT_EQ(SpecOf("mean:window@0-7=1024"), "mean:blocks=8,window@0-7=1024");
  EXPECT_EQ(SpecOf("mean:window@12-=32,window@4-4=128,window=64"),
            "mean:blocks=8,window@4=128,window@12-=32");
  EXPECT_EQ(SpecOf("quest:budget@0-3=5.0%,tokens=193"), "quest:tokens=193,budget@0-3=5%");
  EXPECT_EQ(SpecOf("sink:window@2=32,sink@3-=16"), "sink:window=64,window@2=32,sink@3-=16");
  for (const char* spec :
       {"mean:blocks=8,blocks@0-1=2,window@0-7=1024", "random:tokens=97,tokens@5-=193",
        "mean:budget=5%,blocks@3=2,anchor@3=16"}) {
    const std::string once = SpecOf(spec);
    EXPECT_EQ(SpecOf(once), once);
    EXPECT_THAT(once, HasSubstr("@"));
  }
}

TEST(LayerKeys, EachMistakeIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"mean:window@=64", "window@: '' is no range of layers (such as 0-7, 7, or 12- for all from"},
      {"mean:window@early=64", "window@early: 'early' is no range of layers"},
      {"mean:window@7-0=64", "'7-0' is no range of layers"},
      {"mean:window@0-3=64,window@3-5=32", "window@0-3 and window@3-5 overlap: a layer takes one"},
      {"mean:window@2=64,window@0-=32", "window@0- and window@2 overlap"},
      {"mean:window@1=64,window@1=32", "key 'window@1' is given twice"},
      {"mean:share@0-3=shared",
       "policy 'mean': share is the same in every layer (keys that may differ by layer: blocks, "
       "tokens, budget, anchor, window)"},
      {"dense:order@0=reversed", "policy 'dense': order is the same in every layer"},
      {"mean:widow@0-3=64", "has no key 'widow@0-3'"},
      {"mean:win-dow=64", "'win-dow' is no key"},
      {"mean:window@0-3=0", "window@0-3=0 is out of range: 1 to 16000000"},
      {"mean:window@0-3=x", "window@0-3: 'x' is not a whole number"},
      {"mean:blocks@0-3=2,budget@2-9=5%",
       "blocks and budget exclude each other in layer 2: give one of them"},
      {"mean:tokens=193,window@4-=1024",
       "tokens=193 is less than anchor + window, 1025 rows that are always read in layer 4"},
      {"layered:window@3-5=32", "layers 0-3 are early: early_window is theirs"},
  };
  for (const auto& [text, message] : cases) {
    const Result<BoundPolicy> bound = MakePolicy(text);
    ASSERT_FALSE(bound.ok()) << text;
    EXPECT_THAT(bound.error(), HasSubstr(message));
  }
}

// What a spec reads in a layer is what the plain spec reads.
void ExpectLayer(const std::string& spec, int layer, const std::string& plain) {
  TestCache cache(1024, 2, 4, 16);
  const auto select = [&](const std::string& text) {
    LayerQuery query = cache.Query();
    query.layer = layer;
    Selection selection;
    Make(text)->Select(query, selection);
    return selection;
  };
  const Selection a = select(spec), b = select(plain);
  EXPECT_TRUE(Same(a, b)) << spec << " layer " << layer;
  EXPECT_EQ(a.reason, b.reason);
}

TEST(LayerKeys, EachLayerReadsWhatItsKeysSay) {
  const std::string spec = "mean:blocks=4,window@0-2=300,blocks@2-4=9,anchor@9-=20";
  ExpectLayer(spec, 0, "mean:blocks=4,window=300");
  ExpectLayer(spec, 1, "mean:blocks=4,window=300");
  ExpectLayer(spec, 2, "mean:blocks=9,window=300");
  ExpectLayer(spec, 3, "mean:blocks=9");
  ExpectLayer(spec, 5, "mean:blocks=4");
  ExpectLayer(spec, 8, "mean:blocks=4");
  ExpectLayer(spec, 9, "mean:blocks=4,anchor=20");
  ExpectLayer(spec, 1000, "mean:blocks=4,anchor=20");
}

// A layer's own budget goes before everybody's, whatever its form.
TEST(LayerKeys, ALayersOwnBudgetHolds) {
  const std::string spec = "mean:budget=30%,blocks@0-1=3,tokens@2=193,budget@3=20%,share=shared";
  ExpectLayer(spec, 0, "mean:blocks=3,share=shared");
  ExpectLayer(spec, 2, "mean:tokens=193,share=shared");
  ExpectLayer(spec, 3, "mean:budget=20%,share=shared");
  ExpectLayer(spec, 4, "mean:budget=30%,share=shared");
  ExpectLayer("mean:window@1=999999", 1, "mean:window=999999");
  ExpectLayer("sink:sink@1=9,window=30", 1, "sink:sink=9,window=30");
  ExpectLayer("sink:sink@1=9,window=30", 2, "sink:window=30");
  ExpectLayer("layered:early=0-3,early_window=500,window@4-6=100", 5, "mean:window=100");
  ExpectLayer("layered:early=0-3,early_window=500,window@4-6=100", 3, "mean:window=500");
}

TEST(ParseLayers, RoundTrips) {
  for (const char* text : {"0", "7", "0-1", "3-99", "12-"})
    EXPECT_EQ(PrintLayers(ParseLayers(text).value()), text);
  EXPECT_EQ(PrintLayers(ParseLayers("4-4").value()), "4");
  for (const char* bad : {"", "-", "-3", "3-2", "a", "1-2-3", "0-99999999999"})
    EXPECT_FALSE(ParseLayers(bad).ok()) << bad;
}

}  // namespace
}  // namespace condense
