// How texts are cut into prefixes.
#include "app/prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace condense {
namespace {

using ::testing::HasSubstr;

std::vector<Token> Text(int n, int first = 0) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(Prefixes, PiecesDoNotOverlapAndSpread) {
  const std::vector<std::vector<Token>> texts = {Text(1005), Text(520, 5000)};
  PrefixCut cut{.n_prefixes = 3, .prompt_tokens = 90, .n_generate = 10, .bos = 77};
  for (bool add_bos : {false, true}) {
    cut.add_bos = add_bos;
    const auto prefixes = CutPrefixes(texts, cut);  // 15 pieces: 0, 5, 10
    ASSERT_TRUE(prefixes.ok()) << prefixes.error();
    ASSERT_EQ(prefixes->size(), 3u);
    const std::pair<size_t, int64_t> expected[] = {{0, 0}, {0, 500}, {1, 0}};
    for (size_t i = 0; i < 3; ++i) {
      const Prefix& prefix = prefixes.value()[i];
      EXPECT_EQ(std::make_pair(prefix.text, prefix.offset), expected[i]);
      ASSERT_EQ(prefix.prompt.size(), 90u + add_bos);
      EXPECT_EQ(prefix.prompt.front(), add_bos ? 77 : texts[prefix.text][prefix.offset]);
      EXPECT_EQ(prefix.continuation.size(), 10u);
      EXPECT_EQ(prefix.continuation.front(), prefix.prompt.back() + 1);
    }
  }
}

TEST(Prefixes, TheLongestThatTextsAndModelAllow) {
  const std::vector<std::vector<Token>> texts = {Text(10000)};
  PrefixCut cut{.n_prefixes = 4, .n_generate = 100};
  EXPECT_EQ(CutPrefixes(texts, cut)->front().prompt.size(), 2400u);
  cut.n_positions = 2048;
  EXPECT_EQ(CutPrefixes(texts, cut)->front().prompt.size(), 1948u);
  cut.add_bos = true;
  EXPECT_EQ(CutPrefixes(texts, cut)->front().prompt.size(), 1948u) << "BOS included";
  cut.n_context = 1500;
  EXPECT_EQ(CutPrefixes(texts, cut)->front().prompt.size(), 1400u);
}

TEST(Prefixes, Refusals) {
  const std::vector<std::vector<Token>> texts = {Text(3000)};
  PrefixCut cut{.n_prefixes = 4, .n_generate = 100};
  EXPECT_THAT(CutPrefixes(texts, cut).error(),
              HasSubstr("3,000 tokens do not give 4 prefixes of 1,024 tokens"));
  cut.prompt_tokens = 700;
  EXPECT_THAT(CutPrefixes(texts, cut).error(), HasSubstr("4 prefixes of 700 tokens"));
  cut.prompt_tokens = 650;
  EXPECT_TRUE(CutPrefixes(texts, cut).ok());
  cut.n_positions = 700;
  EXPECT_THAT(CutPrefixes(texts, cut).error(), HasSubstr("the model takes 700"));
}

}  // namespace
}  // namespace condense
