// What an observer of attention is told of a step: logits where it asks, omitted mass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/layer_attention.h"
#include "attention/test_node.h"

namespace condense {
namespace {

TEST(ObserveTest, SeesLogitsWhereItAsks) {
  Made made(1, 1, 1200, 6, 2, 64, 29);
  LayerCache cache;
  cache.MarkWritten(0, 1199);
  int n_heads = 0;
  AttentionSink sink;
  sink.observe_logits = true;
  sink.on_observations = [&](std::span<const Observation> all) {
    for (const Observation& o : all) {
      ++n_heads;
      ASSERT_EQ(o.logits.size(), o.read.size() * kBlockRows);
      double all_sum = 0, left_out = 0;
      for (int row = 0; row < static_cast<int>(o.logits.size()); ++row) {
        if (row >= 1200) {
          EXPECT_EQ(o.logits[row], -INFINITY) << row;
          continue;
        }
        const double weight = std::exp(static_cast<double>(o.logits[row]));
        all_sum += weight;
        if (!HasRow(o.read, row)) left_out += weight;
      }
      EXPECT_NEAR(left_out / all_sum, o.omitted_mass, 1e-5);
    }
  };
  ComputeAttention(made.Node(), cache, *Make("mean:blocks=4"), 2, sink);
  EXPECT_EQ(n_heads, 6);
}

TEST(ObserveTest, SeesTheOmittedMass) {
  Made made(1, 1, 1200, 6, 2, 64, 23);
  LayerCache cache;
  cache.MarkWritten(0, 1199);
  std::vector<Observation> seen;
  AttentionSink sink;
  sink.on_observations = [&](std::span<const Observation> all) {
    seen.assign(all.begin(), all.end());
    for (const Observation& o : all) {
      EXPECT_EQ(CountRows(o.read), o.rows_read);
      EXPECT_TRUE(HasRow(o.read, 1199)) << "the newest row";
    }
  };
  ComputeAttention(made.Node(), cache, *Make("mean:blocks=4"), 2, sink);
  ASSERT_EQ(seen.size(), 6u);
  for (const Observation& o : seen) {
    EXPECT_EQ(o.layer, 3);
    EXPECT_EQ(o.visible_rows, 1200);
    EXPECT_GE(o.rows_read, 128);  // 15 rows where the anchor's block is among the four
    EXPECT_LE(o.rows_read, 129);
    EXPECT_GT(o.omitted_mass, 0.0f);
    EXPECT_LT(o.omitted_mass, 1.0f);
    EXPECT_LT(o.identity_error, 1e-5f);
    EXPECT_LE(o.output_error, 2 * o.omitted_mass * o.value_norm_max * 1.0001f);
    // What the sparse step returned is off from dense by the reported error.
    const std::vector<double> full = made.Reference(0, 0, o.query_head);
    double error = 0;
    for (int c = 0; c < 64; ++c) {
      const double d = full[c] - made.out[o.query_head * 64 + c];
      error += d * d;
    }
    EXPECT_NEAR(std::sqrt(error), o.output_error, 1e-5);
  }
}

}  // namespace
}  // namespace condense
