// Tables that experiments make of finished cells, made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lab/spec_reader.h"
#include "lab/test_cells.h"
#include "lab/test_specs.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNames[] = {"equal-bytes", "causes", "mass", "matched-speed",
                                  "first-version"};

TEST(Experiments, DefaultSpecsAreRight) {
  for (const char* name : kNames) EXPECT_EQ(SpecError(name, ""), "") << name;
}

TEST(Experiments, WrongKeysAreRefusedByLine) {
  for (const char* name : kNames) {
    EXPECT_THAT(SpecError(name, "ofsets = [1]\n"), HasSubstr("line 2")) << name;
    EXPECT_THAT(SpecError(name, "contexts = [0]\n"), HasSubstr("line 2")) << name;
  }
  EXPECT_THAT(SpecError("equal-bytes", "budgets = [0]\n"), HasSubstr("budgets"));
  EXPECT_THAT(SpecError("matched-speed", "beside = [\"llama.cpp fa no\"]\n"),
              HasSubstr("did you mean 'llama.cpp fa on'?"));
  EXPECT_THAT(SpecError("causes", "policy = \"mean:blocks=2\"\n"), HasSubstr("`supports` sets it"));
  EXPECT_THAT(SpecError("causes", "policy = \"oracle\"\n"), HasSubstr("name another"));
  EXPECT_THAT(SpecError("mass", "block_rows = [16, 24]\n"), HasSubstr("no whole blocks"));
  EXPECT_THAT(SpecError("mass", "policies = [\"mean:budget=5%\"]\n"), HasSubstr("distant_rows"));
  EXPECT_THAT(SpecError("first-version", "tokens = 9\nweight_decisions = 9\n"),
              HasSubstr("9 decisions are more than"));
}

TEST(Experiments, NothingFinishedMakesNoTable) {
  for (const char* name : kNames) EXPECT_TRUE(Info(name).tables({}).empty()) << name;
}

TEST(EqualBytesTable, MarksTheBestAndUpperLinesThatAreBeaten) {
  std::vector<FinishedCell> cells;
  const auto add = [&](MadeRow row) {
    for (int64_t offset : {0, 500}) {
      row.offset = offset;
      cells.push_back(MakeFinished("equal-bytes", row));
    }
  };
  const Json at = {{"budget", 0.05}};
  add({.policy = "dense"});
  add({.policy = "control", .kl_text = 0.001});
  add({.policy = "topk:budget=5%", .kl_text = 0.002, .read = 0.6, .rows = 105, .own = at});
  add({.policy = "oracle:budget=5%", .kl_text = 0.010, .read = 0.6, .rows = 105, .own = at});
  add({.policy = "ours:budget=5%", .kl_text = 0.005, .read = 0.05, .rows = 90, .own = at});
  add({.policy = "mean:budget=5%", .kl_text = 0.060, .read = 0.05, .rows = 100, .own = at});
  add({.policy = "greedy:budget=5%", .kl_text = 0.001, .read = 0.09, .rows = 90, .own = at});
  FinishedCell unmet = MakeFinished("equal-bytes", {.policy = "big at 5%", .own = at});
  unmet.lines.clear();
  unmet.end["least_budget"] = 0.08;
  cells.push_back(unmet);

  const std::vector<LabTable> tables = Info("equal-bytes").tables(cells);
  ASSERT_EQ(tables.size(), 2u);
  const LabTable& table = tables[0];
  EXPECT_THAT(table.title, HasSubstr("5.0 % of dense's bytes"));
  EXPECT_EQ(table.rows[0][0], "dense");
  EXPECT_EQ(table.rows[1][0], "control");
  EXPECT_TRUE(FindRow(table, {"ours:budget=5%", "best"}));
  EXPECT_TRUE(FindRow(table, {"mean:budget=5%", ""}));
  EXPECT_TRUE(FindRow(table, {"greedy:budget=5%", "reads more"})) << "no row at equal bytes";
  EXPECT_TRUE(FindRow(table, {"topk:budget=5%", "upper line, beaten by greedy"}));
  EXPECT_TRUE(FindRow(table, {"oracle:budget=5%", "upper line, beaten by greedy"}));
  EXPECT_TRUE(FindRow(table, {"big at 5%", "unmet; least 8.0 %"}));
  const std::vector<std::string>* best = FindRow(tables[1], {"5.0 %", "ours:budget=5%"});
  ASSERT_TRUE(best);
  EXPECT_EQ((*best)[4], "mean:budget=5%");
  EXPECT_EQ((*best)[5], "+0.055 (+0.055 to +0.055)");
  EXPECT_EQ((*best)[6], "topk:budget=5%");
}

