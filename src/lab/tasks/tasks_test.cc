// Items as they are made: lengths met exactly, facts where they were asked for, the same from the
// same seed; RULER's tasks by what they must hold; answers judged; tables counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/tasks/draw.h"
#include "lab/tasks/facts.h"
#include "lab/tasks/item_table.h"
#include "lab/tasks/needle.h"
#include "lab/tasks/ruler.h"
#include "lab/tasks/score.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A token a word, the blank before it included, or a stop, or a line's end.
class WordVocabulary {
 public:
  TaskTokeniser Tokeniser() {
    TaskTokeniser tokeniser;
    tokeniser.tokens = [this](std::string_view text) { return Tokens(text); };
    tokeniser.piece = [this](Token token) { return pieces_.at(token); };
    tokeniser.head = Tokens("<user>");
    tokeniser.tail = Tokens("</user>");
    return tokeniser;
  }
  std::vector<Token> Tokens(std::string_view text) {
    std::vector<Token> tokens;
    while (!text.empty()) {
      size_t end = 1;
      if (text[0] != '\n' && text[0] != '.') end = text.find_first_of(" .\n", 1);
      const std::string piece(text.substr(0, end));
      tokens.push_back(ids_.emplace(piece, static_cast<Token>(ids_.size())).first->second);
      if (static_cast<size_t>(tokens.back()) == pieces_.size()) pieces_.push_back(piece);
      text.remove_prefix(piece.size());
    }
    return tokens;
  }
  std::string Text(std::span<const Token> tokens) const {
    std::string text;
    for (const Token token : tokens) text += pieces_.at(token);
    return text;
  }

 private:
  std::map<std::string, Token> ids_;
  std::vector<std::string> pieces_;
};

std::string Story(int n_sentences) {
  std::string text;
  for (int i = 0; i < n_sentences; ++i)
    text += " Mr. Long met J. Short on day " + std::to_string(i) + " and they said nothing.";
  return text;
}

TEST(Draws, AreTheSameEverywhere) {
  Draw draw({1, 2});
  // Of std::mt19937_64 and std::seed_seq, whose numbers the standard fixes.
  const uint64_t first = draw.Bits();
  EXPECT_EQ(first, Draw({1, 2}).Bits());
  EXPECT_NE(first, Draw({2, 1}).Bits());
  EXPECT_EQ(StreamOf("a"), 0xaf63dc4c8601ec8cu) << "FNV-1a's published value";
  std::vector<int> several = draw.Several(5, 5);
  std::sort(several.begin(), several.end());
  EXPECT_THAT(several, ElementsAre(0, 1, 2, 3, 4));
}

TEST(Facts, DistractorsShareNoWordOfTheValue) {
  std::set<std::string> values;
  for (int index = 0; index < 30; ++index) {
    const FactSet set = MakeFacts(7, index, kMostDistractors);
    EXPECT_TRUE(values.insert(set.fact.value).second) << set.fact.value;
    const size_t blank = set.fact.value.find(' ');
    ASSERT_NE(blank, std::string::npos);
    for (const Fact& other : set.distractors) {
      EXPECT_NE(other.stem, set.fact.stem);
      EXPECT_THAT(other.value, Not(HasSubstr(set.fact.value.substr(0, blank))));
      EXPECT_THAT(other.value, Not(HasSubstr(set.fact.value.substr(blank + 1))));
    }
    EXPECT_THAT(set.fact.question, Not(HasSubstr(set.fact.value)));
  }
  EXPECT_EQ(MakeFacts(7, 3, 2).fact.Sentence(), MakeFacts(7, 3, 2).fact.Sentence());
  EXPECT_NE(MakeFacts(7, 0, 2).fact.Sentence(), MakeFacts(8, 0, 2).fact.Sentence());
}

TEST(Needle, SentencesEndWhereTheyDo) {
  WordVocabulary words;
  const TaskTokeniser tokeniser = words.Tokeniser();
  const std::vector<Token> text = words.Tokens("Mr. B. Ox ran.\" He fell. Why? So it. is");
  std::vector<std::string> sentences;
  const std::vector<int> ends = SentenceEnds(tokeniser, text);
  for (size_t i = 1; i < ends.size(); ++i)
    sentences.push_back(words.Text(std::span(text).subspan(ends[i - 1], ends[i] - ends[i - 1])));
  EXPECT_THAT(sentences, ElementsAre("Mr. B. Ox ran.\"", " He fell.", " Why?", " So it.", " is"));
}

