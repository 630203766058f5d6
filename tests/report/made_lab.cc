// Plausible shapes: quality rises with the rows read and falls with the context, speeds cross
// dense's with depth, needles are lost in the middle.
#include "tests/report/made_lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace condense {
namespace {

using Json = nlohmann::json;

constexpr int kDecisions = 127, kLayers = 12, kHeads = 9;

double Uniform(std::mt19937& random) { return random() / 4294967296.0; }

std::string CellOf(const Json& parameters) {
  std::string id;
  for (const auto& [name, value] : parameters.items())
    id += fmt::format("{}{}={}", id.empty() ? "" : " ", name,
                      value.is_string() ? value.get<std::string>() : value.dump());
  return id;
}

void Close(std::vector<Json>& out, const std::string& experiment, const Json& parameters,
           std::vector<Json> lines) {
  for (Json& line : lines) {
    line["experiment"] = experiment;
    line["cell"] = CellOf(parameters);
    out.push_back(std::move(line));
  }
  Json end = LabLine("cell", experiment, CellOf(parameters));
  const std::string policy = parameters["policy"];
  end.update({{"policy", policy},
              {"name", policy.substr(0, policy.find(':'))},
              {"budget", nullptr},
              {"state", "done"},
              {"reason", ""},
              {"least_budget", nullptr},
              {"seconds", 3.5},
              {"group", "made"},
              {"parameters", parameters}});
  out.push_back(std::move(end));
}

Json Run(const std::string& model) {
  return {{"schema", 1},
          {"record", "run"},
          {"program", "condense lab (made for tests)"},
          {"version", "0.0.0"},
          {"commit", "made"},
          {"tree_clean", true},
          {"llama_cpp_commit", "made"},
          {"ggml_version", "0.0.0"},
          {"compiler", "made 1.0"},
          {"instruction_set", "AVX3"},
          {"cpu", "Made CPU"},
          {"threads", 2},
          {"rank", 0},
          {"ranks", 1},
          {"model", model},
          {"model_sha256", std::string(64, 'a')},
          {"model_desc", "llama 135M Q4_1"},
          {"n_layers", kLayers},
          {"n_query_heads", kHeads},
          {"n_kv_heads", 3},
          {"head_dim", 64},
          {"kv_type_k", "f16"},
          {"kv_type_v", "f16"},
          {"kv_bytes_per_token", 9216},
          {"time_utc", "2000-01-01T00:00:00Z"},
          {"argv", {"condense", "lab", "run", "survival"}}};
}

Json Published(const char* experiment, const char* metric, Json at, const char* value) {
  return {{"schema", 1},
          {"record", "published"},
          {"experiment", experiment},
          {"metric", metric},
          {"at", std::move(at)},
          {"value", value},
          {"low", nullptr},
          {"high", nullptr},
          {"setting", "Made-0.5B, a made GPU"},
          {"source", "made for tests, table 1"}};
}

// 0: dense, 1: the control, then the policies by the rows they read.
struct Quality {
  double share, lost;
};

Quality QualityOf(int rank, int n_policies, int context, double luck) {
  if (rank == 0) return {1, 0};
  if (rank == 1) return {1, 0.012 * luck};
  const double rows = 97 * std::pow(2, rank - 2);
  return {std::min(0.9, rows / context + 0.01),
          std::min(0.6, 0.05 * luck * std::pow(context / 2048.0, 0.6) * (n_policies + 2 - rank))};
}

Json PolicyLine(const std::string& model, const std::string& policy, const char* teacher, int rank,
                int n_policies, int context, std::mt19937& random) {
  const Quality quality = QualityOf(rank, n_policies, context, 0.5 + Uniform(random));
  const bool greedy = std::string(teacher) == "greedy";
  const double lost = greedy ? quality.lost : 0.6 * quality.lost;
  const double dense_rate = 90 / (1 + context / 6000.0);
  const double match = std::round((1 - lost) * kDecisions) / kDecisions;
  const double ratio = rank == 0 ? 1 : 1 + 9 * lost * lost + 0.02 * (Uniform(random) - 0.5);
  const Json t_div =
      lost < 0.004 ? Json(nullptr) : Json(std::min(kDecisions, 1 + static_cast<int>(0.6 / lost)));
  Json line{{"schema", 1},
            {"record", "policy"},
            {"policy", policy},
            {"spec", policy},
            {"name", policy.substr(0, policy.find(':'))},
            {"budget", nullptr},
            {"model", model},
            {"model_sha256", std::string(64, 'a')},
            {"teacher", teacher},
            {"n_prompt", context},
            {"n_decisions", kDecisions},
            {"t_div", t_div},
            {"t_sig", rank < 2 ? Json(nullptr) : t_div},
            {"survived", t_div.is_null()},
            {"tf_match", match},
            {"ppl_dense", 1.3},
            {"ppl_sparse", 1.3 * ratio},
            {"ppl_ratio", ratio},
            {"kl_mean", lost * 0.8},
            {"kl_stderr", lost * 0.1},
            {"kv_read_share", quality.share},
            {"select_share", rank < 2 ? Json(nullptr) : Json(0.2 + 0.1 * rank / n_policies)},
            {"dense_tokens_per_second", dense_rate * (0.98 + 0.04 * Uniform(random))},
            {"sparse_tokens_per_second", rank < 2 ? dense_rate
                                                  : (84 - 5 * rank) / (1 + context / 30000.0) *
                                                        (0.98 + 0.04 * Uniform(random))}};
  return line;
}

void AddSurvival(std::vector<Json>& out, const MadeLab& made, const std::string& model,
                 const std::vector<std::string>& policies, std::mt19937& random) {
  out.push_back(Published("survival", "runs that survive", Json::object(), "0 of 60"));
  out.push_back(Published("survival", "median T_div",
                          {{"context", 2048}, {"policy", "mean:blocks=2"}}, "2 to 22"));
  for (int context : made.contexts) {
    for (int prefix = 0; prefix < made.n_prefixes; ++prefix) {
      for (size_t p = 0; p < policies.size(); ++p) {
        const Json parameters = {{"context", context},
                                 {"model", model + "@aaaaaaaa"},
                                 {"offset", 4000 * prefix},
                                 {"policy", policies[p]},
                                 {"text", "made.txt@bbbbbbbb"}};
        std::vector<Json> lines;
        const int rank = policies[p] == "dense"     ? 0
                         : policies[p] == "control" ? 1
                                                    : 1 + static_cast<int>(p);
        for (const char* teacher : {"greedy", "text"}) {
          lines.push_back(PolicyLine(model, policies[p], teacher, rank,
                                     static_cast<int>(policies.size()), context, random));
          for (int layer = 0; layer < kLayers && rank > 1; ++layer) {
            std::vector<double> omitted(kHeads);
            for (double& head : omitted)
              head = std::min(1.0, 0.5 * Uniform(random) / rank * (1 + std::sin(layer)));
            lines.push_back({{"schema", 1},
                             {"record", "layer"},
                             {"policy", policies[p]},
                             {"teacher", teacher},
                             {"layer", layer},
                             {"omitted_mass_heads", omitted}});
          }
        }
        Close(out, "survival", parameters, std::move(lines));
      }
    }
  }
}

void AddNeedles(std::vector<Json>& out, const MadeLab& made, const std::string& model,
                const std::vector<std::string>& policies, std::mt19937& random) {
  out.push_back(Published("needle", "found", {{"policy", "mean:blocks=2"}}, "8 of 45"));
  for (int context : made.contexts) {
    for (double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      for (int fact = 0; fact < 3; ++fact) {
        for (size_t p = 0; p < policies.size(); ++p) {
          const double chance = 0.9 - 0.5 * std::sin(3.14159 * depth) * context / 16384.0 -
                                (p < 2 ? 0 : 0.5 / static_cast<double>(p));
          const bool found = Uniform(random) < chance;
          const Json parameters = {{"context", context},
                                   {"depth", depth},
                                   {"fact", fact},
                                   {"model", model + "@aaaaaaaa"},
                                   {"policy", policies[p]}};
          Json item{{"schema", 1},
                    {"record", "item"},
                    {"policy", policies[p]},
                    {"spec", policies[p]},
                    {"task", "needle"},
                    {"prompt_sha256", std::string(64, 'c')},
                    {"n_prompt", context},
                    {"n_decisions", 8},
                    {"expected", {"Made"}},
                    {"answer", found ? "Made" : "</p>"},
                    {"first_token_match", found},
                    {"full_match", found && fact != 1},
                    {"score", found && fact != 1 ? 1.0 : 0.0},
                    {"kv_read_share", p < 2 ? 1.0 : 0.02 * static_cast<double>(p)}};
          Close(out, "needle", parameters, {std::move(item)});
        }
      }
    }
  }
}

void AddMasses(std::vector<Json>& out, const std::string& model, std::mt19937& random) {
  for (const char* policy : {"mean:blocks=2", "mean:blocks=8"}) {
    std::vector<Json> lines;
    for (int layer = 0; layer < kLayers; ++layer) {
      const double base = 0.6 + 0.3 * Uniform(random);
      lines.push_back({{"schema", 1},
                       {"record", "layer_mass"},
                       {"layer", layer},
                       {"n_heads", kHeads},
                       {"base", base},
                       {"oracle", base + 0.8 * (1 - base)},
                       {"policy", base + 0.7 * (1 - base)},
                       {"oracle_recall", 0.8},
                       {"policy_recall", 0.7}});
    }
    Close(out, "mass", {{"context", 2041}, {"model", model + "@aaaaaaaa"}, {"policy", policy}},
          std::move(lines));
  }
}

}  // namespace

Json LabLine(const char* kind, const std::string& experiment, const std::string& cell) {
  return {{"schema", 1}, {"record", kind}, {"experiment", experiment}, {"cell", cell}};
}

std::vector<Json> MakeLabRecords(const MadeLab& made) {
  std::mt19937 random(20260206);
  std::vector<std::string> policies = {"dense"};
  if (made.control) policies.push_back("control");
  policies.insert(policies.end(), made.policies.begin(), made.policies.end());
  std::vector<Json> out;
  for (const std::string& model : made.models) {
    out.push_back(Run(model));
    AddSurvival(out, made, model, policies, random);
    if (made.needles) AddNeedles(out, made, model, policies, random);
    if (made.masses) AddMasses(out, model, random);
  }
  return out;
}

}  // namespace condense
