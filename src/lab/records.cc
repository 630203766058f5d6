#include "lab/records.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace condense {
namespace {

Json Head(const char* kind) { return Json{{"schema", kRecordSchema}, {"record", kind}}; }

template <typename T>
Json Nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

Json ToJson(const RunRecord& r) {
  Json json = Head("run");
  json["program"] = r.program;
  json["version"] = r.version;
  json["commit"] = r.commit;
  json["llama_cpp_commit"] = r.llama_cpp_commit;
  json["ggml_version"] = r.ggml_version;
  json["compiler"] = r.compiler;
  json["instruction_set"] = r.instruction_set;
  json["threads"] = r.threads;
  json["cpu"] = r.cpu;
  json["model"] = r.model;
  json["model_sha256"] = r.model_sha256;
  json["model_desc"] = r.model_desc;
  json["n_layers"] = r.n_layers;
  json["n_query_heads"] = r.n_query_heads;
  json["n_kv_heads"] = r.n_kv_heads;
  json["head_dim"] = r.head_dim;
  json["kv_type_k"] = r.kv_type_k;
  json["kv_type_v"] = r.kv_type_v;
  json["kv_bytes_per_token"] = r.kv_bytes_per_token;
  json["context"] = r.context;
  json["text_source"] = r.text_source;
  json["text_sha256"] = r.text_sha256;
  json["offset"] = r.offset;
  json["n_prompt"] = r.n_prompt;
  json["n_generate"] = r.n_generate;
  json["speed_pairs"] = r.speed_pairs;
  json["time_utc"] = r.time_utc;
  json["argv"] = r.argv;
  return json;
}

Json ToJson(const PromptRecord& r) {
  Json json = Head("prompt");
  json["n_prompt"] = r.n_prompt;
  json["prefill_seconds"] = r.prefill_seconds;
  json["prefill_tokens_per_second"] = r.n_prompt / r.prefill_seconds;
  json["first_token"] = r.first_token;
  json["first_token_text"] = r.first_token_text;
  json["dense_text"] = r.dense_text;
  json["dense_tokens"] = r.dense_tokens;
  return json;
}

Json ToJson(const PolicyRecord& r) {
  const TeacherFigures& f = r.figures;
  Json json = Head("policy");
  json["policy"] = r.policy;
  json["spec"] = r.spec;
  json["name"] = r.name;
  json["budget"] = Nullable(r.budget);
  json["model"] = r.model;
  json["model_sha256"] = r.model_sha256;
  json["n_prompt"] = r.n_prompt;
  json["n_decisions"] = f.n_decisions;
  json["teacher"] = r.teacher;
  json["t_div"] = Nullable(r.t_div);
  json["t_sig"] = Nullable(r.t_sig);
  json["survived"] = !r.t_div.has_value();
  json["tf_match"] = f.match;
  json["tf_match_low"] = f.match_interval.low;
  json["tf_match_high"] = f.match_interval.high;
  json["ppl_dense"] = f.ppl_dense;
  json["ppl_sparse"] = f.ppl_sparse;
  json["ppl_ratio"] = f.ppl_ratio;
  json["ppl_ratio_low"] = f.ppl_interval.low;
  json["ppl_ratio_high"] = f.ppl_interval.high;
  json["kl_mean"] = f.kl_mean;
  json["kl_median"] = f.kl_median;
  json["kl_p99"] = f.kl_p99;
  json["kl_max"] = f.kl_max;
  json["kl_stderr"] = f.kl_stderr;
  json["same_top"] = f.match;
  json["delta_p_mean"] = f.delta_p_mean;
  json["delta_p_rms"] = f.delta_p_rms;
  json["largest_margin_at_difference"] = f.largest_margin_at_difference;
  json["margin_cases"] = Json{{"held_equal", f.margins.held_equal},
                              {"held_different", f.margins.held_different},
                              {"open_equal", f.margins.open_equal},
                              {"open_different", f.margins.open_different}};
  json["omitted_mass_mean"] = f.omitted_mass_mean;
  json["omitted_mass_max"] = f.omitted_mass_max;
  json["kv_read_share"] = r.kv_read_share;
  json["k_bytes"] = r.k_bytes;
  json["v_bytes"] = r.v_bytes;
  json["summary_bytes"] = r.summary_bytes;
  json["dense_bytes"] = r.dense_bytes;
  json["unique_rows_per_kv_head"] = r.unique_rows_per_kv_head;
  json["nominal_rows_per_query_head"] = r.nominal_rows_per_query_head;
  json["visible_rows"] = r.visible_rows;
  json["sparse_tokens_per_second"] = r.speed.sparse_tokens_per_second;
  json["dense_tokens_per_second"] = r.speed.dense_tokens_per_second;
  json["speed_pairs"] = r.speed.n_pairs;
  json["speed_ratio_median"] = r.speed.ratio.median;
  json["speed_ratio_low"] = r.speed.ratio.low;
  json["speed_ratio_high"] = r.speed.ratio.high;
  json["sparse_steps"] = r.sparse_steps;
  json["dense_steps"] = r.dense_steps;
  json["fallbacks"] = Json::object();
  for (const auto& [reason, count] : r.fallbacks) json["fallbacks"][reason] = count;
  json["rebuilds"] = r.rebuilds;
  json["select_share"] = Nullable(r.select_share);
  json["survival"] = Json::array();
  for (const SpanSurvival& span : f.survival) {
    json["survival"].push_back(
        Json{{"length", span.length}, {"n", span.n_spans}, {"share", span.share}});
  }
  json["autonomous_text"] = r.autonomous_text;
  json["autonomous_tokens"] = r.autonomous_tokens;
  return json;
}

Json ToJson(const LayerRecord& r) {
  Json json = Head("layer");
  json["policy"] = r.policy;
  json["teacher"] = r.teacher;
  json["layer"] = r.layer;
  json["omitted_mass_mean"] = r.omitted_mass_mean;
  json["omitted_mass_max"] = r.omitted_mass_max;
  json["bound_mean"] = r.bound_mean;
  json["read_share"] = r.read_share;
  json["unique_rows"] = r.unique_rows;
  json["omitted_mass_heads"] = r.omitted_mass_heads;
  return json;
}

Json ToJson(const RowsRecord& r) {
  Json json = Head("rows");
  json["policy"] = r.policy;
  json["teacher"] = r.teacher;
  json["n_positions"] = r.n_positions;
  json["n_decisions"] = r.n_decisions;
  json["positions_a_column"] = r.positions_a_column;
  json["decisions_a_line"] = r.decisions_a_line;
  json["map"] = r.map;
  return json;
}

Json ToJson(const CellRecord& r) {
  Json json = Head("cell");
  json["policy"] = r.policy;
  json["name"] = r.name;
  json["budget"] = Nullable(r.budget);
  json["state"] = r.state;
  json["reason"] = r.reason;
  json["least_budget"] = Nullable(r.least_budget);
  json["seconds"] = r.seconds;
  return json;
}

Json ToJson(const StepRecord& r) {
  Json json = Head("step");
  json["policy"] = r.policy;
  json["teacher"] = r.teacher;
  json["decision"] = r.step.decision;
  json["token_target"] = r.step.token_target;
  json["token_dense"] = r.step.token_dense;
  json["token_sparse"] = r.step.token_sparse;
  json["match"] = r.step.token_dense == r.step.token_sparse;
  json["nll_dense"] = r.step.nll_dense;
  json["nll_sparse"] = r.step.nll_sparse;
  json["kl"] = r.step.kl;
  json["margin_dense"] = r.step.margin_dense;
  json["delta"] = r.step.delta;
  json["margin_sparse"] = r.step.margin_sparse;
  json["omitted_mass"] = r.step.omitted_mass;
  return json;
}

Result<RecordWriter> RecordWriter::Create(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file)
    return Error{fmt::format("cannot write records to '{}': {}", path, std::strerror(errno))};
  return RecordWriter(path, file);
}

Result<RecordWriter> RecordWriter::GoOn(const std::string& path, uint64_t keep_bytes) {
  std::error_code cut;
  std::filesystem::resize_file(path, keep_bytes, cut);
  std::FILE* file = cut ? nullptr : std::fopen(path.c_str(), "a");
  if (!file) {
    return Error{fmt::format("cannot write records to '{}': {}", path,
                             cut ? cut.message() : std::strerror(errno))};
  }
  return RecordWriter(path, file);
}

std::string RecordLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status RecordWriter::WriteLine(const Json& json) {
  const std::string line = RecordLine(json);
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0) {
    return Error{fmt::format("cannot write records to '{}': {}", path_, std::strerror(errno))};
  }
  return Status();
}

}  // namespace condense
