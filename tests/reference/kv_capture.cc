// Stores what attention of a real model works on: q, K and V of some layers after a prompt and a
// few one-row steps, in the types that the host's cache keeps. Uses llama.cpp alone: no plug-in is
// loaded. The tests' NumPy reference and policy_rows read it.
//
//   kv_capture MODEL FOLDER KV_TYPE N_PROMPT N_STEPS LAYERS(0,7,…) < text
//
// FOLDER gets fixture.json and, per layer L: L.q f32 [n_rows, n_heads, k_dim], post-RoPE; L.k and
// L.v [n_rows, n_kv_heads, row bytes]. Row i is the text's token i; prompt first, then the steps.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

namespace {

using Bytes = std::vector<char>;

[[noreturn]] void Fail(const std::string& why) { throw std::runtime_error(why); }

struct Layer {
  Bytes q, k, v;  // rows so far
  int n_queries = 0;
};

struct Capture {
  std::map<int, Layer> layers;
  float scale = 0;
  int n_heads = 0, n_kv_heads = 0, k_dim = 0;
  std::string k_type, error;
};

// The layer whose cache a node reads, from the name of the cache's tensor; -1: none.
int LayerOf(const ggml_tensor* node) {
  const ggml_tensor* k = node->src[1];
  while (k->view_src != nullptr) k = k->view_src;
  int layer = -1;
  return std::sscanf(k->name, "cache_k_l%d", &layer) == 1 ? layer : -1;
}

// Rows [begin, end) of dimension 1, all heads (dimension 2) of each: [rows, heads, row bytes].
void AppendRows(const ggml_tensor* t, int begin, int end, Bytes& out) {
  const size_t row_bytes = ggml_row_size(t->type, t->ne[0]);
  const char* data = static_cast<const char*>(t->data);
  for (int row = begin; row < end; ++row) {
    for (int head = 0; head < t->ne[2]; ++head) {
      const char* at = data + row * t->nb[1] + head * t->nb[2];
      out.insert(out.end(), at, at + row_bytes);
    }
  }
}

// Query row i of a node sees the rows written before it and its own: what the fixture's readers
// take for granted.
void CheckMask(const ggml_tensor* mask, int n_before, int n_new) {
  if (mask == nullptr || mask->type != GGML_TYPE_F16) Fail("no f16 mask");
  for (int i = 0; i < n_new; ++i) {
    const auto* row =
        reinterpret_cast<const uint16_t*>(static_cast<const char*>(mask->data) + i * mask->nb[1]);
    for (int j = 0; j < mask->ne[0]; ++j) {
      if ((row[j] == 0) != (j <= n_before + i)) Fail("the mask is not causal over cells in order");
    }
  }
}

void Take(const ggml_tensor* node, Capture& capture) {
  const auto found = capture.layers.find(LayerOf(node));
  if (found == capture.layers.end()) return;
  Layer& layer = found->second;
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
  if (q->type != GGML_TYPE_F32 || q->ne[3] != 1) Fail("queries are not f32 of one stream");
  const int n_before = layer.n_queries, n_new = static_cast<int>(q->ne[1]);
  CheckMask(node->src[3], n_before, n_new);
  AppendRows(q, 0, n_new, layer.q);
  AppendRows(k, n_before, n_before + n_new, layer.k);
  AppendRows(v, n_before, n_before + n_new, layer.v);
  layer.n_queries += n_new;
  std::memcpy(&capture.scale, node->op_params, sizeof(float));
  capture.n_heads = static_cast<int>(q->ne[2]);
  capture.n_kv_heads = static_cast<int>(k->ne[2]);
  capture.k_dim = static_cast<int>(q->ne[0]);
  capture.k_type = ggml_type_name(k->type);
}

bool OnNode(ggml_tensor* node, bool ask, void* user) {
  if (node->op != GGML_OP_FLASH_ATTN_EXT) return !ask;
  if (ask) return true;
  auto& capture = *static_cast<Capture*>(user);
  try {
    Take(node, capture);
  } catch (const std::exception& error) {
    capture.error = error.what();
    return false;
  }
  return true;
}

ggml_type KvType(const std::string& name) {
  for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  Fail("unknown KV type " + name + ": f32, f16, bf16 or q8_0");
}

std::vector<llama_token> Tokens(const llama_vocab* vocab, const std::string& text, int n) {
  std::vector<llama_token> tokens(text.size() + 16);
  const int found = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                   static_cast<int>(tokens.size()), false, false);
  if (found < n) {
    Fail("the text has " + std::to_string(found) + " tokens of the " + std::to_string(n) +
         " needed");
  }
  tokens.resize(n);
  return tokens;
}

void Write(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) Fail("cannot write " + path);
}

void Run(char** arguments) {
  const std::string folder = arguments[2];
  const int n_prompt = std::atoi(arguments[4]), n_steps = std::atoi(arguments[5]);
  if (n_prompt < 2 || n_steps < 1) Fail("N_PROMPT is at least 2, N_STEPS at least 1");
  Capture capture;
  std::istringstream list(arguments[6]);
  for (std::string layer; std::getline(list, layer, ',');) capture.layers[std::stoi(layer)];

  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(arguments[1], model_params);
  if (model == nullptr) Fail(std::string("cannot load ") + arguments[1]);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<llama_token> tokens = Tokens(llama_model_get_vocab(model), text, n_prompt + n_steps);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = n_prompt + n_steps;
  params.n_batch = n_prompt;
  params.n_threads = params.n_threads_batch = 2;
  params.type_k = params.type_v = KvType(arguments[3]);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.cb_eval = OnNode;
  params.cb_eval_user_data = &capture;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) Fail("cannot make a context");
  for (int at = 0; at < n_prompt + n_steps;) {
    const int n = at == 0 ? n_prompt : 1;
    const int rc = llama_decode(context, llama_batch_get_one(&tokens[at], n));
    if (!capture.error.empty()) Fail(capture.error);
    if (rc != 0) Fail("llama_decode returned " + std::to_string(rc));
    at += n;
  }
  llama_free(context);
  llama_model_free(model);

  nlohmann::json layers = nlohmann::json::array();
  for (const auto& [number, layer] : capture.layers) {
    if (layer.n_queries != n_prompt + n_steps)
      Fail("layer " + std::to_string(number) + " had no attention over one cache");
    const std::string path = folder + "/" + std::to_string(number);
    Write(path + ".q", layer.q);
    Write(path + ".k", layer.k);
    Write(path + ".v", layer.v);
    layers.push_back(number);
  }
  const nlohmann::json shape = {{"layers", layers},
                                {"n_prompt", n_prompt},
                                {"n_steps", n_steps},
                                {"n_heads", capture.n_heads},
                                {"n_kv_heads", capture.n_kv_heads},
                                {"k_dim", capture.k_dim},
                                {"scale", capture.scale},
                                {"kv_type", capture.k_type}};
  const std::string written = shape.dump();
  Write(folder + "/fixture.json", Bytes(written.begin(), written.end()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "kv_capture MODEL FOLDER KV_TYPE N_PROMPT N_STEPS LAYERS < text\n");
    return 2;
  }
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  try {
    llama_backend_init();
    Run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kv_capture: %s\n", error.what());
    return 1;
  }
  return 0;
}