TEST(CausesTable, NamesTheLargestDifferenceWhoseIntervalIsAboveZero) {
  std::vector<FinishedCell> cells;
  // Drift is larger on average, but not on every prefix; retrieval is 0.3 on each.
  const double drift[] = {-2.0, 3.5, 0.2};
  for (int i = 0; i < 3; ++i) {
    const auto add = [&](const std::string& policy, const std::string& part, double kl) {
      MadeRow row{
          .policy = policy, .offset = 100 * i, .kl_text = kl, .match = 1 - std::max(0.0, kl) / 100};
      if (!part.empty()) row.own = {{"support", 97}, {"part", part}, {"of", "mean"}};
      cells.push_back(MakeFinished("causes", row));
    };
    add("dense", "", 0);
    add("control", "", 0.001);
    add("mean:tokens=97", "policy", 0.4);
    add("oracle:tokens=97", "oracle", 0.1);
    add("oracle:by=value,tokens=97", "oracle by value", 0.09);
    add("mean:tail=on,tokens=97", "policy with tail", 0.35);
    add("mean:tokens=97 with dense rows", "policy, rows dense", 0.4 - drift[i]);
    add("oracle:tokens=97 with dense rows", "oracle, rows dense", 0.1);
  }
  const std::vector<LabTable> tables = Info("causes").tables(cells);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables[0].rows.size(), 8u);
  EXPECT_EQ(tables[0].rows[0][1], "dense");
  const LabTable& costs = tables[1];
  ASSERT_EQ(costs.rows.size(), 6u);
  EXPECT_EQ(costs.rows[0][3], "+0.3 (+0.3 to +0.3)");
  EXPECT_EQ(costs.rows[0][4], "75 %") << "of 0.4 less the control's 0.001";
  EXPECT_THAT(costs.rows[0][5], HasSubstr("+0.3")) << "points: 100 (0.004 - 0.001)";
  EXPECT_THAT(costs.notes, HasSubstr("S = 97: largest is retrieval"));
  EXPECT_THAT(costs.notes, HasSubstr("the text's own tokens"));
}

TEST(CausesTable, OnePrefixNamesNoCause) {
  std::vector<FinishedCell> cells;
  cells.push_back(MakeFinished("causes", {.policy = "control"}));
  for (const char* part : {"policy", "oracle"}) {
    cells.push_back(
        MakeFinished("causes", {.policy = std::string(part) + ":tokens=97",
                                .kl_text = std::string(part) == "policy" ? 0.4 : 0.1,
                                .own = {{"support", 97}, {"part", part}, {"of", "mean"}}}));
  }
  const std::vector<LabTable> tables = Info("causes").tables(cells);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_THAT(tables[1].notes, HasSubstr("one prefix"));
}

TEST(MassTable, PutsPublishedFiguresBesideTheirLayer) {
  FinishedCell cell;
  cell.experiment = "mass";
  for (int64_t block_rows : {16, 32}) {
    cell.parameters = {{"model", "m"},
                       {"context", 2041},
                       {"text", "t"},
                       {"offset", 0},
                       {"policy", block_rows == 16 ? "mean:blocks=2" : "block means"},
                       {"distant_rows", 32},
                       {"block_rows", block_rows}};
    cell.lines = {Json{{"record", "layer_mass"},
                       {"layer", 12},
                       {"n_heads", 9},
                       {"base", 0.8},
                       {"oracle", 0.9},
                       {"policy", 0.85},
                       {"oracle_recall", 0.5},
                       {"policy_recall", 0.25}}};
    const std::vector<LabTable> tables = Info("mass").tables({&cell, 1});
    ASSERT_EQ(tables.size(), 1u);
    EXPECT_TRUE(FindRow(tables[0], {"all", "-", "dense, control"}));
    const std::string size = std::to_string(block_rows);
    const std::vector<std::string>* ours = FindRow(tables[0], {"12", size});
    ASSERT_TRUE(ours);
    EXPECT_EQ(ours->back(), "25");
    const std::vector<std::string>* published =
        FindRow(tables[0], {block_rows == 16 ? "12" : "12 to 22", size, "published, mean keys"});
    ASSERT_TRUE(published);
    EXPECT_EQ(published->back(), block_rows == 16 ? "53.75 %" : "31.0 to 41.6 %");
    EXPECT_THAT(tables[0].notes, HasSubstr("another model"));
  }
}

