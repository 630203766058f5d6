// A session that is left to the host decodes as llama.cpp without the plug-in does, to the bit, and
// no node of it reaches the plug-in, which is loaded and goes on to compute another session's.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "base/top_two.h"
#include "decode/model.h"
#include "decode/plugin.h"
#include "decode/run.h"
#include "decode/session.h"

namespace condense {
namespace {

constexpr int kPrompt = 300, kDecisions = 4;
using Decided = std::vector<std::vector<float>>;

SessionOptions OptionsOf(const condense_api* api) {
  SessionOptions options;
  options.n_context = kPrompt + kDecisions;
  options.n_threads = 2;
  options.api = api;
  return options;
}

std::unique_ptr<Session> Open(const Model& model, const SessionOptions& options) {
  Result<std::unique_ptr<Session>> session = Session::Open(model, options);
  CONDENSE_CHECK(session.ok());
  return std::move(session.value());
}

Decided Step(Session& session, std::span<const Token> tokens) {
  Decided logits;
  const Status ran = TeacherForcedRun(
      session, tokens, [&](int, Logits after) { logits.emplace_back(after.begin(), after.end()); });
  EXPECT_TRUE(ran.ok());
  return logits;
}

TEST(LeftToHost, DecodesAsWithoutThePlugin) {
  const Result<std::unique_ptr<Model>> loaded = Model::Load(CONDENSE_TEST_MODEL);
  ASSERT_TRUE(loaded.ok()) << loaded.error();
  const Model& model = *loaded.value();
  std::ifstream in("/usr/share/common-licenses/GPL-3", std::ios::binary);
  const std::vector<Token> text =
      model.Tokenise(std::string(std::istreambuf_iterator<char>(in), {}));
  ASSERT_GT(text.size(), static_cast<size_t>(kPrompt + kDecisions));
  const std::vector<Token> prompt(text.begin(), text.begin() + kPrompt);
  const std::span<const Token> next = std::span(text).subspan(kPrompt, kDecisions);

  const std::unique_ptr<Session> bare = Open(model, OptionsOf(nullptr));  // nothing is loaded yet
  ASSERT_TRUE(bare->Prefill(prompt, {}).ok());
  const Decided without = Step(*bare, next);

  const Result<Plugin> plugin = Plugin::Load(CONDENSE_TEST_PLUGIN);
  ASSERT_TRUE(plugin.ok()) << plugin.error();
  const std::unique_ptr<Session> ours = Open(model, OptionsOf(plugin->api()));
  ASSERT_TRUE(plugin->SetPolicy("dense").ok());
  ASSERT_TRUE(ours->Prefill(prompt, {}).ok());
  const uint64_t n_ours = plugin->Counters().process.nodes;
  ASSERT_GT(n_ours, 0u);

  SessionOptions options = OptionsOf(plugin->api());
  options.left_to_host = true;
  const std::unique_ptr<Session> flash = Open(model, options);
  options.flash_attention = false;
  const std::unique_ptr<Session> no_flash = Open(model, options);
  for (Session* session : {flash.get(), no_flash.get()})
    ASSERT_TRUE(session->Prefill(prompt, {}).ok());
  const Decided with = Step(*flash, next), unfused = Step(*no_flash, next);
  EXPECT_EQ(plugin->Counters().process.nodes, n_ours);
  EXPECT_EQ(plugin->Counters().process.declined, 0u);
  EXPECT_EQ(with, without);
  EXPECT_NE(unfused, with) << "another order of sums";
  for (int i = 0; i < kDecisions; ++i) {
    const TopTwo top = FindTopTwo(with[i]);
    if (top.margin > 1)
      EXPECT_EQ(GreedyToken(unfused[i]), top.token) << "the same model and tokens";
  }

  // In turns: the plug-in's session is the plug-in's still.
  const Decided by_plugin = Step(*ours, next);
  EXPECT_GT(plugin->Counters().process.nodes, n_ours);
  EXPECT_NE(by_plugin, with);
  ASSERT_TRUE(flash->Rewind().ok());
  EXPECT_EQ(Step(*flash, next), without);
}

}  // namespace
}  // namespace condense
