// Exact decoding on the default model with the plug-in: the same tokens as dense decoding, whatever
// drafts, however many, with whatever sampler; at limits and stops too. All of it: `make
// check-exact`.
#include "decode/exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "decode/lookup.h"
#include "decode/sampler.h"
#include "decode/stop.h"

namespace condense {
namespace {

constexpr int kPrompt = 420, kTokens = 20;

// Never right: every token but the one that is likely.
class WrongDraft final : public DraftSource {
 public:
  std::string name() const override { return "wrong"; }
  bool takes_steps() const override { return false; }
  Result<std::vector<Token>> Propose(Session& session, std::span<const Token>, int n) override {
    return std::vector<Token>(n, session.model().n_vocab() - 1);
  }
};

class ExactTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<Plugin> plugin = Plugin::Load(CONDENSE_TEST_PLUGIN);
    ASSERT_TRUE(plugin.ok()) << plugin.error();
    plugin_ = std::make_unique<Plugin>(plugin.value());
    Result<std::unique_ptr<Model>> model = Model::Load(CONDENSE_TEST_MODEL);
    ASSERT_TRUE(model.ok()) << model.error();
    model_ = std::move(model.value());
    std::ifstream in("/usr/share/common-licenses/GPL-3", std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    ASSERT_FALSE(text.empty());
    tokens_ = model_->Tokenise(text);
  }
  static void TearDownTestSuite() {
    model_.reset();
    plugin_.reset();
  }

  void Open(int n_context, int n_threads = 2, int n_batch = 512) {
    SessionOptions options;
    options.n_context = n_context;
    options.n_threads = n_threads;
    options.n_batch = n_batch;
    options.api = plugin_->api();
    Result<std::unique_ptr<Session>> session = Session::Open(*model_, options);
    ASSERT_TRUE(session.ok()) << session.error();
    session_ = std::move(session.value());
  }
  void Prefill(int offset, int n) {
    ASSERT_TRUE(plugin_->SetPolicy("dense").ok());
    prompt_.assign(tokens_.begin() + offset, tokens_.begin() + offset + n);
    const Result<Logits> logits = session_->Prefill(prompt_, {});
    ASSERT_TRUE(logits.ok()) << logits.error();
    first_.assign(logits->begin(), logits->end());
  }

  // Dense decoding's tokens from the end of the prefill.
  std::vector<Token> Dense(int n, const SamplerOptions& sampling = {}) {
    EXPECT_TRUE(session_->Rewind().ok());
    EXPECT_TRUE(plugin_->SetPolicy("dense").ok());
    Sampler sampler(sampling);
    std::vector<Token> text = {sampler.Choose(first_)};
    while (static_cast<int>(text.size()) < n) {
      const Result<Logits> logits = session_->Step(text.back());
      if (!logits.ok()) break;
      text.push_back(sampler.Choose(logits.value()));
    }
    return text;
  }

  void MakeDecoder(const std::string& draft, int draft_tokens) {
    policies_ = std::make_unique<PolicySwitch>(*plugin_);
    const Result<DraftText> read = ReadDraft(draft);
    ASSERT_TRUE(read.ok()) << read.error();
    MakeDecoder(MakeDrafts(read.value(), *policies_), draft_tokens);
  }
  void MakeDecoder(std::vector<std::unique_ptr<DraftSource>> sources, int draft_tokens) {
    if (policies_ == nullptr) policies_ = std::make_unique<PolicySwitch>(*plugin_);
    Result<std::unique_ptr<ExactDecoder>> decoder =
        ExactDecoder::Make(*session_, *plugin_, std::move(sources), {.draft_tokens = draft_tokens});
    ASSERT_TRUE(decoder.ok()) << decoder.error();
    decoder_ = std::move(decoder.value());
  }
  void Calibrate() {
    ASSERT_TRUE(session_->Rewind().ok());
    ASSERT_TRUE(policies_->Set("dense").ok());
    const Result<IdentityProbe> probe = ProbeIdentity(*session_, std::span(prompt_).first(6));
    ASSERT_TRUE(probe.ok()) << probe.error();
    ASSERT_TRUE(decoder_->Calibrate(probe.value(), prompt_).ok());
    EXPECT_EQ(session_->position(), static_cast<int>(prompt_.size()));
  }