TEST(MatchedSpeedTable, TheFastestThatKeepsEnough) {
  std::vector<FinishedCell> cells;
  cells.push_back(MakeFinished("matched-speed", {.policy = "dense"}));
  cells.push_back(MakeFinished("matched-speed", {.policy = "control", .match = 0.98}));
  cells.push_back(
      MakeFinished("matched-speed", {.policy = "fast", .match = 0.98, .speed_ratio = 2}));
  cells.push_back(
      MakeFinished("matched-speed", {.policy = "slow", .match = 1, .speed_ratio = 1.1}));
  cells.push_back(
      MakeFinished("matched-speed", {.policy = "good", .match = 0.99, .speed_ratio = 1.5}));
  const std::vector<LabTable> tables = Info("matched-speed").tables(cells);
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].rows[2][0], "fast") << "fastest first";
  EXPECT_THAT(tables[0].notes,
              HasSubstr("on dense's continuation: good, 1.50 times dense, keeps 99.0 % (94.6 to"));
  EXPECT_THAT(tables[0].notes, HasSubstr("the control keeps 98.0 %"));
  cells.resize(3);
  EXPECT_THAT(Info("matched-speed").tables(cells)[0].notes, HasSubstr("none of these settings"));
}

TEST(MatchedSpeedTable, LlamaCppAndExactDecodingBeside) {
  std::vector<FinishedCell> cells;
  for (int64_t offset : {0, 500}) {
    cells.push_back(MakeFinished("matched-speed", {.policy = "dense", .offset = offset}));
    cells.push_back(MakeFinished(
        "matched-speed", {.policy = "good", .offset = offset, .match = 0.99, .speed_ratio = 1.5}));
    cells.push_back(MakeTimed("llama.cpp fa on", 0.75, -1, offset));
    cells.push_back(MakeTimed("llama.cpp fa off", 0.5, -1, offset));
    cells.push_back(MakeTimed("exact lookup", 1.2, 100, offset));
  }
  FinishedCell elsewhere = MakeTimed("llama.cpp fa on", 9, -1);
  elsewhere.parameters["context"] = 4096;
  cells.push_back(elsewhere);
  const std::vector<LabTable> tables = Info("matched-speed").tables(cells);
  ASSERT_EQ(tables.size(), 1u);
  const LabTable& table = tables[0];
  ASSERT_EQ(table.rows.size(), 5u);
  EXPECT_EQ(table.rows[1],
            (std::vector<std::string>{"llama.cpp fa on", "-", "-", "-", "-", "-", "-", "30.0",
                                      "40.0", "0.75 (0.75 to 0.75)", "1.00 (1.00 to 1.00)"}));
  EXPECT_EQ(table.rows[2][0], "llama.cpp fa off");
  EXPECT_EQ(table.rows[2][10], "0.67 (0.67 to 0.67)");
  EXPECT_EQ(table.rows[3],
            (std::vector<std::string>{"exact lookup", "100.0 %", "200", "100.0 % (98.1 to 100.0)",
                                      "yes", "-", "-", "48.0", "40.0", "1.20 (1.20 to 1.20)",
                                      "1.60 (1.60 to 1.60)"}));
  EXPECT_EQ(table.rows[4][0], "good");
  EXPECT_EQ(table.rows[4][10], "2.00 (2.00 to 2.00)");
  EXPECT_THAT(table.notes, HasSubstr("good, 1.50 times dense, 2.00 times llama.cpp's best, keeps"));
  EXPECT_THAT(table.notes, HasSubstr("1.20 times dense, 1.60 times llama.cpp's best, keeps 100.0"));
  EXPECT_THAT(table.notes, HasSubstr("ratio over that of llama.cpp fa on"));
}

