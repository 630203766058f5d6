// libllama by commands: reads one JSON object a line and answers each, so that a test can say in
// Python what a host does to its contexts (batches, sequences, state, shifts) with and without the
// plug-in. Uses the public interfaces of llama.cpp and Condense alone. An answer is two
// little-endian uint32 (bytes of JSON, number of floats), the JSON, the floats: logits [rows,
// n_vocab].
#include <condense/condense.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

using nlohmann::json;
using Bytes = std::vector<uint8_t>;

struct Batch {
  explicit Batch(int n) : batch(llama_batch_init(n, 0, 1)) {}
  ~Batch() { llama_batch_free(batch); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  llama_batch batch;
};

ggml_type KvTypeNamed(const std::string& name) {
  for (ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  throw std::runtime_error("unknown KV type " + name);
}

const condense_api* Api() {
  ggml_backend_reg_t reg = ggml_backend_reg_by_name("Condense");
  if (reg == nullptr) throw std::runtime_error("the plug-in is not loaded");
  const auto get =
      reinterpret_cast<condense_api_fn>(ggml_backend_reg_get_proc_address(reg, CONDENSE_API_NAME));
  if (get == nullptr) throw std::runtime_error("the plug-in has no " CONDENSE_API_NAME);
  return get();
}

void Check(int failed, const char* error) {
  if (failed != 0) throw std::runtime_error(error);
}

class Probe {
 public:
  Probe() {
    llama_log_set(
        [](ggml_log_level level, const char* text, void* user) {
          auto& self = *static_cast<Probe*>(user);
          // A continued line belongs to the line before it.
          const ggml_log_level real = level == GGML_LOG_LEVEL_CONT ? self.last_level_ : level;
          self.last_level_ = real;
          if (real >= GGML_LOG_LEVEL_WARN && real <= GGML_LOG_LEVEL_ERROR) self.log_ += text;
          if (real == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        this);
    llama_backend_init();
  }
  ~Probe() {
    for (auto& [name, context] : contexts_) llama_free(context);
    llama_model_free(model_);
  }

  json Answer(const json& ask, std::vector<float>& floats) {
    const std::string op = ask.at("op");
    if (op == "plugin") return LoadPlugin(ask);
    if (op == "policy") return SetPolicy(ask);
    if (op == "counters") return Counters(ask);
    if (op == "forget") return Api()->forget(), json::object();
    if (op == "target") return ForceTarget(ask);
    if (op == "log") return TakeLog();
    if (op == "model") return LoadModel(ask);
    if (op == "tokenise") return Tokenise(ask);
    if (op == "context") return MakeContext(ask);
    if (op == "free") return FreeContext(ask);
    if (op == "decode") return Decode(ask, floats);
    if (op == "memory") return Memory(ask);
    if (op == "state") return State(ask);
    throw std::runtime_error("unknown command " + op);
  }

 private:
  json LoadPlugin(const json& ask) {
    if (ggml_backend_load(ask.at("path").get<std::string>().c_str()) == nullptr) {
      throw std::runtime_error("cannot load the plug-in: " + log_);
    }
    return {{"version", Api()->version_string()}, {"instruction_set", Api()->instruction_set()}};
  }

  json SetPolicy(const json& ask) {
    char error[1024] = "", spec[512] = "";
    Check(Api()->set_policy(ask.at("spec").get<std::string>().c_str(), error, sizeof(error)),
          error);
    Api()->get_policy(spec, sizeof(spec));
    return {{"spec", spec}};
  }

  json ForceTarget(const json& ask) {
    char error[1024] = "";
    Check(Api()->force_instruction_set(ask.at("name").get<std::string>().c_str(), error,
                                       sizeof(error)),
          error);
    return {{"instruction_set", Api()->instruction_set()}};
  }

  // Sums over layers, and the per-layer sparse steps.
  json Counters(const json& ask) {
    condense_counters all = {};
    Api()->get_counters(&all);
    json out = {{"nodes", all.nodes},
                {"declined", all.declined},
                {"rebuilds", all.rebuilds},
                {"n_layers", all.n_layers},
                {"n_query_heads", all.n_query_heads},
                {"n_kv_heads", all.n_kv_heads},
                {"fallbacks", all.fallbacks}};
    uint64_t sparse = 0, dense = 0, fallback = 0, multi = 0, read = 0, would_read = 0;
    std::vector<uint64_t> sparse_by_layer;
    for (uint32_t i = 0; i < all.n_layers; ++i) {
      condense_layer_counters layer = {};
      if (Api()->get_layer_counters(i, &layer) != 0) break;
      sparse += layer.sparse_steps;
      dense += layer.dense_steps;
      fallback += layer.fallback_steps;
      multi += layer.multi_rows;
      read += layer.k_bytes + layer.v_bytes + layer.summary_bytes;
      would_read += layer.dense_bytes;
      sparse_by_layer.push_back(layer.sparse_steps);
    }
    out.update({{"sparse_steps", sparse},
                {"dense_steps", dense},
                {"fallback_steps", fallback},
                {"multi_rows", multi},
                {"bytes_read", read},
                {"dense_bytes", would_read},
                {"sparse_steps_by_layer", sparse_by_layer}});
    if (ask.value("reset", true)) Api()->reset_counters();
    return out;
  }

  json TakeLog() {
    json lines = json::array();
    size_t begin = 0;
    while (begin < log_.size()) {
      const size_t end = std::min(log_.find('\n', begin), log_.size());
      if (end > begin) lines.push_back(log_.substr(begin, end - begin));
      begin = end + 1;
    }
    log_.clear();
    return {{"lines", lines}};
  }

  json LoadModel(const json& ask) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = ask.value("repack", true);
    model_ = llama_model_load_from_file(ask.at("path").get<std::string>().c_str(), params);
    if (model_ == nullptr) throw std::runtime_error("cannot load the model: " + log_);
    vocab_ = llama_model_get_vocab(model_);
    return {{"n_vocab", llama_vocab_n_tokens(vocab_)},
            {"n_ctx_train", llama_model_n_ctx_train(model_)},
            {"n_layer", llama_model_n_layer(model_)},
            {"n_head", llama_model_n_head(model_)},
            {"n_head_kv", llama_model_n_head_kv(model_)},
            {"recurrent", llama_model_is_recurrent(model_)},
            {"hybrid", llama_model_is_hybrid(model_)},
            {"has_encoder", llama_model_has_encoder(model_)},
            {"bos", llama_vocab_bos(vocab_)}};
  }

  json Tokenise(const json& ask) {
    const std::string text = ask.at("text");
    std::vector<llama_token> tokens(text.size() + 16);
    const int n = llama_tokenize(vocab_, text.data(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), false, false);
    if (n < 0) throw std::runtime_error("cannot tokenise");
    tokens.resize(n);
    return {{"tokens", tokens}};
  }

  json MakeContext(const json& ask) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = ask.value("n_ctx", 2048);
    params.n_batch = ask.value("n_batch", 2048);
    params.n_ubatch = ask.value("n_ubatch", 512);
    params.n_seq_max = ask.value("n_seq_max", 1);
    params.n_threads = params.n_threads_batch = ask.at("n_threads");
    params.type_k = KvTypeNamed(ask.value("kv", "f16"));
    params.type_v = KvTypeNamed(ask.value("kv", "f16"));
    params.kv_unified = ask.value("unified", true);
    params.flash_attn_type =
        ask.value("fa", true) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.no_perf = true;
    llama_context* context = llama_init_from_model(model_, params);
    if (context == nullptr) throw std::runtime_error("cannot make a context: " + log_);
    contexts_[ask.at("name")] = context;
    return {{"n_ctx", llama_n_ctx(context)}, {"has_memory", llama_get_memory(context) != nullptr}};
  }

  llama_context* Context(const json& ask) {
    return contexts_.at(ask.at("name").get<std::string>());
  }

  json FreeContext(const json& ask) {
    llama_free(Context(ask));
    contexts_.erase(ask.at("name").get<std::string>());
    return json::object();
  }

  json Decode(const json& ask, std::vector<float>& floats) {
    const std::vector<llama_token> tokens = ask.at("tokens");
    const std::vector<llama_pos> positions = ask.at("pos");
    const std::vector<llama_seq_id> sequences = ask.at("seq");
    const bool all = ask.at("outputs") == "all", none = ask.at("outputs") == "none";
    const int n = static_cast<int>(tokens.size());
    Batch holder(n);
    llama_batch& batch = holder.batch;
    batch.n_tokens = n;
    for (int i = 0; i < n; ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = positions.at(i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = sequences.at(i);
      batch.logits[i] = all || (!none && i + 1 == n);
    }
    const int rc = llama_decode(Context(ask), batch);
    if (rc != 0)
      throw std::runtime_error("llama_decode returned " + std::to_string(rc) + ": " + log_);
    const int n_vocab = llama_vocab_n_tokens(vocab_);
    for (int i = 0; i < n; ++i) {
      if (!batch.logits[i]) continue;
      const float* row = llama_get_logits_ith(Context(ask), i);
      if (row == nullptr) throw std::runtime_error("no logits");
      floats.insert(floats.end(), row, row + n_vocab);
    }
    return json::object();
  }

  json Memory(const json& ask) {
    llama_memory_t memory = llama_get_memory(Context(ask));
    if (memory == nullptr) throw std::runtime_error("this model has no memory");
    const std::string what = ask.at("what");
    const llama_seq_id seq = ask.value("seq", 0);
    const llama_pos from = ask.value("from", -1), to = ask.value("to", -1);
    bool done = true;
    if (what == "remove") {
      done = llama_memory_seq_rm(memory, seq, from, to);
    } else if (what == "copy") {
      llama_memory_seq_cp(memory, seq, ask.at("target"), from, to);
    } else if (what == "shift") {
      done = llama_memory_can_shift(memory);
      if (done) llama_memory_seq_add(memory, seq, from, to, ask.at("delta"));
    } else if (what == "keep") {
      llama_memory_seq_keep(memory, seq);
    } else if (what == "clear") {
      llama_memory_clear(memory, ask.value("data", true));
    } else {
      throw std::runtime_error("unknown memory command " + what);
    }
    if (!done) throw std::runtime_error(what + " is refused by the host");
    return json::object();
  }

  // Saves or loads the whole state, or one sequence's, under a name of the caller's.
  json State(const json& ask) {
    llama_context* context = Context(ask);
    const bool whole = !ask.contains("seq");
    const llama_seq_id seq = ask.value("seq", 0);
    Bytes& bytes = states_[ask.at("state")];
    size_t n;
    if (ask.at("what") == "save") {
      bytes.resize(whole ? llama_state_get_size(context) : llama_state_seq_get_size(context, seq));
      n = whole ? llama_state_get_data(context, bytes.data(), bytes.size())
                : llama_state_seq_get_data(context, bytes.data(), bytes.size(), seq);
      bytes.resize(n);
    } else {
      n = whole ? llama_state_set_data(context, bytes.data(), bytes.size())
                : llama_state_seq_set_data(context, bytes.data(), bytes.size(), seq);
    }
    if (n == 0) throw std::runtime_error("the state was neither saved nor loaded: " + log_);
    return {{"n_bytes", n}};
  }

  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  std::map<std::string, llama_context*> contexts_;
  std::map<std::string, Bytes> states_;
  std::string log_;
  ggml_log_level last_level_ = GGML_LOG_LEVEL_NONE;
};

void Send(const json& answer, const std::vector<float>& floats) {
  const std::string text = answer.dump(-1, ' ', false, json::error_handler_t::replace);
  const uint32_t sizes[2] = {static_cast<uint32_t>(text.size()),
                             static_cast<uint32_t>(floats.size())};
  std::fwrite(sizes, sizeof(sizes), 1, stdout);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fwrite(floats.data(), sizeof(float), floats.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

int main() {
  Probe probe;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<float> floats;
    json answer;
    try {
      answer = probe.Answer(json::parse(line), floats);
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
      floats.clear();
    }
    Send(answer, floats);
  }
  return 0;
}