  // Exact decoding's tokens from the end of the prefill.
  std::vector<Token> Exact(int n, const SamplerOptions& sampling = {}, Status* status = nullptr,
                           const OnToken& on_token = {}) {
    EXPECT_TRUE(session_->Rewind().ok());
    Sampler sampler(sampling);
    std::vector<Token> history = prompt_;
    const Status done = decoder_->Run(
        history, first_, n, [&](Logits logits) { return sampler.Choose(logits); },
        on_token ? on_token : [](Token) { return true; });
    if (status != nullptr) *status = done;
    if (status == nullptr) {
      EXPECT_TRUE(done.ok()) << done.error();
    }
    EXPECT_EQ(session_->position() + 1, static_cast<int>(history.size()));
    const ExactCounters& counters = decoder_->counters();
    int64_t verifications = 0;
    for (const ExactCounters::Source& source : counters.sources) {
      EXPECT_LE(source.accepted, source.drafted);
      verifications += source.verifications;
    }
    EXPECT_EQ(verifications, counters.verifications);
    EXPECT_EQ(counters.verified_rows, counters.drafted() + counters.verifications);
    return {history.begin() + static_cast<std::ptrdiff_t>(prompt_.size()), history.end()};
  }

  static std::unique_ptr<Plugin> plugin_;
  static std::unique_ptr<Model> model_;
  static std::vector<Token> tokens_;
  std::unique_ptr<Session> session_;
  std::vector<Token> prompt_;
  std::vector<float> first_;  // logits after the prompt
  std::unique_ptr<PolicySwitch> policies_;
  std::unique_ptr<ExactDecoder> decoder_;
};
std::unique_ptr<Plugin> ExactTest::plugin_;
std::unique_ptr<Model> ExactTest::model_;
std::vector<Token> ExactTest::tokens_;

const SamplerOptions kSampled = {.temperature = 0.9, .seed = 11};

TEST_F(ExactTest, TheSameTokensAsDense) {
  const std::vector<std::string> drafts = {
      "condense:budget=8%", "mean:blocks=2", "random:blocks=1",      "window:window=16",
      "h2o:tokens=64",      "lookup",        "lookup+mean:blocks=2", "pillar:tokens=97"};
  const std::vector<int> lengths = {1, 16, 4, 0, 2, 7};  // 0: auto
  size_t turn = 0;
  int64_t accepted = 0, drafted = 0;
  for (const int n_threads : {1, 2}) {
    Open(kPrompt + kTokens, n_threads);
    for (const int offset : n_threads == 1 ? std::vector<int>{0} : std::vector<int>{0, 3000}) {
      Prefill(offset, kPrompt);
      const std::vector<Token> greedy = Dense(kTokens), sampled = Dense(kTokens, kSampled);
      EXPECT_NE(greedy, sampled);
      for (const std::string& draft : drafts) {
        const int length = lengths[turn % lengths.size()];
        const bool samples = turn++ % 3 == 1;
        MakeDecoder(draft, length);
        if (length == 0) Calibrate();
        EXPECT_EQ(Exact(kTokens, samples ? kSampled : SamplerOptions()), samples ? sampled : greedy)
            << draft << " by " << length << ", " << n_threads << " threads, offset " << offset;
        const ExactCounters& counters = decoder_->counters();
        EXPECT_EQ(counters.tokens, kTokens);
        EXPECT_EQ(counters.accepted() + counters.verifications + counters.undrafted, kTokens - 1);
        accepted += counters.accepted();
        drafted += counters.drafted();
      }
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted) << "both ways of a verification must have been taken";
}

TEST_F(ExactTest, TheModelGivesTheSameBitsForSeveralRows) {
  Open(kPrompt + 32);
  Prefill(1000, kPrompt);
  const std::vector<Token> some(tokens_.begin(), tokens_.begin() + 17);
  const Result<IdentityProbe> probe = ProbeIdentity(*session_, some);
  ASSERT_TRUE(probe.ok()) << probe.error();
  EXPECT_EQ(probe->equal_rows, 17);
  EXPECT_EQ(probe->probed_rows, 17);
  EXPECT_EQ(probe->largest_difference, 0);
  EXPECT_EQ(probe->seconds.size(), 17u);
  EXPECT_EQ(session_->position(), kPrompt);
}

TEST_F(ExactTest, TheCacheIsAsDenseDecodingLeavesIt) {
  Open(kPrompt + kTokens + 8);
  Prefill(500, kPrompt);
  const std::vector<Token> dense = Dense(kTokens);
  const Result<Logits> wanted = session_->Step(dense.back());
  ASSERT_TRUE(wanted.ok());
  const std::vector<float> bits(wanted->begin(), wanted->end());
  MakeDecoder("lookup+mean:blocks=2", 5);
  EXPECT_EQ(Exact(kTokens), dense);
  ASSERT_TRUE(policies_->Set("dense").ok());
  const Result<Logits> next = session_->Step(dense.back());
  ASSERT_TRUE(next.ok()) << next.error();
  EXPECT_TRUE(std::equal(bits.begin(), bits.end(), next->begin()));
}

TEST_F(ExactTest, ATextMayEndAtAnyToken) {
  Open(kPrompt + kTokens);
  Prefill(200, kPrompt);
  const std::vector<Token> dense = Dense(kTokens);
  for (const int end : {1, 2, 5, 9}) {
    MakeDecoder("mean:blocks=2", 4);
    int n = 0;
    const std::vector<Token> text = Exact(kTokens, {}, nullptr, [&](Token) { return ++n < end; });
    EXPECT_EQ(text, std::vector<Token>(dense.begin(), dense.begin() + end));
    // And goes on from there.
    std::vector<Token> history = prompt_;
    history.insert(history.end(), text.begin(), text.end());
    ASSERT_TRUE(policies_->Set("dense").ok());
    const Result<Logits> logits = session_->Step(text.back());
    ASSERT_TRUE(logits.ok());
    const std::vector<float> copy(logits->begin(), logits->end());
    ASSERT_TRUE(
        decoder_->Run(history, copy, kTokens - end, GreedyToken, [](Token) { return true; }).ok());
    EXPECT_TRUE(std::equal(dense.begin(), dense.end(), history.begin() + kPrompt));
  }
}

TEST_F(ExactTest, TheContextsLastRowIsUsedAndNoMore) {
  Open(256);
  Prefill(0, 240);
  // 240 rows, 16 more: 17 tokens, the last of which is not fed.
  const std::vector<Token> dense = Dense(100);
  ASSERT_EQ(dense.size(), 17u);
  for (const char* draft : {"mean:blocks=2", "lookup"}) {
    MakeDecoder(draft, 8);
    EXPECT_EQ(Exact(17), dense);
    Status status;
    EXPECT_EQ(Exact(100, {}, &status), dense);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().find("256"), std::string::npos) << status.error();
  }
}

TEST_F(ExactTest, ABatchSmallerThanTheDraft) {
  Open(kPrompt + kTokens, 2, 4);
  Prefill(0, 64);
  policies_ = std::make_unique<PolicySwitch>(*plugin_);
  const Result<std::unique_ptr<ExactDecoder>> refused = ExactDecoder::Make(
      *session_, *plugin_, MakeDrafts({.looks_up = true, .policy = ""}, *policies_),
      {.draft_tokens = 8});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().find("9 rows"), std::string::npos) << refused.error();
  const std::vector<Token> dense = Dense(kTokens);
  for (const int length : {3, 0}) {
    MakeDecoder("random:blocks=1", length);
    EXPECT_EQ(Exact(kTokens), dense);
  }
}

