// Sessions on the default model with llama.cpp's own attention: tokens and back, steps, rewinding.
// The plug-in is not loaded here; what it does to a session is tested end to end.
#include "decode/session.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "decode/model.h"
#include "decode/model_file.h"
#include "decode/run.h"
#include "decode/stop.h"

namespace condense {
namespace {

class SessionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<std::unique_ptr<Model>> model = Model::Load(CONDENSE_TEST_MODEL);
    ASSERT_TRUE(model.ok()) << model.error();
    model_ = std::move(model.value());
    std::ifstream in("/usr/share/common-licenses/GPL-3", std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    ASSERT_FALSE(text.empty());
    tokens_ = model_->Tokenise(text);
  }
  static void TearDownTestSuite() { model_.reset(); }

  static std::unique_ptr<Session> Open(int n_context) {
    SessionOptions options;
    options.n_context = n_context;
    options.n_threads = 2;
    Result<std::unique_ptr<Session>> session = Session::Open(*model_, options);
    CONDENSE_CHECK(session.ok());
    return std::move(session.value());
  }

  static std::vector<Token> Prompt(int n) { return {tokens_.begin(), tokens_.begin() + n}; }

  static std::unique_ptr<Model> model_;
  static std::vector<Token> tokens_;
};
std::unique_ptr<Model> SessionTest::model_;
std::vector<Token> SessionTest::tokens_;

TEST_F(SessionTest, TokensOfTheDefaultText) {
  EXPECT_EQ(tokens_.size(), 7639u);
  std::string back;
  for (Token token : tokens_) back += model_->Piece(token);
  EXPECT_EQ(model_->Tokenise(back), tokens_);
  EXPECT_FALSE(model_->add_bos());
}

TEST_F(SessionTest, TextIsNeverReadAsControlTokens) {
  const std::vector<Token> plain = model_->Tokenise("<|im_start|>");
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(model_->TokeniseTemplate("<|im_start|>").size(), 1u);
}

TEST_F(SessionTest, BytesThatAreNoUtf8PassThrough) {
  const std::string bytes("caf\xE9 \xFF\xFE\0 end", 12);
  EXPECT_FALSE(model_->Tokenise(bytes).empty());
}

TEST_F(SessionTest, PiecesAreWholeCharacters) {
  const std::string text = "naïve 漢字 🙂 end";
  const std::vector<Token> tokens = model_->Tokenise(text);
  const std::vector<std::string> pieces = model_->Pieces(tokens);
  ASSERT_EQ(pieces.size(), tokens.size());
  std::string joined;
  for (const std::string& piece : pieces) joined += piece;
  EXPECT_EQ(joined, text);
  // Cut inside the last character: the rest is marked, nothing is lost before it.
  const std::vector<Token> smile = model_->Tokenise("🙂");
  ASSERT_GT(smile.size(), 1u);
  EXPECT_EQ(model_->Pieces({smile[0]}), std::vector<std::string>{"\xEF\xBF\xBD"});
}

TEST_F(SessionTest, ModelFileAgreesWithTheLoadedModel) {
  const Result<ModelFile> file = ReadModelFile(CONDENSE_TEST_MODEL);
  ASSERT_TRUE(file.ok()) << file.error();
  EXPECT_EQ(file->n_layers, model_->n_layers());
  EXPECT_EQ(file->n_query_heads, model_->n_query_heads());
  EXPECT_EQ(file->n_kv_heads[0], model_->n_kv_heads());
  EXPECT_EQ(file->n_positions, model_->n_positions());
  EXPECT_EQ(file->KvBytesPerToken("f16", "f16").value(), 23040u);
}

TEST_F(SessionTest, RewindGivesTheSameBits) {
  const std::unique_ptr<Session> session = Open(700);
  EXPECT_EQ(session->n_context(), 768);
  int n_reports = 0;
  const Result<Logits> first = session->Prefill(Prompt(600), [&](int done, int total) {
    ++n_reports;
    EXPECT_LE(done, total);
  });
  ASSERT_TRUE(first.ok()) << first.error();
  EXPECT_EQ(n_reports, 2);
  const Token first_token = GreedyToken(first.value());
  std::vector<std::vector<float>> runs[3];
  std::vector<Token> tokens[3];
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE(session->Rewind().ok());
    EXPECT_EQ(session->position(), 600);
    if (run == 1) {
      // A longer run between must leave nothing behind.
      ASSERT_TRUE(TimedSteps(*session, Prompt(40), 1, 30).ok());
      ASSERT_TRUE(session->Rewind().ok());
    }
    Result<std::vector<Token>> decided = GreedyRun(
        *session, first_token, 8,
        [&](int, Logits logits) { runs[run].emplace_back(logits.begin(), logits.end()); });
    ASSERT_TRUE(decided.ok()) << decided.error();
    tokens[run] = decided.value();
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
  EXPECT_EQ(tokens[0], tokens[1]);
  // Another session, prefilled anew, agrees as well: a rewind equals a fresh prefill.
  const std::unique_ptr<Session> fresh = Open(700);
  ASSERT_TRUE(fresh->Prefill(Prompt(600), {}).ok());
  const Result<std::vector<Token>> again = GreedyRun(*fresh, first_token, 8, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), tokens[0]);
}

