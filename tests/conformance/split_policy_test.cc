// A selection that reads K of more rows than V, through the whole of a layer's attention, against
// plain loops in double.
#include <cmath>

#include "gtest/gtest.h"
#include "host.h"
#include "select/test_choice.h"

namespace condense {
namespace {

// The observer compares what the step returned, values left out included.
TEST(SplitSelection, ObserverSeesWhatTheStepReturned) {
  for (const char* spec : {"test_split:tokens=200", "condense:budget=12%,split=0.3"}) {
    SCOPED_TRACE(spec);
    const Observed observed = ObservedStep(*Make(spec), *Make("dense"));
    for (const Observation& o : observed.heads) {
      EXPECT_EQ(static_cast<uint64_t>(o.rows_read), observed.step.count.unique_rows / kKvHeads);
    }
  }
}

TEST(SplitSelection, MassWithoutValuesTakesTheRestValue) {
  Host host(1024);
  Sequence sequence;
  host.Prefill(sequence, {0, 900}, 7);
  const std::unique_ptr<Policy> policy = Make("test_split:tokens=200");
  host.Append(sequence, 900, 8);
  const Selection selection = host.Select(sequence, *policy);
  ASSERT_FALSE(selection.dense);
  const StepResult step = host.Step(sequence, *policy);
  ASSERT_TRUE(step.count.sparse);

  const KvView view = host.View();
  const std::vector<float> q = Host::QueryOf(sequence);
  auto half = [](const std::byte* row, int c) {
    return static_cast<double>(F32FromF16(reinterpret_cast<const uint16_t*>(row)[c]));
  };
  for (int h = 0; h < kHeads; ++h) {
    const int g = h / kGroup;
    double sum = 0, sum_v = 0;
    std::vector<double> o(kDim, 0.0);
    int k_rows = 0, v_rows = 0;
    for (int row = 0; row < 901; ++row) {
      if (!((selection.KMask(g)[row / 16] >> (row % 16)) & 1)) continue;
      double dot = 0;
      for (int c = 0; c < kDim; ++c) dot += q[h * kDim + c] * half(view.KeyRow(g, row), c);
      const double p = std::exp(0.125 * dot);
      sum += p;
      ++k_rows;
      if (!((selection.VMask(g)[row / 16] >> (row % 16)) & 1)) continue;
      ++v_rows;
      sum_v += p;
      for (int c = 0; c < kDim; ++c) o[c] += p * half(view.ValueRow(g, row), c);
    }
    EXPECT_EQ(k_rows, 200);
    EXPECT_EQ(v_rows, 65 + (200 - 65) / 2);
    EXPECT_LT(sum_v, sum);
    for (int c = 0; c < kDim; ++c) {
      const double expected = (o[c] + (sum - sum_v) * selection.rest_value[h * kDim + c]) / sum;
      EXPECT_NEAR(step.out[h * kDim + c], expected, 1e-4) << "head " << h << " channel " << c;
    }
  }
  EXPECT_EQ(step.count.k_bytes, 200u * kKvHeads * 2 * kDim);
  EXPECT_EQ(step.count.v_bytes, (65u + 67u) * kKvHeads * 2 * kDim);
  EXPECT_EQ(step.count.summary_bytes, (901u - 200u) * kKvHeads * 2 * kDim);
}

}  // namespace
}  // namespace condense
