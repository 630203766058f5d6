#include "decode/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode/log.h"
#include "decode/stop.h"
#include "llama.h"

namespace condense {
namespace {

constexpr int kContextStep = 256;  // the host pads its caches to this many rows
constexpr const char* kStopped = "stopped by the user";

Result<ggml_type> HostType(const std::string& name) {
  for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
    if (name == ggml_type_name(type)) return type;
  }
  return Error{fmt::format("KV cache type '{}' is not one that Condense reads", name)};
}

// From construction to destruction the plug-in leaves everything to the host, if the session wants
// that.
class LeftToHost {
 public:
  explicit LeftToHost(const SessionOptions& options)
      : api_(options.left_to_host ? options.api : nullptr) {
    if (api_) api_->leave_to_host(1);
  }
  ~LeftToHost() {
    if (api_) api_->leave_to_host(0);
  }
  LeftToHost(const LeftToHost&) = delete;
  LeftToHost& operator=(const LeftToHost&) = delete;

 private:
  const condense_api* api_;
};

}  // namespace

Status CheckRowsCanBeRemoved(const Model& model) {
  if (!model.has_recurrent_state()) return Status();
  return Error{"model '" + model.Description() +
               "' keeps recurrent state, so that rows cannot be removed and decoded again: decode "
               "it with --mode sparse"};
}

Session::Session(const Model& model, llama_context* context, const SessionOptions& options)
    : model_(model), context_(context), options_(options) {}

Session::~Session() { llama_free(context_); }

Result<std::unique_ptr<Session>> Session::Open(const Model& model, const SessionOptions& options) {
  CONDENSE_CHECK(options.n_context > 0 && options.n_threads > 0 && options.n_batch > 0);
  const Result<ggml_type> k_type = HostType(options.k_type), v_type = HostType(options.v_type);
  if (!k_type.ok()) return Error{k_type.error()};
  if (!v_type.ok()) return Error{v_type.error()};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = (options.n_context + kContextStep - 1) / kContextStep * kContextStep;
  params.n_batch = params.n_ubatch = options.n_batch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = options.n_threads;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = k_type.value();
  params.type_v = v_type.value();
  params.swa_full = true;  // rows behind a sliding window stay, so that Rewind can cut
  params.kv_unified = true;
  params.no_perf = true;
  params.abort_callback = [](void*) { return StopRequested(); };
  CONDENSE_CHECK(options.left_to_host ? options.api != nullptr : options.flash_attention);
  const LeftToHost leave(options);
  ErrorLines host_errors;
  llama_context* context = llama_init_from_model(model.handle(), params);
  if (!context) {
    return Error{fmt::format("llama.cpp cannot make a context of {} tokens: {}", params.n_ctx,
                             host_errors.First())};
  }
  return std::unique_ptr<Session>(new Session(model, context, options));
}

void Session::Forget() const {
  if (options_.api && !options_.left_to_host) options_.api->forget();
}

int Session::n_context() const { return static_cast<int>(llama_n_ctx(context_)); }

Status Session::Decode(std::span<const Token> tokens, int n_logits) {
  if (StopRequested()) return Error{kStopped};
  if (position_ + static_cast<int>(tokens.size()) > n_context()) {
    return Error{fmt::format("the context of {} tokens is full", n_context())};
  }
  const LeftToHost leave(options_);
  ErrorLines host_errors;
  // The host takes a mutable pointer and does not write.
  llama_batch batch =
      llama_batch_get_one(const_cast<Token*>(tokens.data()), static_cast<int32_t>(tokens.size()));
  std::vector<int8_t> wanted;
  if (n_logits > 1) {
    wanted.assign(tokens.size(), 0);
    std::fill(wanted.end() - n_logits, wanted.end(), 1);
    batch.logits = wanted.data();
  }
  const int32_t rc = llama_decode(context_, batch);
  if (rc != 0) {
    if (StopRequested()) return Error{kStopped};
    return Error{fmt::format("llama.cpp failed at token {} (code {}) {}", position_, rc,
                             host_errors.First())};
  }
  position_ += static_cast<int>(tokens.size());
  return Status();
}

