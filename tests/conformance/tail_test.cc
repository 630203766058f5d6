// A selection with a tail through the whole of a layer's attention, against plain loops in double.
#include <cmath>

#include "gtest/gtest.h"
#include "host.h"
#include "select/test_choice.h"

namespace condense {
namespace {

double Half(const std::byte* row, int c) {
  return F32FromF16(reinterpret_cast<const uint16_t*>(row)[c]);
}

// Rows read as they are, every other block by its mean key and mean value.
TEST(TailSelection, JoinsTheSoftmax) {
  Host host(1024);
  Sequence sequence;
  host.Prefill(sequence, {0, 900}, 7);
  host.Append(sequence, 900, 8);
  const std::unique_ptr<Policy> policy = Make("mean:blocks=4,tail=on");
  const Selection selection = host.Select(sequence, *policy);
  const StepResult step = host.Step(sequence, *policy), two = host.Step(sequence, *policy, 2);
  ASSERT_TRUE(step.count.sparse);
  EXPECT_TRUE(SameBits(step.out, two.out));
  const KvView view = host.View();
  const std::vector<float> q = Host::QueryOf(sequence);
  for (int h = 0; h < kHeads; ++h) {
    const int g = h / kGroup;
    double sum = 0;
    std::vector<double> o(kDim, 0.0);
    for (int b = 0; b <= 900 / 16; ++b) {
      std::vector<double> key(kDim, 0.0), value(kDim, 0.0);
      int unread = 0;
      const auto add = [&](double n, const std::vector<double>& k, const std::vector<double>& v) {
        double dot = 0;
        for (int c = 0; c < kDim; ++c) dot += q[h * kDim + c] * k[c];
        const double p = n * std::exp(0.125 * dot);
        sum += p;
        for (int c = 0; c < kDim; ++c) o[c] += p * v[c];
      };
      for (int row = 16 * b; row < std::min(901, 16 * b + 16); ++row) {
        std::vector<double> k(kDim), v(kDim);
        for (int c = 0; c < kDim; ++c) {
          key[c] += (k[c] = Half(view.KeyRow(g, row), c)) / 16;
          value[c] += (v[c] = Half(view.ValueRow(g, row), c)) / 16;
        }
        if (HasRow(KRows(selection, g), row)) {
          add(1, k, v);
        } else {
          ++unread;
        }
      }
      if (unread > 0) add(unread, key, value);
    }
    for (int c = 0; c < kDim; ++c)
      EXPECT_NEAR(step.out[h * kDim + c], o[c] / sum, 1e-3) << "head " << h << " channel " << c;
  }
}

TEST(TailSelection, ObserverSeesWhatTheStepReturned) {
  for (const char* spec :
       {"mean:blocks=8,tail=on", "mean:blocks=8,tail=var,share=per_head", "compkv:budget=12%"}) {
    SCOPED_TRACE(spec);
    ObservedStep(*Make(spec), *Make("dense"));
  }
}

// Everything the conformance suite asks of a policy is asked of its default; of a tail, here.
TEST(TailSelection, AFullBudgetIsDenseBitForBit) {
  Host host(1024);
  Sequence sequence;
  host.Prefill(sequence, {0, 900}, 7);
  host.Append(sequence, 900, 8);
  const StepResult full = host.Step(sequence, *Make("dense"));
  for (const char* spec : {"mean:tail=on,blocks=1000", "mean:tail=var,budget=100%",
                           "compkv:tokens=100000", "quest:tail=on,share=per_head,blocks=55"})
    EXPECT_TRUE(SameBits(host.Step(sequence, *Make(spec)).out, full.out)) << spec;
}

}  // namespace
}  // namespace condense
