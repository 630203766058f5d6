// Exact decoding beside dense decoding, tokens a second: one prefill of a text, then rounds in
// which every arm decodes the same tokens by turns. The texts are compared; set-up (probe,
// summaries) is timed apart. Arms: dense, and each DRAFT@LENGTH, as in condense:budget=8%@4 or
// lookup@auto.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "base/whole_file.h"
#include "decode/exact.h"
#include "decode/log.h"
#include "metrics/stats.h"

namespace condense {
namespace {

struct Options {
  std::string model, text;
  size_t offset = 0, depth = 7500;
  int n_tokens = 96, n_rounds = 3, n_threads = 2;
  std::vector<std::string> arms = {"condense:budget=8%@auto", "condense:budget=8%@4",
                                   "condense:budget=8%@8"};
};

struct Arm {
  std::string name;
  DraftText draft;
  int length = 0;  // 0: chosen
  std::vector<double> speeds, ratios, set_up;
  ExactCounters counters;  // of the last round
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  Status Run() {
    const Status ready = Prepare();
    if (!ready.ok()) return ready;
    for (int round = 0; round < options_.n_rounds; ++round) {
      const Result<double> dense = Dense();
      if (!dense.ok()) return Error{dense.error()};
      dense_.push_back(dense.value());
      for (Arm& arm : arms_) {
        const Status done = Exact(arm);
        if (!done.ok()) return done;
      }
      fmt::print(stderr, "round {} of {}\n", round + 1, options_.n_rounds);
    }
    Print();
    return Status();
  }

 private:
  Status ReadArms() {
    for (const std::string& text : options_.arms) {
      const size_t at = text.rfind('@');
      const std::string length = at == std::string::npos ? "auto" : text.substr(at + 1);
      const Result<int> n = ParseAutoOr(length, ExactOptions::kMostDrafted);
      if (!n.ok()) return Error{fmt::format("--arm {}: {}", text, n.error())};
      const Result<DraftText> draft = ReadDraft(text.substr(0, at));
      if (!draft.ok()) return Error{fmt::format("--arm {}: {}", text, draft.error())};
      Arm arm;
      arm.name = text;
      arm.draft = draft.value();
      arm.length = n.value();
      const int rows = ExactOptions::RowsOf(arm.draft, arm.length);
      if (options_.depth < static_cast<size_t>(rows)) {
        return Error{fmt::format(
            "--depth {}: arm {} is probed with {} tokens of the prompt: give that many or more",
            options_.depth, text, rows)};
      }
      arms_.push_back(std::move(arm));
    }
    return Status();
  }

  Status Prepare() {
    const Status read = ReadArms();
    if (!read.ok()) return read;
    const Result<std::string> path = Plugin::FindPath();
    if (!path.ok()) return Error{path.error()};
    Result<Plugin> plugin = Plugin::Load(path.value());
    if (!plugin.ok()) return Error{plugin.error()};
    plugin_ = std::make_unique<Plugin>(plugin.value());
    policies_ = std::make_unique<PolicySwitch>(*plugin_);
    Result<std::unique_ptr<Model>> model = Model::Load(options_.model);
    if (!model.ok()) return Error{model.error()};
    model_ = std::move(model.value());
    const Result<std::string> bytes = ReadWholeFile(options_.text);
    if (!bytes.ok()) return Error{fmt::format("'{}': {}", options_.text, bytes.error())};
    const std::vector<Token> tokens = model_->Tokenise(bytes.value());
    if (tokens.size() < options_.offset + options_.depth) {
      return Error{fmt::format("'{}' has {} tokens, too few for {} from {} on", options_.text,
                               tokens.size(), options_.depth, options_.offset)};
    }
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(options_.offset);
    prompt_.assign(begin, begin + static_cast<std::ptrdiff_t>(options_.depth));
    SessionOptions session;
    session.n_context = static_cast<int>(options_.depth) + options_.n_tokens + 32;
    session.n_threads = options_.n_threads;
    session.api = plugin_->api();
    Result<std::unique_ptr<Session>> opened = Session::Open(*model_, session);
    if (!opened.ok()) return Error{opened.error()};
    session_ = std::move(opened.value());
    // What a policy asks of prompts is kept of those that come after it was in force.
    for (const Arm& arm : arms_) {
      const std::string policy = PolicyOfDraft(arm.draft);
      const Status set = policy.empty() ? Status() : policies_->Set(policy);
      if (!set.ok()) return set;
    }
    const Status dense = policies_->Set("dense");
    if (!dense.ok()) return dense;
    fmt::print(stderr, "prefill of {} tokens\n", prompt_.size());
    const Result<Logits> logits = session_->Prefill(prompt_, {});
    if (!logits.ok()) return Error{logits.error()};
    first_.assign(logits->begin(), logits->end());
    return Status();
  }