Result<Logits> Session::LogitsOf(int token) const {
  const float* data = llama_get_logits_ith(context_, token);
  if (!data) return Error{"llama.cpp gave no logits"};
  const Logits logits(data, model_.n_vocab());
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    return Error{fmt::format("the logits after token {} are not numbers", position_)};
  }
  return logits;
}

Result<Logits> Session::Prefill(const std::vector<Token>& tokens, const Progress& progress) {
  CONDENSE_CHECK(!tokens.empty());
  llama_memory_clear(llama_get_memory(context_), true);
  position_ = 0;
  n_prefilled_ = 0;
  saved_state_.clear();
  Forget();
  const int n_total = static_cast<int>(tokens.size());
  for (int begin = 0; begin < n_total; begin += options_.n_batch) {
    const int n = std::min(options_.n_batch, n_total - begin);
    const Status status = Decode(std::span(tokens).subspan(begin, n));
    if (!status.ok()) return Error{status.error()};
    if (progress) progress(begin + n, n_total);
  }
  n_prefilled_ = position_;
  if (model_.has_recurrent_state()) {
    saved_state_.resize(llama_state_seq_get_size(context_, 0));
    const size_t n_bytes =
        llama_state_seq_get_data(context_, saved_state_.data(), saved_state_.size(), 0);
    if (n_bytes == 0) return Error{"llama.cpp cannot save the state of this model"};
    saved_state_.resize(n_bytes);
  }
  return LogitsOf(-1);
}

Error Session::BackTo(int position, const std::string& error) {
  if (llama_memory_seq_pos_max(llama_get_memory(context_), 0) < position) {
    position_ = position;
    return {error};
  }
  const Status cut = CutBack(position);
  return {cut.ok() ? error : error + "; " + cut.error()};
}

Result<Logits> Session::Step(Token token) {
  const int begin = position_;
  const Status status = Decode(std::span(&token, 1));
  if (!status.ok()) return BackTo(begin, status.error());
  const Result<Logits> logits = LogitsOf(-1);
  if (!logits.ok()) return BackTo(begin, logits.error());
  return logits;
}

Result<std::vector<Logits>> Session::StepRows(std::span<const Token> tokens, int n_logits) {
  const int n = static_cast<int>(tokens.size());
  CONDENSE_CHECK(n > 0 && n <= options_.n_batch && n_logits >= 0 && n_logits <= n);
  const int begin = position_, n_rows = n_logits == 0 ? n : n_logits;
  const Status status = Decode(tokens, n_rows);
  if (!status.ok()) return BackTo(begin, status.error());
  std::vector<Logits> rows;
  rows.reserve(n_rows);
  for (int i = n - n_rows; i < n; ++i) {
    const Result<Logits> row = LogitsOf(i);
    if (!row.ok()) return BackTo(begin, row.error());
    rows.push_back(row.value());
  }
  return rows;
}

Status Session::CutBack(int position) {
  CONDENSE_CHECK(position >= 0 && position <= position_);
  if (!llama_memory_seq_rm(llama_get_memory(context_), 0, position, -1)) {
    return Error{
        fmt::format("llama.cpp cannot cut this model's cache back to {} tokens", position)};
  }
  position_ = position;
  return Status();
}

Status Session::Rewind() {
  if (saved_state_.empty()) return CutBack(n_prefilled_);
  llama_memory_clear(llama_get_memory(context_), true);
  if (llama_state_seq_set_data(context_, saved_state_.data(), saved_state_.size(), 0) == 0) {
    return Error{"llama.cpp cannot restore the saved state"};
  }
  Forget();
  position_ = n_prefilled_;
  return Status();
}

Token GreedyToken(Logits logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace condense
