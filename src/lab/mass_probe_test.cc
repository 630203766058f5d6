// The specs that a probe runs, planned without a plug-in.
#include "lab/mass_probe.h"

#include <gtest/gtest.h>

#include "lab/cells.h"

namespace condense {
namespace {

// `mean` and `oracle` have the frame's keys, `tuned` one of its own; `rows` has neither blocks nor
// dense_layers.
Result<std::string> Spell(const std::string& spec) {
  const std::string name = PolicyName(spec);
  const bool has = spec.find("blocks=") != std::string::npos;
  if (name == "rows" && spec.find("dense_layers=") != std::string::npos)
    return Error{"policy 'rows' has no key 'dense_layers'"};
  if (name == "fixed" && has) return Error{"policy 'fixed' has no key 'blocks'"};
  if (name == "oracle" && spec.find("lambda=") != std::string::npos)
    return Error{"policy 'oracle' has no key 'lambda'"};
  return spec;
}

TEST(MassProbe, ArmsHaveTheSameFrame) {
  const Result<ProbeArms> arms = PlanProbe("mean:blocks=2,window=32,share=shared", Spell);
  ASSERT_TRUE(arms.ok()) << arms.error();
  EXPECT_EQ(arms->policy, "mean:blocks=2,window=32,share=shared");
  EXPECT_EQ(arms->base, "mean:blocks=0,window=32,share=shared");
  EXPECT_EQ(arms->oracle, "oracle:blocks=2,window=32,share=shared");
  EXPECT_EQ(PlanProbe("mean", Spell)->oracle, "oracle");
  const Result<ProbeArms> tuned = PlanProbe("tuned:blocks=4,lambda=2,window=16", Spell);
  ASSERT_TRUE(tuned.ok()) << tuned.error();
  EXPECT_EQ(tuned->oracle, "oracle:blocks=4,window=16") << "the policy's own key is left out";
}

TEST(MassProbe, RefusesWhatItCannotMeasure) {
  const auto refusal = [](const std::string& spec) { return PlanProbe(spec, Spell).error(); };
  EXPECT_NE(refusal("mean:budget=5%").find("blocks= or tokens="), std::string::npos);
  EXPECT_NE(refusal("mean:dense_layers=0-1").find("without dense_layers"), std::string::npos);
  EXPECT_NE(refusal("rows").find("has no key 'dense_layers'"), std::string::npos);
  EXPECT_NE(refusal("fixed").find("has no key blocks="), std::string::npos);
}

TEST(MassProbe, LayersBeforeAreDense) {
  EXPECT_EQ(WithDenseBefore("mean", 0), "mean");
  EXPECT_EQ(WithDenseBefore("mean", 1), "mean:dense_layers=0-0");
  EXPECT_EQ(WithDenseBefore("mean:blocks=2", 12), "mean:blocks=2,dense_layers=0-11");
}

}  // namespace
}  // namespace condense