  // Tokens a second; the tokens to text_.
  Result<double> Dense() {
    Status status = session_->Rewind();
    if (status.ok()) status = policies_->Set("dense");
    if (!status.ok()) return Error{status.error()};
    std::vector<Token> text = {GreedyToken(first_)};
    const Clock::time_point start = Clock::now();
    while (static_cast<int>(text.size()) < options_.n_tokens) {
      const Result<Logits> logits = session_->Step(text.back());
      if (!logits.ok()) return Error{logits.error()};
      text.push_back(GreedyToken(logits.value()));
    }
    text_ = std::move(text);
    return (options_.n_tokens - 1) / SecondsSince(start);
  }

  Status Exact(Arm& arm) {
    const Status back = session_->Rewind();
    if (!back.ok()) return back;
    Clock::time_point start = Clock::now();
    const int rows = ExactOptions::RowsOf(arm.draft, arm.length);
    Status status = policies_->Set("dense");
    if (!status.ok()) return status;
    const Result<IdentityProbe> probe =
        ProbeIdentity(*session_, std::span(prompt_).last(static_cast<size_t>(rows)));
    if (!probe.ok()) return Error{probe.error()};
    if (probe->equal_rows < rows) {
      return Error{fmt::format("{}: {} rows are not computed to the bits of single ones, {} are",
                               arm.name, rows, probe->equal_rows)};
    }
    Result<std::unique_ptr<ExactDecoder>> decoder =
        ExactDecoder::Make(*session_, *plugin_, MakeDrafts(arm.draft, *policies_),
                           {.draft_tokens = arm.length, .most_rows = rows});
    if (!decoder.ok()) return Error{decoder.error()};
    status = decoder.value()->Calibrate(probe.value(), prompt_);
    if (!status.ok()) return status;
    arm.set_up.push_back(SecondsSince(start));
    std::vector<Token> history = prompt_;
    start = Clock::now();
    status = decoder.value()->Run(history, first_, options_.n_tokens, GreedyToken,
                                  [](Token) { return true; });
    if (!status.ok()) return status;
    arm.speeds.push_back((options_.n_tokens - 1) / SecondsSince(start));
    arm.ratios.push_back(arm.speeds.back() / dense_.back());
    arm.counters = decoder.value()->counters();
    if (!std::equal(text_.begin(), text_.end(), history.begin() + prompt_.size()))
      return Error{arm.name + ": the text is not dense decoding's"};
    return Status();
  }

  void Print() const {
    fmt::print("{} tokens at depth {}, {} threads, {} rounds; '{}' from token {}\n",
               options_.n_tokens, options_.depth, options_.n_threads, options_.n_rounds,
               options_.text, options_.offset);
    fmt::print("{:32} {:6.1f} tokens/s\n", "dense", Quantile(dense_, 0.5));
    for (const Arm& arm : arms_) {
      const ExactCounters& n = arm.counters;
      fmt::print(
          "{:32} {:6.1f} tokens/s, {:.2f} of dense ({:.2f} to {:.2f}); {:.2f} tokens a "
          "verification, {} of {} drafts; a draft {:.1f} ms, a verification {:.1f} ms; {} "
          "undrafted; set-up {:.2f} s\n",
          arm.name, Quantile(arm.speeds, 0.5), Quantile(arm.ratios, 0.5),
          Quantile(arm.ratios, 0.25), Quantile(arm.ratios, 0.75),
          n.verifications > 0
              ? static_cast<double>(n.accepted() + n.verifications) / n.verifications
              : 0.0,
          n.accepted(), n.drafted(),
          n.drafted() > 0 ? 1e3 * n.draft_seconds / static_cast<double>(n.drafted()) : 0.0,
          n.verifications > 0 ? 1e3 * n.verify_seconds / static_cast<double>(n.verifications) : 0.0,
          n.undrafted, Quantile(arm.set_up, 0.5));
    }
  }

  const Options options_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<PolicySwitch> policies_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  std::vector<Token> prompt_, text_;
  std::vector<float> first_;
  std::vector<double> dense_;
  std::vector<Arm> arms_;
};

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  condense::Options options;
  CLI::App app("exact decoding beside dense decoding, in one process");
  app.add_option("model", options.model)->required();
  app.add_option("text", options.text)->required();
  app.add_option("--offset", options.offset, "tokens of the text to skip");
  app.add_option("--depth", options.depth, "tokens of the prompt");
  app.add_option("-n", options.n_tokens, "tokens to decode")->check(CLI::Range(2, 100000));
  app.add_option("--rounds", options.n_rounds)->check(CLI::Range(1, 1000));
  app.add_option("-t", options.n_threads)->check(CLI::Range(1, 1024));
  app.add_option("--arm", options.arms, "DRAFT@LENGTH, once for each")
      ->type_size(1)
      ->allow_extra_args(false);
  CLI11_PARSE(app, argc, argv);
  condense::SetLogSink([](condense::LogLevel level, std::string_view text) {
    if (level == condense::LogLevel::kError) std::fwrite(text.data(), 1, text.size(), stderr);
  });
  const condense::Status status = condense::Bench(options).Run();
  if (!status.ok()) fmt::print(stderr, "{}\n", status.error());
  return status.ok() ? 0 : 1;
}