// A table as text, its notes apart.
std::string Rows(const LabTable& table) {
  std::string text = table.title + "\n";
  for (const std::vector<std::string>& row : table.rows) {
    for (const std::string& field : row) text += field + "|";
    text += "\n";
  }
  return text;
}

TEST(SurvivalTable, RowsAndSummary) {
  std::vector<FinishedCell> cells;
  const auto add = [&](const MadeRow& made) { cells.push_back(MakeFinished("survival", made)); };
  for (const int context : {8192, 2048}) {
    const Json own = {{"context", context}};
    for (int64_t offset : {0, 500}) {
      const double more = offset == 0 ? 0 : 0.125;
      add({.policy = "dense", .offset = offset, .head_rows = context * 1.0, .own = own});
      add({.policy = "control",
           .offset = offset,
           .kl_greedy = 0.002,
           .kl_text = 0.001 + more / 100,
           .match = 0.98,
           .t_div = offset == 0 ? 27 : 0,
           .head_rows = context * 1.0,
           .own = own});
      add({.policy = "mean:blocks=2",
           .offset = offset,
           .kl_text = 1.5 + more,
           .match = 0.6 + more,
           .t_div = 4 + static_cast<int>(offset / 100),
           .read = 0.0625,
           .rows = 150,
           .head_rows = 97,
           .own = own});
      add({.policy = "mean:blocks=8",
           .offset = offset,
           .kl_text = 0.03125,
           .match = 0.95 + more / 5,
           .t_div = offset == 0 ? 40 : 0,
           .read = 0.125,
           .rows = 300,
           .head_rows = 193,
           .own = own});
    }
    FinishedCell unmet = MakeFinished("survival", {.policy = "big at 5%", .own = own});
    unmet.lines.clear();
    unmet.end["state"] = "unmet";
    cells.push_back(unmet);
  }
  add({.policy = "mean:blocks=2",
       .kl_text = 2,
       .match = 0.5,
       .t_div = 3,
       .read = 0.25,
       .head_rows = 97,
       .own = {{"k_type", "q8_0"}}});
  MadeRow other{.policy = "dense", .own = {{"model", "other.gguf@12345678"}}};
  add(other);
  const std::vector<LabTable> tables = Info("survival").tables(cells);
  ASSERT_EQ(tables.size(), 6u) << "two tables for each model and type of cache";
  EXPECT_EQ(Rows(tables[0]), R"(survival: m.gguf@12345678, k_type q8_0
2048|mean:blocks=2|97|25.0 %|1|0 of 1|3 (3 to 3)|3|50.0 % (50.0 to 50.0)|+200.0 % (+200.0 to +200.0)|2 (2 to 2)|
)");
  EXPECT_TRUE(
      FindRow(tables[1], {"runs that survive", "0 of 60", "0 of 1 (95 %: 0 to 79 %)", "-"}));
  EXPECT_EQ(Rows(tables[2]), R"(survival: m.gguf@12345678
2048|dense|2048|100.0 %|2|2 of 2|>100 (>100 to >100)|>100|100.0 % (100.0 to 100.0)|+0.0 % (+0.0 to +0.0)|0 (0 to 0)|
2048|control|2048|100.0 %|2|1 of 2|64 (27 to >100)|64|98.0 % (98.0 to 98.0)|+0.2 % (+0.1 to +0.2)|0.00163 (0.001 to 0.0023)|
2048|mean:blocks=2|97|6.2 %|2|0 of 2|6.5 (4 to 9)|6.5|66.2 % (60.0 to 72.5)|+156.2 % (+150.0 to +162.5)|1.56 (1.5 to 1.6)|
2048|mean:blocks=8|193|12.5 %|2|1 of 2|70.5 (40 to >100)|70.5|96.2 % (95.0 to 97.5)|+3.1 % (+3.1 to +3.1)|0.0312 (0.031 to 0.031)|
8192|dense|8192|100.0 %|2|2 of 2|>100 (>100 to >100)|>100|100.0 % (100.0 to 100.0)|+0.0 % (+0.0 to +0.0)|0 (0 to 0)|
8192|control|8192|100.0 %|2|1 of 2|64 (27 to >100)|64|98.0 % (98.0 to 98.0)|+0.2 % (+0.1 to +0.2)|0.00163 (0.001 to 0.0023)|
8192|mean:blocks=2|97|6.2 %|2|0 of 2|6.5 (4 to 9)|6.5|66.2 % (60.0 to 72.5)|+156.2 % (+150.0 to +162.5)|1.56 (1.5 to 1.6)|
8192|mean:blocks=8|193|12.5 %|2|1 of 2|70.5 (40 to >100)|70.5|96.2 % (95.0 to 97.5)|+3.1 % (+3.1 to +3.1)|0.0312 (0.031 to 0.031)|
)");
  EXPECT_EQ(
      Rows(tables[3]),
      R"(m.gguf@12345678, beside arXiv 2602.06317 v3, table 1 (Qwen2-0.5B on a GPU: another model and other hardware)
runs that survive|0 of 60|2 of 8 (95 %: 7 to 59 %)|2 of 4 (95 %: 15 to 85 %)|
T_div, medians|2 to 22|6.5 to 70.5|64 to 64|
T_div, largest|43|>100|>100|
TF match, runs|62.5 to 97.6 %|60.0 % to 97.5 %|98.0 % to 98.0 %|
ΔPPL, medians|-0.3 to +40.8 %|+3.1 % to +156.2 %|+0.2 % to +0.2 %|
ΔPPL, worst run|+9,877 % (16K, S = 97)|+162.5 %|+0.2 %|
ΔPPL median ≤ 5 %, S ≥ 193|7 of 9|2 of 2|2 of 2|
ΔPPL > 100 % at TF < 70 %|7 of 7|2 of 2|0 of 0|
)");
  EXPECT_EQ(Rows(tables[4]), R"(survival: other.gguf@12345678
2048|dense|1000|100.0 %|1|1 of 1|>100 (>100 to >100)|>100|100.0 % (100.0 to 100.0)|+0.0 % (+0.0 to +0.0)|0 (0 to 0)|
)");
  EXPECT_TRUE(FindRow(tables[5], {"T_div, largest", "43", "-", "-"})) << "dense alone";
}

