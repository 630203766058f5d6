#include "lab/lab_records.h"

namespace condense {

void ItemRecord::Count(const CounterSnapshot& counters) {
  const StepCounts& total = counters.total;
  kv_read_share = total.ReadShare();
  k_bytes = total.k_bytes;
  v_bytes = total.v_bytes;
  summary_bytes = total.summary_bytes;
  dense_bytes = total.dense_bytes;
  sparse_steps = total.sparse_steps;
  dense_steps = total.dense_steps;
  fallbacks = FallbackCounts(counters.process);
}

Json ToJson(const ItemRecord& r) {
  Json json{{"record", "item"}};
  json["policy"] = r.policy;
  json["spec"] = r.spec;
  json["task"] = r.task;
  json["prompt_sha256"] = r.prompt_sha256;
  json["n_prompt"] = r.n_prompt;
  json["n_decisions"] = r.n_decisions;
  json["expected"] = r.expected;
  json["answer"] = r.answer;
  json["answer_tokens"] = r.answer_tokens;
  const bool known = r.first_token_expected.has_value();
  json["first_token_expected"] = known ? Json(*r.first_token_expected) : Json(nullptr);
  json["first_token"] = r.first_token;
  json["first_token_match"] = known ? Json(r.first_token_match) : Json(nullptr);
  json["full_match"] = r.full_match;
  json["score"] = r.score;
  json["kv_read_share"] = r.kv_read_share;
  json["k_bytes"] = r.k_bytes;
  json["v_bytes"] = r.v_bytes;
  json["summary_bytes"] = r.summary_bytes;
  json["dense_bytes"] = r.dense_bytes;
  json["sparse_steps"] = r.sparse_steps;
  json["dense_steps"] = r.dense_steps;
  json["fallbacks"] = Json::object();
  for (const auto& [reason, count] : r.fallbacks) json["fallbacks"][reason] = count;
  return json;
}

Json ToJson(const TimedRecord& r) {
  const auto known = [](const std::optional<int64_t>& n) { return n ? Json(*n) : Json(nullptr); };
  Json json{{"record", "speed"}};
  json["policy"] = r.policy;
  json["n_prompt"] = r.n_prompt;
  json["n_steps"] = r.n_steps;
  json["tokens_per_second"] = r.speed.sparse_tokens_per_second;
  json["dense_tokens_per_second"] = r.speed.dense_tokens_per_second;
  json["speed_pairs"] = r.speed.n_pairs;
  json["speed_ratio_median"] = r.speed.ratio.median;
  json["speed_ratio_low"] = r.speed.ratio.low;
  json["speed_ratio_high"] = r.speed.ratio.high;
  json["prefill_seconds"] = r.prefill_seconds;
  json["plugin_nodes"] = r.plugin_nodes;
  json["n_decisions"] = known(r.n_decisions);
  json["n_equal"] = known(r.n_equal);
  json["drafted"] = known(r.drafted);
  json["accepted"] = known(r.accepted);
  return json;
}

Json RunLine(const RunRecord& run, int rank, int n_ranks) {
  const Json record = ToJson(run);  // items() borrows
  Json line;
  for (const auto& [key, value] : record.items()) {
    const bool of_text = key == "context" || key == "text_source" || key == "text_sha256" ||
                         key == "offset" || key == "n_prompt" || key == "n_generate" ||
                         key == "speed_pairs";
    if (of_text) continue;
    line[key] = value;
    if (key == "commit") {
      line["tree_clean"] =
          run.commit == "unknown" ? Json(nullptr) : Json(!run.commit.ends_with("-dirty"));
    }
    if (key == "cpu") line["rank"] = rank;
    if (key == "cpu") line["ranks"] = n_ranks;
  }
  return line;
}

std::vector<Json> RowLines(const CompareRow& row, const std::string& model,
                           const std::string& model_sha256) {
  std::vector<Json> lines;
  for (PolicyRecord record : row.teachers) {
    record.model = model;
    record.model_sha256 = model_sha256;
    lines.push_back(ToJson(record));
  }
  for (const LayerRecord& record : row.layers) lines.push_back(ToJson(record));
  for (const StepRecord& record : row.steps) lines.push_back(ToJson(record));
  if (row.map) lines.push_back(ToJson(*row.map));
  return lines;
}

Json PromptLine(const LabPrefix& prefix, const PromptRecord& record) {
  Json json = ToJson(record);
  json["text_source"] = prefix.text;
  json["text_sha256"] = prefix.text_sha256;
  json["offset"] = prefix.offset;
  return json;
}

Json ToJson(const PublishedFigure& figure) {
  Json json{{"record", "published"}};
  json["metric"] = figure.metric;
  json["at"] = figure.at;
  json["value"] = figure.value;
  json["low"] = figure.low ? Json(*figure.low) : Json(nullptr);
  json["high"] = figure.high ? Json(*figure.high) : Json(nullptr);
  json["setting"] = figure.setting;
  json["source"] = figure.source;
  return json;
}

Json MarkLine(const Json& line, const std::string& experiment, const std::string& cell) {
  CONDENSE_CHECK(line.contains("record"));
  Json marked{{"schema", kRecordSchema}, {"record", line["record"]}, {"experiment", experiment}};
  if (!cell.empty()) marked["cell"] = cell;
  for (const auto& [key, value] : line.items()) {
    if (key != "schema" && key != "record") marked[key] = value;
  }
  return marked;
}

Json CellLine(const Cell& cell, const CellRecord& end) {
  Json line = MarkLine(ToJson(end), cell.experiment, cell.id);
  line["group"] = cell.group;
  line["parameters"] = cell.parameters;
  return line;
}

Json PlanLine(const std::string& experiment, const std::string& spec_file,
              const std::string& spec_sha256, const std::vector<Cell>& cells) {
  Json line = MarkLine(Json{{"record", "plan"}}, experiment, "");
  line["spec_file"] = spec_file;
  line["spec_sha256"] = spec_sha256;
  line["cells"] = Json::array();
  for (const Cell& cell : cells) line["cells"].push_back(cell.id);
  return line;
}

}  // namespace condense
