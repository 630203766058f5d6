// What summaries say of a block's attention mass, for one query: its logits' mean and their
// variance, from the mean and the variances of its keys. exp is convex, so n exp(mean logit)
// understates the mass always; the second moment gives log n + mean + variance / 2.
#pragma once

#include <span>

#include "select/key_reader.h"
#include "select/registry.h"
#include "select/scorer.h"

namespace condense {

// Which variances the second moment is taken from: means over 1 or kVarianceGroups runs of
// channels, or one of every channel.
enum class VarianceForm : uint8_t { kOne, kGroups, kChannels };
SummarySet NeededFor(VarianceForm form);
// The key `groups`: 1, 4 or d.
PolicyKey VarianceGroupsKey();
VarianceForm ReadVarianceForm(KeyReader& reader);

// out: whole tiles from query.first_block on. scale q·µ of each block.
void MeanLogits(const ScoreQuery& query, std::span<float> out);

// scale² Σ_t (Σ_{i∈t} q_i²) D_t over channel groups t, D_t the mean variance of the group's
// channels: the variance of the block's logits, were its channels independent.
void LogitVariances(const ScoreQuery& query, VarianceForm form, std::span<float> out);

// The logarithm of a number of rows, 0 … kBlockRows; 0 rows: of 1.
float LogRows(int n);

// log n_b + scale q·µ_b + v_b / 2, n_b the rows that choosing the block adds. v: scratch of out's
// size, which is left with the variances.
void MassScores(const ScoreQuery& query, VarianceForm form, std::span<float> v,
                std::span<float> out);

}  // namespace condense
