// Plausible shapes: quality rises with the rows read, the control stands above every policy, the
// last policy but one survives its horizon.
#include "tests/report/made_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace condense {
namespace {

using Json = nlohmann::json;

constexpr int kPromptTokens = 7511;
constexpr double kRowBytes = 2.0 * 64 * 2 * 3 * 30;  // K and V, f16, 3 KV heads of 64, 30 layers

struct Policy {
  std::string spec;
  double share, match_greedy, match_text, kl, ratio;
  Json t_div, t_sig;
  Json budget = nullptr;

  std::string Name() const { return spec.substr(0, spec.find(':')); }
};

const std::vector<std::string> kWords = {
    " the",   " program",      " is",         " free",    " software", ",",          " you",
    " can",   " redistribute", " it",         " and",     "/or",       "\n",         " modify",
    " under", " terms",        " of",         " License", "  as",      " published", " by",
    "\n\n",   "\t(a)",         " Foundation", ".",        " either",   " version"};

// Wilson's interval, 95 %.
std::pair<double, double> Wilson(double share, int n) {
  const double z = 1.96, centre = share + z * z / (2 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4.0 * n * n));
  return {(centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)};
}

std::vector<Json> MadePieces(int n, bool odd) {
  std::vector<Json> pieces;
  pieces.reserve(n);
  for (int i = 0; i < n; ++i) pieces.push_back(kWords[(i * 7 + i / 11) % kWords.size()]);
  if (odd && n > 12) {
    pieces[1] = " \xF0\x9F\x9A\x80 ";       // one emoji in one piece
    pieces[2] = Json::array({0xF0, 0x9F});  // one emoji over two tokens, as bytes
    pieces[3] = Json::array({0xA7, 0xAA});
    pieces[4] = "</script><script>alert(1)</script>";
    pieces[5] = std::string("\x01\x1b[31m\x00z", 8);
    pieces[6] = "<!-- & \"quoted\" 'so' -->";
    pieces[7] = "\xEF\xBF\xBD";             // what a writer puts for broken bytes
    pieces[8] = Json::array({0xFF, 0xC3});  // broken, kept as bytes
    pieces[9] =
        "\xE2\x80\xAE"
        "drawkcab\xE2\x80\xAC";  // direction override
    pieces[10] = "   \n";
  }
  return pieces;
}

Json Line(const char* kind) { return {{"schema", 1}, {"record", kind}}; }

// Shares of spans without a difference, each decision being kept with this chance.
Json MadeSurvival(double match, int n) {
  Json spans = Json::array();
  for (int length = 1; length <= n; length *= 2)
    spans.push_back(
        {{"length", length}, {"n", n - length + 1}, {"share", std::pow(match, length)}});
  return spans;
}

// A window at the end and scattered marks before it.
Json MadeMap(int seed) {
  Json lines = Json::array();
  for (int i = 0; i < 64; ++i) {
    std::string line(128, '0');
    for (int c = 0; c < 128; ++c) {
      if (c > 118) line[c] = '9';
      if ((c * 7 + i / 3 * seed) % (11 + seed % 5) == 0)
        line[c] = static_cast<char>('1' + (c + i) % 5);
    }
    if (i < 40) line[127] = ' ';
    lines.push_back(line);
  }
  return lines;
}

Json MadeCell(const std::string& policy, const std::string& name, Json budget, const char* state,
              const std::string& reason) {
  Json cell = Line("cell");
  cell.update({{"policy", policy},
               {"name", name},
               {"budget", std::move(budget)},
               {"state", state},
               {"reason", reason},
               {"least_budget", nullptr},
               {"seconds", 1.5}});
  return cell;
}

}  // namespace

