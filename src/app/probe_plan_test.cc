// The specs that a probe runs, of the policies as they are registered.
#include "app/probe_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/mass_probe.h"
#include "select/registry.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

Result<std::string> Spell(const std::string& spec) {
  const Result<BoundPolicy> bound = MakePolicy(spec);
  if (!bound.ok()) return Error{bound.error()};
  return bound->spec;
}

Result<ProbeArms> Plan(const std::string& policy) {
  return PlanProbe(Json::parse(PoliciesJson()), policy, Spell);
}

void ExpectArms(const std::string& policy, const std::string& base, const std::string& oracle) {
  const Result<ProbeArms> arms = Plan(policy);
  ASSERT_TRUE(arms.ok()) << arms.error();
  EXPECT_EQ(arms->policy, Spell(policy).value());
  EXPECT_EQ(arms->base, base) << policy;
  EXPECT_EQ(arms->oracle, oracle) << policy;
  for (const std::string& arm : {arms->policy, arms->base, arms->oracle})
    EXPECT_TRUE(Spell(WithDenseBefore(arm, 12)).ok()) << arm;
}

TEST(ProbePlan, KeysOfTheFrameGoIntoEveryArm) {
  ExpectArms("mean", "mean:blocks=0", "oracle:blocks=8");
  ExpectArms("mean:blocks=2,window=32,share=shared", "mean:blocks=0,window=32,share=shared",
             "oracle:blocks=2,window=32,share=shared");
  ExpectArms("unique:blocks=4,form=abs,window=16", "unique:blocks=0,window=16,form=abs",
             "oracle:blocks=4,window=16");
  // 33 rows fit only with the narrower window beside them.
  ExpectArms("mean:tokens=33,window=16", "mean:blocks=0,window=16", "oracle:tokens=33,window=16");
}

TEST(ProbePlan, KeysByLayer) {
  ExpectArms("mean:blocks=8,blocks@12-=4,window@0-7=1024", "mean:blocks=0,window@0-7=1024",
             "oracle:blocks=8,blocks@12-=4,window@0-7=1024");
  ExpectArms("quest:tokens=193,tokens@5=97", "quest:blocks=0", "oracle:tokens=193,tokens@5=97");
  EXPECT_THAT(Plan("mean:blocks=8,budget@3=5%").error(), HasSubstr("blocks= or tokens="));
}

TEST(ProbePlan, OracleHasThePolicysFrameByDefaultToo) {
  ExpectArms("compkv:blocks=4", "compkv:blocks=0", "oracle:blocks=4,anchor=16,window=32,tail=on");
  ExpectArms("compkv:blocks=4,window=48,tail=off", "compkv:blocks=0,window=48,tail=off",
             "oracle:blocks=4,anchor=16,window=48");
  ExpectArms("bigbird:blocks=4,seed=7", "bigbird:blocks=0,seed=7", "oracle:blocks=4,anchor=32");
  ExpectArms("layered", "layered:blocks=0", "oracle:blocks=8,window@0-3=1024");
  ExpectArms("layered:early=2,early_window=96,blocks@9-=3",
             "layered:blocks=0,early=2,early_window=96", "oracle:blocks=8,blocks@9-=3,window@2=96");
  ExpectArms("layered:early=none", "layered:blocks=0,early=none", "oracle:blocks=8");
}

TEST(ProbePlan, EveryPolicyOfTheFrameHasArms) {
  int n_planned = 0;
  for (const PolicyInfo* info : RegisteredPolicies()) {
    bool has_blocks = false;
    for (const PolicyKey& key : info->keys) has_blocks = has_blocks || key.name == "blocks";
    if (!has_blocks) continue;
    const Result<ProbeArms> arms = Plan(info->name);
    EXPECT_TRUE(arms.ok()) << arms.error();
    ++n_planned;
  }
  EXPECT_GE(n_planned, 9);
}

TEST(ProbePlan, RefusesWhatItCannotMeasure) {
  EXPECT_THAT(Plan("mean:budget=5%").error(), HasSubstr("blocks= or tokens="));
  EXPECT_THAT(Plan("mean:dense_layers=0-1").error(), HasSubstr("without dense_layers"));
  EXPECT_THAT(Plan("dense").error(), HasSubstr("no key dense_layers"));
  EXPECT_THAT(Plan("window").error(), HasSubstr("no key blocks="));
  EXPECT_THAT(Plan("maen").error(), HasSubstr("did you mean 'mean'?"));
}

}  // namespace
}  // namespace condense