TEST(Needle, PromptHasExactlyTheTokensAskedFor) {
  WordVocabulary words;
  const TaskTokeniser tokeniser = words.Tokeniser();
  const std::vector<Token> filler = words.Tokens(Story(200));
  for (const int n_context : {300, 301, 1999}) {
    for (const double depth : {0.0, 0.1, 0.5, 0.9, 1.0}) {
      for (int fact = 0; fact < 3; ++fact) {
        const NeedleSpec spec{.seed = 1,
                              .n_context = n_context,
                              .depth = depth,
                              .fact = fact,
                              .n_distractors = 2,
                              .n_generate = 8};
        const Result<TaskItem> item = MakeNeedle(tokeniser, filler, spec);
        ASSERT_TRUE(item.ok()) << item.error();
        ASSERT_EQ(item->prompt.size(), static_cast<size_t>(n_context));
        const FactSet set = MakeFacts(1, fact, 2);
        const std::string text = words.Text(item->prompt);
        const size_t at = text.find(" " + set.fact.Sentence());
        ASSERT_NE(at, std::string::npos) << text;
        for (const Fact& other : set.distractors) EXPECT_THAT(text, HasSubstr(other.Sentence()));
        EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(text.size()), depth, 0.25);
        EXPECT_TRUE(at == 6 || text[at - 1] == '.' || depth == 1.0) << text.substr(at - 20, 60);
        EXPECT_EQ(text.substr(0, 6), "<user>");
        EXPECT_EQ(text.substr(text.size() - set.fact.stem.size()), set.fact.stem);
        EXPECT_EQ(words.Text(std::span(item->prompt).subspan(item->n_before_question)),
                  "\n\nQuestion: " + set.fact.question + "</user>" + set.fact.stem);
        EXPECT_EQ(words.Text(item->answer), " " + set.fact.value);
        EXPECT_THAT(item->expected, ElementsAre(set.fact.value));
        EXPECT_EQ(item->n_generate, 8);
        EXPECT_EQ(MakeNeedle(tokeniser, filler, spec)->prompt, item->prompt);
      }
    }
  }
}

TEST(Needle, SaysWhatIsTooShort) {
  WordVocabulary words;
  const TaskTokeniser tokeniser = words.Tokeniser();
  const std::vector<Token> filler = words.Tokens(Story(20));
  EXPECT_THAT(MakeNeedle(tokeniser, filler, {.n_context = 20}).error(),
              HasSubstr("a context of 20 tokens has no room for text"));
  EXPECT_THAT(MakeNeedle(tokeniser, filler, {.n_context = 5000}).error(),
              HasSubstr("of text, which has " + std::to_string(filler.size())));
  std::string endless;
  for (int i = 0; i < 400; ++i) endless += " on";
  EXPECT_THAT(
      MakeNeedle(tokeniser, words.Tokens(endless), {.n_context = 400, .depth = 0.5}).error(),
      HasSubstr("no sentence ends near depth 0.5"));
}

class Ruler : public ::testing::Test {
 protected:
  TaskItem Make(const std::string& task, int n_context, int sample = 0) {
    const Result<TaskItem> item =
        MakeRuler(tokeniser_, {.task = task, .seed = 3, .n_context = n_context, .sample = sample});
    EXPECT_TRUE(item.ok()) << item.error();
    return item.value();
  }
  std::string Text(const TaskItem& item) const { return words_.Text(item.prompt); }
  static int Count(const std::string& text, const std::string& what) {
    int n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  }
  WordVocabulary words_;
  const TaskTokeniser tokeniser_ = words_.Tokeniser();
};

TEST_F(Ruler, FillsTheContextAndNoMore) {
  for (const std::string& task : RulerTasks()) {
    for (const int n_context : {1500, 4096}) {
      const TaskItem item = Make(task, n_context);
      const int n = static_cast<int>(item.prompt.size()) + item.n_generate;
      EXPECT_LE(n, n_context) << task;
      EXPECT_GT(n, n_context - 120) << task;
      EXPECT_EQ(Make(task, n_context).prompt, item.prompt);
      EXPECT_NE(Make(task, n_context, 1).prompt, item.prompt);
    }
    EXPECT_THAT(MakeRuler(tokeniser_, {.task = task, .n_context = 140}).error(),
                HasSubstr("does not fit a context of 140 tokens"));
  }
}

TEST_F(Ruler, NeedlesAreWhereTheyShouldBe) {
  const std::string single = Text(Make("niah_single_1", 2000));
  EXPECT_EQ(Count(single, "One of the special magic numbers for"), 1);
  EXPECT_GT(Count(single, "The grass is green."), 50);
  const TaskItem keys = Make("niah_multikey_2", 2000);
  EXPECT_EQ(keys.expected.size(), 1u);
  EXPECT_EQ(keys.expected[0].size(), 7u);
  EXPECT_EQ(Count(Text(keys), keys.expected[0]), 1);
  EXPECT_GT(Count(Text(keys), "One of the special magic numbers for"), 50);
  EXPECT_EQ(Count(Text(keys), "The grass"), 0);
  const TaskItem uuids = Make("niah_multikey_3", 2000);
  EXPECT_THAT(uuids.expected[0],
              ::testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-"
                                      "[0-9a-f]{12}"));
  EXPECT_EQ(Count(Text(uuids), uuids.expected[0] + "."), 1);
}