TEST_F(SessionTest, TeacherForcedOnItsOwnTokensRepeatsTheGreedyRun) {
  const std::unique_ptr<Session> session = Open(300);
  const Result<Logits> first = session->Prefill(Prompt(200), {});
  ASSERT_TRUE(first.ok());
  const Token first_token = GreedyToken(first.value());
  std::vector<std::vector<float>> greedy, forced;
  const Result<std::vector<Token>> tokens = GreedyRun(
      *session, first_token, 6, [&](int, Logits l) { greedy.emplace_back(l.begin(), l.end()); });
  ASSERT_TRUE(tokens.ok());
  ASSERT_TRUE(session->Rewind().ok());
  const std::vector<Token> history = FedTokens(first_token, tokens.value());
  int last = 0;
  ASSERT_TRUE(TeacherForcedRun(*session, history, [&](int decision, Logits l) {
                last = decision;
                forced.emplace_back(l.begin(), l.end());
              }).ok());
  EXPECT_EQ(last, 6);
  EXPECT_EQ(greedy, forced);
}

TEST_F(SessionTest, FullContextIsAnError) {
  const std::unique_ptr<Session> session = Open(256);
  ASSERT_TRUE(session->Prefill(Prompt(256), {}).ok());
  const Result<Logits> more = session->Step(1);
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.error().find("256"), std::string::npos);
}

TEST_F(SessionTest, StopEndsThePrefill) {
  const std::unique_ptr<Session> session = Open(2048);
  const Result<Logits> logits = session->Prefill(Prompt(2048), [](int, int) { RequestStop(); });
  EXPECT_FALSE(logits.ok());
  EXPECT_NE(logits.error().find("stopped"), std::string::npos);
  ClearStop();
  // The session is as usable as before.
  EXPECT_TRUE(session->Prefill(Prompt(100), {}).ok());
}

TEST_F(SessionTest, QuantisedCacheAndUnknownType) {
  SessionOptions options;
  options.n_context = 256;
  options.n_threads = 2;
  options.k_type = options.v_type = "q8_0";
  const Result<std::unique_ptr<Session>> session = Session::Open(*model_, options);
  ASSERT_TRUE(session.ok()) << session.error();
  EXPECT_TRUE(session.value()->Prefill(Prompt(64), {}).ok());
  options.k_type = "q4_0";
  EXPECT_FALSE(Session::Open(*model_, options).ok());
}

TEST_F(SessionTest, ChatTemplate) {
  const Result<std::string> text = model_->ApplyChatTemplate("Hello?");
  ASSERT_TRUE(text.ok()) << text.error();
  EXPECT_NE(text->find("Hello?"), std::string::npos);
  EXPECT_NE(text->find("assistant"), std::string::npos);
}

}  // namespace
}  // namespace condense