TEST_F(ExactTest, DraftsThatNeverAgree) {
  Open(kPrompt + 100);
  Prefill(0, kPrompt);
  const std::vector<Token> dense = Dense(80);
  std::vector<std::unique_ptr<DraftSource>> sources;
  sources.push_back(std::make_unique<WrongDraft>());
  MakeDecoder(std::move(sources), 0);
  Calibrate();
  EXPECT_EQ(Exact(80), dense);
  const ExactCounters& counters = decoder_->counters();
  EXPECT_EQ(counters.accepted(), 0);
  EXPECT_GE(counters.sources[0].rests, 1) << "drafting that never agrees is turned off";
  EXPECT_GT(counters.undrafted, 40);
}

TEST_F(ExactTest, AStopLeavesTheSessionUsable) {
  Open(kPrompt + kTokens);
  Prefill(0, kPrompt);
  const std::vector<Token> dense = Dense(kTokens);
  MakeDecoder("mean:blocks=2", 4);
  // Between two calls.
  Status status;
  int n = 0;
  std::vector<Token> text = Exact(kTokens, {}, &status, [&](Token) {
    if (++n == 6) RequestStop();
    return true;
  });
  ClearStop();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().find("stopped"), std::string::npos);
  ASSERT_GE(text.size(), 6u);
  EXPECT_TRUE(std::equal(text.begin(), text.end(), dense.begin()));
  // At any moment: in the middle of a draft or of a verification.
  for (const int milliseconds : {20, 45, 70, 110}) {
    std::thread stop([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      RequestStop();
    });
    text = Exact(kTokens, {}, &status);
    stop.join();
    ClearStop();
    ASSERT_GE(text.size(), 1u);
    EXPECT_TRUE(std::equal(text.begin(), text.end(), dense.begin()));
  }
  EXPECT_EQ(Exact(kTokens), dense);
}

TEST_F(ExactTest, DraftsAsTheyAreSpelled) {
  PolicySwitch policies(*plugin_);
  const auto made = [&](const char* text) { return MakeDrafts(ReadDraft(text).value(), policies); };
  EXPECT_EQ(made("lookup").size(), 1u);
  EXPECT_EQ(made("lookup+mean")[1]->name(), "mean");
  EXPECT_EQ(made("mean")[0]->name(), "mean");
  EXPECT_FALSE(ReadDraft("lookup+").ok());
  EXPECT_FALSE(ReadDraft("").ok());
  EXPECT_EQ(ReadDraft("lookup+mean:blocks=2")->policy, "mean:blocks=2");
  EXPECT_EQ(ReadDraft("lookup")->policy, "");
  EXPECT_FALSE(policies.Set("quset").ok());
}

}  // namespace
}  // namespace condense