std::vector<Json> MakeRecords(const MadeRun& made) {
  std::mt19937 random(20260206);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * (random() / 4294967295.0);
  };
  std::vector<Json> out;

  Json run = Line("run");
  run.update({{"program", "condense (made for tests)"},
              {"version", "0.0.0"},
              {"commit", "made"},
              {"llama_cpp_commit", "made"},
              {"ggml_version", "0.0.0"},
              {"compiler", "made 1.0"},
              {"instruction_set", "AVX3"},
              {"threads", 2},
              {"cpu", "Made CPU"},
              {"model", made.model},
              {"model_sha256", std::string(64, 'a')},
              {"model_desc", "llama 135M Q4_1"},
              {"n_layers", made.n_layers},
              {"n_query_heads", 9},
              {"n_kv_heads", 3},
              {"head_dim", 64},
              {"kv_type_k", "f16"},
              {"kv_type_v", "f16"},
              {"kv_bytes_per_token", 23040},
              {"context", 8192},
              {"text_source", "made-text"},
              {"text_sha256", std::string(64, 'b')},
              {"offset", 0},
              {"n_prompt", kPromptTokens},
              {"n_generate", made.n_decisions + 1},
              {"time_utc", "2000-01-01T00:00:00Z"},
              {"argv", {"condense", "compare", "-n", std::to_string(made.n_decisions + 1)}}});
  out.push_back(run);

  const int n = made.n_decisions;
  std::vector<Json> dense_text = MadePieces(n, made.odd_text);
  std::vector<int> dense_tokens(n);
  for (int i = 0; i < n; ++i)
    dense_tokens[i] = 100 + (i * 7 + i / 11) % static_cast<int>(kWords.size());
  // As the writer's lists: dense begins with the shared first token, the autonomous lists do not.
  std::vector<Json> whole_text = dense_text;
  whole_text.insert(whole_text.begin(), "This");
  std::vector<int> whole_tokens = dense_tokens;
  whole_tokens.insert(whole_tokens.begin(), 42);
  Json prompt = Line("prompt");
  prompt.update({{"n_prompt", kPromptTokens},
                 {"prefill_seconds", 31.25},
                 {"prefill_tokens_per_second", 240.352},
                 {"first_token", 42},
                 {"first_token_text", "This"},
                 {"dense_text", whole_text},
                 {"dense_tokens", whole_tokens}});
  out.push_back(prompt);

  std::vector<Policy> policies = {{"dense", 1, 1, 1, 0, 1, nullptr, nullptr}};
  if (made.control) policies.push_back({"control", 1, 0.992, 0.994, 0.0009, 0.99, 74, nullptr});
  const int n_policies = static_cast<int>(made.policies.size());
  for (int i = 0; i < n_policies && !made.budgets.empty(); ++i) {
    for (size_t b = i + 1 < n_policies ? 0 : 1; b < made.budgets.size(); ++b) {
      const double budget = made.budgets[b];
      const double kl = 0.004 * std::pow(1.22, (i * 7) % n_policies) * std::pow(0.1 / budget, 1.1);
      policies.push_back({fmt::format("{}:budget={:g}%", made.policies[i], 100 * budget),
                          budget * uniform(0.93, 1), 1 - std::min(0.6, kl),
                          1 - std::min(0.5, kl / 2), kl, 2 - budget,
                          Json(1 + static_cast<int>(uniform(0, 0.5) * n)), nullptr, Json(budget)});
    }
  }
  for (int i = 0; made.budgets.empty() && i < std::min(n_policies, made.n_finished); ++i) {
    const double share = 0.014 * std::pow(2, i) * uniform(0.9, 1.1);
    const bool survives = i == n_policies - 2;
    const int t_div = 1 + static_cast<int>(uniform(0.02, 0.4) * (i + 1) / n_policies * n);
    policies.push_back(
        {made.policies[i], std::min(share, 0.9), 1 - 0.21 / (i + 1.2), 1 - 0.12 / (i + 1.1),
         0.31 / std::pow(i + 1, 2.2), 3.6 / (1 + 0.25 * i), survives ? Json(nullptr) : Json(t_div),
         survives || i == n_policies - 1 ? Json(nullptr) : Json(std::min(n, t_div + 9 * i))});
  }

  for (size_t p = 0; p < policies.size(); ++p) {
    const Policy& policy = policies[p];
    const bool is_dense = policy.spec == "dense";
    std::vector<Json> text = dense_text;
    std::vector<int> tokens = dense_tokens;
    if (!policy.t_div.is_null()) {
      for (int i = int{policy.t_div} - 1; i < n; ++i) {
        tokens[i] += 1000;
        text[i] = kWords[(i * 5 + p) % kWords.size()];
      }
      // Differs from the dense piece also as text.
      text[int{policy.t_div} - 1] = "  not";
    }
    for (const char* teacher : {"greedy", "text"}) {
      const bool greedy = std::string(teacher) == "greedy";
      if (!greedy && !made.text_teacher) continue;
      const double match = std::round((greedy ? policy.match_greedy : policy.match_text) * n) / n;
      const auto [low, high] = Wilson(match, n);
      const double kl = policy.kl * (greedy ? 1 : 0.7);
      const double dense_bytes = kRowBytes * (kPromptTokens + n / 2.0) * n;
      const double read = policy.share * dense_bytes;
      Json line = Line("policy");
      line.update({{"policy", policy.spec},
                   {"name", policy.Name()},
                   {"budget", policy.budget},
                   {"select_share", is_dense ? Json(nullptr) : Json(0.25)},
                   {"survival", MadeSurvival(match, n)},
                   {"teacher", teacher},
                   {"model", made.model},
                   {"model_sha256", std::string(64, 'a')},
                   {"n_prompt", kPromptTokens},
                   {"n_decisions", n},
                   {"t_div", policy.t_div},
                   {"t_sig", policy.t_sig},
                   {"survived", policy.t_div.is_null()},
                   {"tf_match", match},
                   {"tf_match_low", low},
                   {"tf_match_high", high},
                   {"ppl_dense", greedy ? 1.21 : 6.4},
                   {"ppl_sparse", (greedy ? 1.21 : 6.4) * (1 + kl * 0.6)},
                   {"ppl_ratio", 1 + kl * 0.6},
                   {"ppl_ratio_low", 1 + kl * 0.4},
                   {"ppl_ratio_high", 1 + kl * 0.8},
                   {"kl_mean", kl},
                   {"kl_median", kl * 0.31},
                   {"kl_p99", kl * 9.7},
                   {"kl_max", kl * 21.3},
                   {"kl_stderr", kl * 0.22},
                   {"same_top", match},
                   {"omitted_mass_mean", is_dense ? 0 : 0.3 * kl},
                   {"omitted_mass_max", is_dense ? 0 : std::min(0.97, 0.2 + kl)},
                   {"kv_read_share", policy.share},
                   {"k_bytes", std::floor(read * 0.49)},
                   {"v_bytes", std::floor(read * 0.41)},
                   {"summary_bytes", is_dense ? 0 : std::floor(read * 0.1)},
                   {"dense_bytes", dense_bytes},
                   {"unique_rows_per_kv_head", std::floor(policy.share * kPromptTokens)},
                   {"nominal_rows_per_query_head", std::floor(policy.share * kPromptTokens * 0.8)},
                   {"visible_rows", kPromptTokens + n / 2.0},
                   {"sparse_tokens_per_second", 46.125 * policy.ratio},
                   {"dense_tokens_per_second", 46.125},
                   {"speed_ratio_median", policy.ratio},
                   {"speed_ratio_low", policy.ratio * 0.94},
                   {"speed_ratio_high", policy.ratio * 1.05},
                   {"sparse_steps", is_dense ? 0 : n * made.n_layers},
                   {"dense_steps", is_dense ? n * made.n_layers : 0},
                   {"fallbacks", Json::object({{"stale_index", p == 3 ? 2 : 0}})},
                   {"rebuilds", p == 3 ? 1 : 0},
                   {"autonomous_text", text},
                   {"autonomous_tokens", tokens}});
      out.push_back(line);
      if (is_dense) continue;

      for (int layer = 0; layer < made.n_layers && policy.spec != "control"; ++layer) {
        const double mass =
            std::min(0.9, (0.02 + 0.3 * kl) * (1 + std::sin(layer * 0.55)) * uniform(0.8, 1.2));
        Json record = Line("layer");
        record.update({{"policy", policy.spec},
                       {"teacher", teacher},
                       {"layer", layer},
                       {"omitted_mass_mean", mass},
                       {"omitted_mass_max", std::min(1.0, 3 * mass)},
                       {"bound_mean", 11 * mass},
                       {"read_share", policy.share},
                       {"unique_rows", policy.share * kPromptTokens},
                       {"omitted_mass_heads", std::vector<double>(9, mass)}});
        out.push_back(record);
      }
      for (int i = 0; i < n && made.steps; ++i) {
        const double margin = std::exp(uniform(-4, 2.5)), delta = kl * std::exp(uniform(-1, 3));
        const bool differs = delta > margin / 2 && uniform(0, 1) < 0.4;
        Json record = Line("step");
        record.update({{"policy", policy.spec},
                       {"teacher", teacher},
                       {"decision", i + 1},
                       {"token_dense", dense_tokens[i]},
                       {"token_sparse", dense_tokens[i] + (differs ? 1000 : 0)},
                       {"match", !differs},
                       {"nll_dense", 0.2},
                       {"nll_sparse", 0.25},
                       {"kl", kl},
                       {"margin_dense", margin},
                       {"delta", delta},
                       {"margin_sparse", margin},
                       {"omitted_mass", 0.3 * kl}});
        out.push_back(record);
      }
    }
    if (!policy.budget.is_null()) {
      Json rows = Line("rows");
      rows.update({{"policy", policy.spec},
                   {"teacher", made.text_teacher ? "text" : "greedy"},
                   {"n_positions", kPromptTokens + n},
                   {"n_decisions", n},
                   {"positions_a_column", 60},
                   {"decisions_a_line", 2},
                   {"map", MadeMap(static_cast<int>(p))}});
      out.push_back(rows);
    }
    out.push_back(MadeCell(policy.spec, policy.Name(), policy.budget, "done", ""));
  }
  if (!made.budgets.empty()) {
    const std::string& last = made.policies.back();
    out.push_back(MadeCell(last + ":budget", last, made.budgets[0], "unmet",
                           "the budget is made too small: the least possible here is 7.5 %"));
    out.push_back(MadeCell("gated", "gated", nullptr, "left_out", "gated: gates=FILE is missing"));
  }
  return out;
}

std::string ToLines(const std::vector<Json>& records) {
  std::string lines;
  for (const Json& record : records)
    lines += record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return lines;
}

}  // namespace condense
