#include "select/block_mass.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/summary.h"

namespace condense {
namespace {

struct Variances {
  SummarySet summary;
  Column column;
};

Variances Of(VarianceForm form) {
  switch (form) {
    case VarianceForm::kOne:
      return {kVarianceMean, Column::kVarianceMean};
    case VarianceForm::kGroups:
      return {kGroupVariances, Column::kGroupVariances};
    case VarianceForm::kChannels:
      break;
  }
  return {kKeyVariance, Column::kVarKey};
}

int GroupsOf(VarianceForm form, int dim) {
  if (form == VarianceForm::kChannels) return dim;
  return form == VarianceForm::kGroups ? kVarianceGroups : 1;
}

std::array<float, kBlockRows + 1> LogsOfRows() {
  std::array<float, kBlockRows + 1> logs{};
  for (int n = 1; n <= kBlockRows; ++n)
    logs[n] = static_cast<float>(std::log(static_cast<double>(n)));
  return logs;
}

}  // namespace

SummarySet NeededFor(VarianceForm form) { return Of(form).summary; }

PolicyKey VarianceGroupsKey() {
  return {"groups", "4", "channel groups that a variance is kept of: 1, 4 or d (every channel)"};
}

VarianceForm ReadVarianceForm(KeyReader& reader) {
  return static_cast<VarianceForm>(reader.Choice("groups", {"1", "4", "d"}));
}

void MeanLogits(const ScoreQuery& query, std::span<float> out) {
  const LayerQuery& layer = *query.layer;
  ScoreMean(layer.index->Tiles(Column::kMeanKey, query.kv_head, query.first_block),
            static_cast<int>(out.size()) / kTileBlocks, layer.kv->k_dim, query.q, layer.scale,
            out.data());
}

void LogitVariances(const ScoreQuery& query, VarianceForm form, std::span<float> out) {
  static thread_local std::vector<float> weights;  // [groups]
  const LayerQuery& layer = *query.layer;
  const int dim = layer.kv->k_dim, groups = GroupsOf(form, dim);
  weights.assign(groups, 0.0f);
  for (int c = 0; c < dim; ++c) weights[c / (dim / groups)] += query.q[c] * query.q[c];
  ScoreMean(layer.index->Tiles(Of(form).column, query.kv_head, query.first_block),
            static_cast<int>(out.size()) / kTileBlocks, groups, weights.data(),
            layer.scale * layer.scale, out.data());
}

float LogRows(int n) {
  static const std::array<float, kBlockRows + 1> logs = LogsOfRows();
  return logs[n];
}

void MassScores(const ScoreQuery& query, VarianceForm form, std::span<float> v,
                std::span<float> out) {
  MeanLogits(query, out);
  LogitVariances(query, form, v);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t block = query.first_block + i;
    const int n = block < query.rows.size() ? CountBits(query.rows[block]) : 0;
    out[i] = LogRows(n) + (out[i] + 0.5f * v[i]);
  }
}

}  // namespace condense