TEST(HeavyHitterTable, RowsAreOfLikeNeedles) {
  std::vector<FinishedCell> cells;
  const auto ask = [&](const std::string& policy, int context, bool full, const Json& own) {
    cells.push_back(MakeNeedleCell(policy, context, 0.5, full, own));
  };
  for (const char* policy : {"dense", "control", "mean:tokens=97"}) {
    ask(policy, 1000, true, Json::object());
    ask(policy, 2000, true, Json::object());
    ask(policy, 1000, std::string(policy) != "mean:tokens=97", {{"distractors", 4}});
    ask(policy, 1000, true, {{"form", "plain"}});
  }
  for (const char* policy : {"dense", "control", "quest:tokens=97"})
    ask(policy, 8000, true, Json::object());
  for (const int positions : {32, 64}) {
    for (const char* policy : {"dense", "mean:tokens=97"}) {
      FinishedCell stream = MakeFinished(
          "heavy-hitter",
          {.policy = policy, .own = {{"context", 1023 - positions}, {"stream", 1024}}});
      for (Json& line : stream.lines) line["ppl_sparse"] = positions;
      cells.push_back(stream);
    }
  }
  const std::vector<LabTable> tables = Info("heavy-hitter").tables(cells);
  // Two streams beside each of: 2 distractors near, and far, for the policy asked there; 4
  // distractors; plain.
  ASSERT_EQ(tables.size(), 8u);
  const auto find = [&](const std::string& title, const std::string& note) {
    const auto found = std::find_if(tables.begin(), tables.end(), [&](const LabTable& table) {
      return table.title.find(title) != std::string::npos &&
             table.notes.find(note) != std::string::npos;
    });
    return found == tables.end() ? LabTable() : *found;
  };
  const LabTable near = find("2 distractors, chat form, 8 tokens", "contexts of 1000, 2000 tokens");
  ASSERT_EQ(near.rows.size(), 3u);
  EXPECT_EQ(near.rows[0][3], "2") << "dense, where the policy was asked";
  EXPECT_EQ(near.rows[2][0], "mean:tokens=97");
  EXPECT_EQ(near.rows[2][3], "2");
  const LabTable far = find("2 distractors, chat form", "contexts of 8000 tokens at depths 0.5");
  ASSERT_EQ(far.rows.size(), 3u);
  EXPECT_EQ(far.rows[0][3], "1");
  EXPECT_EQ(far.rows[2][0], "quest:tokens=97");
  EXPECT_EQ(far.rows[2][6], "–") << "no stream";
  const LabTable more = find("4 distractors", "perplexity of the last 64 of 1024 tokens");
  ASSERT_EQ(more.rows.size(), 3u);
  EXPECT_EQ(more.rows[2][1], "0 (0 to 79)");
  EXPECT_EQ(more.rows[2][6], "64.00");
  EXPECT_EQ(find("plain form", "last 32 of 1024").rows[2][6], "32.00");
}

