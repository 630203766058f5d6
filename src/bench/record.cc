#include "bench/record.h"

#include "metrics/stats.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

void AddSample(Json& json, const std::string& name, const std::optional<Sample>& sample) {
  json[name] = sample ? Json(sample->median) : Json(nullptr);
  json[name + "_quartiles"] = sample ? Json{sample->low, sample->high} : Json(nullptr);
}

template <typename T>
Json Nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

Sample SampleOf(std::span<const double> values) {
  if (values.empty()) return {};
  const Quartiles quartiles = QuartilesOf(values);
  return {static_cast<int>(values.size()), quartiles.low, quartiles.median, quartiles.high};
}

Json ToJson(const BenchRecord& r) {
  Json json{{"schema", 1}, {"record", "bench"}};
  json["bench"] = r.bench;
  if (!r.preset.empty()) json["preset"] = r.preset;
  json["arm"] = r.arm;
  json["per"] = r.per;
  json["source"] = r.source;
  if (!r.note.empty()) json["note"] = r.note;
  const Shape& shape = r.shape;
  if (r.bench != "machine") {
    json["shape"] = {{"rows", shape.n_rows},
                     {"query_heads", shape.n_query_heads},
                     {"kv_heads", shape.n_kv_heads},
                     {"head_dim", shape.head_dim},
                     {"k_type", KvTypeName(shape.k_type)},
                     {"v_type", KvTypeName(shape.v_type)},
                     {"query_rows", r.n_query_rows},
                     {"layers", r.n_layers}};
  }
  json["threads"] = r.n_threads;
  json["visible_rows"] = r.visible_rows;
  json["n"] = r.ns.n;
  json["median_ns"] = r.ns.median;
  json["quartiles_ns"] = {r.ns.low, r.ns.high};
  json["bytes"] = r.bytes;
  json["k_bytes"] = r.k_bytes;
  json["v_bytes"] = r.v_bytes;
  json["summary_bytes"] = r.summary_bytes;
  json["flops"] = r.flops;
  json["bytes_per_second"] = r.bytes_per_second();
  json["flops_per_second"] = r.flops_per_second();
  json["sparse_steps"] = r.sparse_steps;
  json["fallback_steps"] = r.fallback_steps;
  AddSample(json, "stream_share", r.stream_share);
  AddSample(json, "peak_share", r.peak_share);
  AddSample(json, "ratio_to_dense", r.ratio_to_dense);
  AddSample(json, "ratio_to_host", r.ratio_to_host);
  AddSample(json, "select_share", r.select_share);
  AddSample(json, "attend_share", r.attend_share);
  json["upkeep_share"] = Nullable(r.upkeep_share);
  json["setup_ns"] = Nullable(r.setup_ns);
  json["codes_memory_share"] = Nullable(r.codes_memory_share);
  json["memory_share"] = Nullable(r.memory_share);
  AddSample(json, "speedup", r.speedup);
  json["equal_bits"] = Nullable(r.equal_bits);
  json["trustworthy"] = Nullable(r.trustworthy);
  json["max_error"] = Nullable(r.max_error);
  json["error_bound"] = Nullable(r.error_bound);
  if (r.published) {
    json["published"] = {{"ratio_to_dense", r.published->ratio},
                         {"hardware", "other hardware"},
                         {"source", r.published->source}};
  }
  const Yardstick& y = r.yardstick;
  json["yardstick"] = {{"stream_bytes_per_second", y.stream.median},
                       {"stream_quartiles", {y.stream.low, y.stream.high}},
                       {"peak_flops", y.peak.median},
                       {"peak_quartiles", {y.peak.low, y.peak.high}},
                       {"n", y.stream.n},
                       {"threads", r.n_threads},
                       {"buffer_bytes", y.buffer_bytes},
                       {"huge_page_share", y.huge_share},
                       {"trustworthy", y.trustworthy}};
  for (const auto& [name, value] : r.origin) json[name] = value;
  return json;
}

}  // namespace condense
