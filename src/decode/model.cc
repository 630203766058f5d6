#include "decode/model.h"

#include <fmt/format.h>

#include <array>

#include "decode/log.h"
#include "decode/stop.h"
#include "llama.h"

namespace condense {
namespace {

// Bytes of the UTF-8 character that begins with `lead`; 0 where none begins so.
int Utf8Length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

// Moves the complete characters of `bytes` to the result, leaving a character that is still cut.
std::string TakeCharacters(std::string& bytes) {
  std::string text;
  size_t at = 0;
  while (at < bytes.size()) {
    const int length = Utf8Length(static_cast<unsigned char>(bytes[at]));
    int good = length > 0 ? 1 : 0;
    while (good > 0 && good < length && at + good < bytes.size() &&
           (static_cast<unsigned char>(bytes[at + good]) & 0xC0) == 0x80) {
      ++good;
    }
    if (good > 0 && good == length) {
      text.append(bytes, at, length);
      at += length;
    } else if (good > 0 && at + good == bytes.size()) {
      break;
    } else {
      text += "\xEF\xBF\xBD";
      ++at;
    }
  }
  bytes.erase(0, at);
  return text;
}

void InitialiseHost() {
  static const bool done = [] {
    llama_backend_init();
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

Model::Model(llama_model* model) : model_(model), vocab_(llama_model_get_vocab(model)) {}
Model::~Model() { llama_model_free(model_); }

Result<std::unique_ptr<Model>> Model::Load(const std::string& path, bool repack) {
  InitialiseHost();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.load_mode = LLAMA_LOAD_MODE_MMAP;
  params.use_extra_bufts = repack;
  params.progress_callback = [](float, void*) { return !StopRequested(); };
  ErrorLines host_errors;
  llama_model* model = llama_model_load_from_file(path.c_str(), params);
  if (!model && StopRequested()) return Error{"stopped while loading the model"};
  if (!model) {
    return Error{fmt::format("llama.cpp cannot load '{}': {}", path, host_errors.First())};
  }
  return std::unique_ptr<Model>(new Model(model));
}

std::vector<Token> Model::TokeniseAs(std::string_view bytes, bool special) const {
  // A token takes at least one byte, but for the few that a tokenizer puts in front.
  std::vector<Token> tokens(bytes.size() + 16);
  const auto n_bytes = static_cast<int32_t>(bytes.size());
  int32_t n = llama_tokenize(vocab_, bytes.data(), n_bytes, tokens.data(),
                             static_cast<int32_t>(tokens.size()), special, special);
  if (n < 0) {
    tokens.resize(-static_cast<int64_t>(n));
    n = llama_tokenize(vocab_, bytes.data(), n_bytes, tokens.data(),
                       static_cast<int32_t>(tokens.size()), special, special);
  }
  CONDENSE_CHECK(n >= 0);
  tokens.resize(n);
  return tokens;
}

std::vector<Token> Model::Tokenise(std::string_view bytes) const {
  return TokeniseAs(bytes, false);
}
std::vector<Token> Model::TokeniseTemplate(std::string_view bytes) const {
  return TokeniseAs(bytes, true);
}

std::string Model::Piece(Token token, bool with_control) const {
  std::array<char, 128> buffer;
  int32_t n = llama_token_to_piece(vocab_, token, buffer.data(), buffer.size(), 0, with_control);
  if (n >= 0) return std::string(buffer.data(), n);
  std::string piece(-n, '\0');
  llama_token_to_piece(vocab_, token, piece.data(), -n, 0, with_control);
  return piece;
}

std::vector<std::string> Model::Pieces(const std::vector<Token>& tokens) const {
  std::vector<std::string> pieces;
  std::string cut;
  for (Token token : tokens) {
    cut += Piece(token, true);
    pieces.push_back(TakeCharacters(cut));
  }
  if (!cut.empty() && !pieces.empty()) pieces.back() += "\xEF\xBF\xBD";
  return pieces;
}

bool Model::add_bos() const { return llama_vocab_get_add_bos(vocab_) && bos() >= 0; }
Token Model::bos() const { return llama_vocab_bos(vocab_); }
bool Model::IsEndOfGeneration(Token token) const { return llama_vocab_is_eog(vocab_, token); }
int Model::n_vocab() const { return llama_vocab_n_tokens(vocab_); }

std::string Model::Description() const {
  std::array<char, 256> buffer;
  const int32_t n = llama_model_desc(model_, buffer.data(), buffer.size());
  return n > 0 ? std::string(buffer.data()) : "";
}

int Model::n_positions() const { return llama_model_n_ctx_train(model_); }
int Model::n_layers() const { return llama_model_n_layer(model_); }
int Model::n_query_heads() const { return llama_model_n_head(model_); }
int Model::n_kv_heads() const { return llama_model_n_head_kv(model_); }
bool Model::has_recurrent_state() const {
  return llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_);
}

Result<std::string> Model::ApplyChatTemplate(const std::string& user_text) const {
  const char* chat_template = llama_model_chat_template(model_, nullptr);
  if (!chat_template) return Error{"the model carries no chat template"};
  const llama_chat_message message = {"user", user_text.c_str()};
  std::string text(user_text.size() + 1024, '\0');
  int32_t n = llama_chat_apply_template(chat_template, &message, 1, true, text.data(),
                                        static_cast<int32_t>(text.size()));
  if (n > static_cast<int32_t>(text.size())) {
    text.resize(n);
    n = llama_chat_apply_template(chat_template, &message, 1, true, text.data(), n);
  }
  if (n < 0) return Error{"the model's chat template is none that llama.cpp's matcher knows"};
  text.resize(n);
  return text;
}

}  // namespace condense