TEST(FirstVersionTable, EqualityWeightsAndBytes) {
  std::vector<FinishedCell> cells;
  cells.push_back(MakeFinished("first-version", {.policy = "dense"}));
  cells.push_back(MakeFinished("first-version", {.policy = "control", .t_div = 27}));
  cells.push_back(MakeFinished(
      "first-version", {.policy = "layered:blocks=2", .match = 0.95, .t_div = 4, .read = 0.1}));
  FinishedCell weights = cells.back();
  weights.parameters["part"] = "weights";
  weights.parameters["decisions"] = 8;
  weights.lines.clear();
  for (int layer : {0, 9}) {
    weights.lines.push_back(Json{{"record", "excluded_weights"},
                                 {"policy", "layered:blocks=2"},
                                 {"layer", layer},
                                 {"n_rows", 1000},
                                 {"n_heads", 10},
                                 {"rows_below_f32", layer == 0 ? 0.5 : 0.0},
                                 {"rows_below_f16", 0.9},
                                 {"rows_below_bf16", 1.0},
                                 {"heads_below_f32", 0.0},
                                 {"heads_below_f16", 0.0},
                                 {"heads_below_bf16", 0.5},
                                 {"largest", 0.25},
                                 {"mass_mean", layer == 0 ? 0.1 : 0.3}});
  }
  cells.push_back(weights);
  const std::vector<LabTable> tables = Info("first-version").tables(cells);
  ASSERT_EQ(tables.size(), 3u);
  const std::vector<std::string>* row = FindRow(tables[0], {"layered:blocks=2", "10.0 %", "1"});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[3], "0 of 1");
  EXPECT_EQ((*row)[4], "4");
  row = FindRow(tables[1], {"layered:blocks=2"});
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[3], "25.0 %") << "of f32, rows of both layers together";
  EXPECT_EQ((*row)[10], "20.00 %") << "mass";
  EXPECT_TRUE(FindRow(tables[1], {"control", "-", "0"}));
  row = FindRow(tables[2], {"layered:blocks=2"});
  ASSERT_TRUE(row);
  // 100 decisions of 100 MB: 1 MB of dense a step at 2,100 rows, 10 % of it read.
  EXPECT_EQ((*row)[1], "0.10 MB");
  EXPECT_EQ((*row)[3], "249.66 MB");
  EXPECT_EQ((*row)[4], "0.040 %");

  // Weights of more decisions of the same prefix hold the others' once more.
  weights.parameters["decisions"] = 16;
  cells.push_back(weights);
  const LabTable apart = Info("first-version").tables(cells)[1];
  EXPECT_TRUE(FindRow(apart, {"layered:blocks=2", "8", "2e+03"}));
  EXPECT_TRUE(FindRow(apart, {"layered:blocks=2", "16", "2e+03"}));
}

}  // namespace
}  // namespace condense