TEST_F(Ruler, AChainIsFoldedIntoNoise) {
  const TaskItem item = Make("vt", 2000);
  const std::string text = Text(item);
  ASSERT_EQ(item.expected.size(), 5u);
  size_t before = text.rfind("Memorize and track");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(item.expected[i].size(), 5u);
    const std::string line = i == 0 ? "VAR " + item.expected[0] + " = "
                                    : "VAR " + item.expected[i] + " = VAR " + item.expected[i - 1];
    const size_t at = text.find(line, before);
    ASSERT_NE(at, std::string::npos) << line;
    before = at;
  }
  EXPECT_EQ(Count(text, "Memorize and track"), 2) << "a solved example stands before the question";
  EXPECT_EQ(Count(text, "they are:"), 2);
}

TEST_F(Ruler, FrequentWordsAreThoseThatAreFrequent) {
  const TaskItem item = Make("fwe", 4096);
  const std::string text = Text(item);
  std::map<std::string, int> counts;
  const size_t begin = text.find("coded words. ") + 13;
  std::string words = text.substr(begin, text.find("\nQuestion:") - begin);
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    ++counts[words.substr(at, end - at)];
    at = end + 1;
  }
  std::vector<std::pair<int, std::string>> ranked;
  for (const auto& [word, n] : counts) ranked.emplace_back(n, word);
  std::sort(ranked.rbegin(), ranked.rend());
  EXPECT_EQ(ranked[0].second, "...");
  std::vector<std::string> top;
  for (int i = 1; i <= 3; ++i) top.push_back(ranked[i].second);
  EXPECT_EQ(top, item.expected);
  // The zeta distribution of exponent 2: the second is a quarter of the first, the third a ninth.
  EXPECT_NEAR(ranked[1].first, ranked[0].first / 4.0, 1);
  EXPECT_NEAR(ranked[2].first, ranked[0].first / 9.0, 1);
}

TEST(Score, CountsWhatIsFoundInEitherCase) {
  const std::vector<std::string> wanted = {"ABC", "def"};
  EXPECT_EQ(StringMatchAll("xx abc, DEF", wanted), 1);
  EXPECT_EQ(StringMatchAll("abc", wanted), 0.5);
  EXPECT_EQ(StringMatchAll("", wanted), 0);
}

FinishedCell Answered(const std::string& policy, int context, bool first, bool full) {
  FinishedCell cell;
  cell.parameters = {{"model", "m"}, {"context", context}, {"policy", policy}};
  cell.lines = {Json{{"record", "item"},
                     {"policy", policy},
                     {"first_token_match", first},
                     {"full_match", full},
                     {"score", full ? 1.0 : 0.0},
                     {"kv_read_share", 0.5}}};
  return cell;
}

TEST(ItemTable, ColumnsAtTheirFloorAreMarkedAndNotSummed) {
  std::vector<FinishedCell> cells;
  for (int i = 0; i < 10; ++i) {
    cells.push_back(Answered("dense", 100, true, i < 8));
    cells.push_back(Answered("mean", 100, i < 5, i < 4));
    cells.push_back(Answered("dense", 200, true, i < 1));
    cells.push_back(Answered("mean", 200, true, i < 9));
  }
  FinishedCell unmet = Answered("least", 100, true, true);
  unmet.lines.clear();
  cells.push_back(unmet);
  const std::vector<ItemGrid> grids = ItemGrids(
      cells, [](const Json& p) { return p["model"].get<std::string>(); },
      [](const Json& p) { return std::to_string(p["context"].get<int>()); });
  ASSERT_EQ(grids.size(), 1u);
  const ItemGrid& grid = grids[0];
  EXPECT_THAT(grid.policies, ElementsAre("dense", "mean", "least"));
  EXPECT_EQ(grid.Together("least", false).n, 0);
  EXPECT_THAT(grid.columns, ElementsAre("100", "200"));
  EXPECT_EQ(FloorMarked(grid, "100", false), "100");
  EXPECT_EQ(FloorMarked(grid, "200", false), "200 *");
  EXPECT_THAT(FloorNote(grid, false), HasSubstr("fewer than 20 %"));
  EXPECT_EQ(grid.Together("mean", false).n_full, 4);
  EXPECT_EQ(grid.Together("mean", false).n, 10);
  EXPECT_EQ(grid.At("mean", "200").n_full, 9);
  EXPECT_EQ(CountText(4, 10), "4/10");
  EXPECT_EQ(WilsonText(4, 10), "40 (17 to 69)") << "Wilson 1927";
  EXPECT_EQ(CountText(0, 0), "–");
}

}  // namespace
}  // namespace condense
