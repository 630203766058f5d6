#include "lab/guard_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <sstream>

#include "base/text.h"
#include "base/whole_file.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace condense {
namespace {

// Reads one file; the first error is kept.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<GuardCalibration> Read(const toml::table& table) {
    GuardCalibration out;
    CheckKeys(table, "",
              {"program", "threshold", "risk", "confidence", "speed_over_dense", "setting",
               "certified", "texts"});
    Take(table, "program", out.program);
    Take(table, "threshold", out.threshold);
    Take(table, "risk", out.risk);
    Take(table, "confidence", out.confidence);
    Take(table, "speed_over_dense", out.speed_over_dense);
    if (const toml::table* setting = Table(table["setting"].node(), "setting")) {
      CheckKeys(*setting, "setting",
                {"model", "model_sha256", "policy", "k_type", "v_type", "rewrite", "from", "to"});
      Take(*setting, "model", out.setting.model);
      Take(*setting, "model_sha256", out.setting.model_sha256);
      Take(*setting, "policy", out.setting.policy);
      Take(*setting, "k_type", out.setting.k_type);
      Take(*setting, "v_type", out.setting.v_type);
      Take(*setting, "rewrite", out.setting.rewrite);
      Take(*setting, "from", out.setting.from);
      Take(*setting, "to", out.setting.to);
    }
    ForEach(table, "certified", [&](const toml::table& one) {
      CheckKeys(one, "certified", {"teacher", "n", "n_differ", "n_fallbacks", "bound"});
      GuardTally& tally = out.certified.emplace_back();
      Take(one, "teacher", tally.teacher);
      Take(one, "n", tally.n);
      Take(one, "n_differ", tally.n_differ);
      Take(one, "n_fallbacks", tally.n_fallbacks);
      Take(one, "bound", tally.bound);
    });
    ForEach(table, "texts", [&](const toml::table& one) {
      CheckKeys(one, "texts", {"path", "sha256"});
      Take(one, "path", out.text.emplace_back());
      Take(one, "sha256", out.text_sha256.emplace_back());
    });
    Check(out);
    if (!error_.empty()) return Error{error_};
    return out;
  }

 private:
  void Fail(const toml::node* at, const std::string& what) {
    if (!error_.empty()) return;
    const auto line = at == nullptr ? 0 : at->source().begin.line;
    error_ = fmt::format("calibration file '{}'{}: {}", path_,
                         line > 0 ? fmt::format(", line {}", line) : "", what);
  }

  void CheckKeys(const toml::table& table, const std::string& name,
                 const std::vector<std::string>& known) {
    for (const auto& [key, node] : table) {
      const std::string text(key.str());
      if (std::find(known.begin(), known.end(), text) == known.end())
        Fail(&node, fmt::format("key {}{} is unknown{}", Quote(text),
                                name.empty() ? "" : " of [" + name + "]", DidYouMean(text, known)));
    }
  }

  const toml::table* Table(const toml::node* node, const std::string& name) {
    if (node == nullptr || !node->is_table()) {
      Fail(node, fmt::format("has no table [{}]: write the file with condense calibrate", name));
      return nullptr;
    }
    return node->as_table();
  }

  template <typename Function>
  void ForEach(const toml::table& table, const char* name, const Function& function) {
    const toml::array* array = table[name].as_array();
    if (array == nullptr || array->empty())
      return Fail(table[name].node(), fmt::format("has no tables [[{}]]", name));
    for (const toml::node& node : *array) {
      if (const toml::table* one = Table(&node, name)) function(*one);
    }
  }

  template <typename T>
  void Take(const toml::table& table, const char* name, T& to) {
    const toml::node* node = table.get(name);
    if (node == nullptr) return Fail(&table, fmt::format("has no key {}", Quote(name)));
    if constexpr (std::is_same_v<T, double>) {
      if (const auto number = node->value<double>(); number && *number >= 0) {
        to = *number;
        return;
      }
    } else if (const auto value = node->value_exact<Stored<T>>()) {
      to = static_cast<T>(*value);
      if (Stored<T>{to} == *value) return;
    }
    Fail(node, fmt::format("{} has a value of another kind or range", Quote(name)));
  }
  // As TOML holds it.
  template <typename T>
  using Stored = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t, T>;

  void Check(const GuardCalibration& c) {
    if (!(c.risk > 0 && c.risk < 1)) Fail(nullptr, "risk is no share above 0 and below 1");
    if (!(c.confidence > 0 && c.confidence < 1))
      Fail(nullptr, "confidence is no share above 0 and below 1");
    if (c.setting.from < 1 || c.setting.to <= c.setting.from)
      Fail(nullptr, "from and to of [setting] are no range of context");
    if (c.bound() > c.risk)
      Fail(nullptr,
           fmt::format("certifies nothing: the bound {} is above the risk {}", c.bound(), c.risk));
  }

  const std::string path_;
  std::string error_;
};

std::string InQuotes(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string Range(const GuardSetting& setting) {
  return fmt::format("{} to {} tokens", setting.from, setting.to);
}

}  // namespace

double GuardCalibration::bound() const {
  double largest = 0;
  for (const GuardTally& tally : certified) largest = std::max(largest, tally.bound);
  return largest;
}

double GuardCalibration::fallback_rate() const {
  int64_t n = 0, n_fallbacks = 0;
  for (const GuardTally& tally : certified) {
    n += tally.n;
    n_fallbacks += tally.n_fallbacks;
  }
  return n == 0 ? 0 : static_cast<double>(n_fallbacks) / static_cast<double>(n);
}

std::string PrintCalibration(const GuardCalibration& calibration) {
  const GuardSetting& s = calibration.setting;
  std::string text = fmt::format(
      "# use: condense run --mode guard --calibration FILE\n"
      "# bound: on the share of all decisions whose sparse token is taken and is not dense's;\n"
      "# one-sided, Clopper-Pearson, holds with `confidence` for texts like these\n"
      "program = {}\nthreshold = {}\nrisk = {}\nconfidence = {}\nspeed_over_dense = {}\n",
      InQuotes(calibration.program), PrintNumber(calibration.threshold),
      PrintNumber(calibration.risk), PrintNumber(calibration.confidence),
      PrintNumber(calibration.speed_over_dense));
  text += fmt::format(
      "\n[setting]\nmodel = {}\nmodel_sha256 = {}\npolicy = {}\nk_type = {}\nv_type = {}\n"
      "rewrite = {}\nfrom = {}\nto = {}\n",
      InQuotes(s.model), InQuotes(s.model_sha256), InQuotes(s.policy), InQuotes(s.k_type),
      InQuotes(s.v_type), s.rewrite, s.from, s.to);
  for (const GuardTally& tally : calibration.certified) {
    text += fmt::format(
        "\n[[certified]]\nteacher = {}\nn = {}\nn_differ = {}\nn_fallbacks = {}\nbound = {}\n",
        InQuotes(tally.teacher), tally.n, tally.n_differ, tally.n_fallbacks,
        PrintNumber(tally.bound));
  }
  for (size_t i = 0; i < calibration.text.size(); ++i) {
    text += fmt::format("\n[[texts]]\npath = {}\nsha256 = {}\n", InQuotes(calibration.text[i]),
                        InQuotes(calibration.text_sha256[i]));
  }
  return text;
}

Result<GuardCalibration> ParseCalibration(std::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& wrong = parsed.error();
    return Error{fmt::format("calibration file '{}', line {}: {}", path, wrong.source().begin.line,
                             wrong.description())};
  }
  return Reader(path).Read(parsed.table());
}

Result<GuardCalibration> ReadCalibration(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok())
    return Error{fmt::format("calibration file '{}' cannot be read: {}", path, text.error())};
  return ParseCalibration(text.value(), path);
}

Status CheckSetting(const GuardCalibration& calibration, const GuardSetting& use,
                    const std::string& path) {
  const GuardSetting& made = calibration.setting;
  const auto refuse = [&](const std::string& what, const std::string& way_out) {
    return Error{fmt::format("calibration file '{}' promises nothing here: it is of {}: {}", path,
                             what, way_out)};
  };
  const std::string again = "run condense calibrate for this one";
  if (made.model_sha256 != use.model_sha256) {
    return refuse(fmt::format("the model {} (SHA-256 {:.12}…), and this one, {}, has {:.12}…",
                              made.model, made.model_sha256, use.model, use.model_sha256),
                  again);
  }
  if (made.policy != use.policy) {
    return refuse(fmt::format("the policy {}, and {} is asked for", made.policy, use.policy),
                  "leave --policy and CONDENSE_POLICY out, or " + again);
  }
  if (made.k_type != use.k_type || made.v_type != use.v_type) {
    return refuse(fmt::format("a cache of {} and {}, and this one is of {} and {}", made.k_type,
                              made.v_type, use.k_type, use.v_type),
                  fmt::format("pass -ctk {} -ctv {}, or {}", made.k_type, made.v_type, again));
  }
  if (made.rewrite != use.rewrite) {
    return refuse(fmt::format("--rewrite {}", made.rewrite ? "on" : "off"),
                  "pass the same, or calibrate with the other");
  }
  if (use.from < made.from || use.to > made.to) {
    return refuse(
        fmt::format("contexts of {}, and this one goes from {}", Range(made), Range(use)),
        use.from < made.from
            ? "give a longer prompt, or calibrate with a smaller --from"
            : "give a shorter prompt or a smaller -n, or calibrate with more --prompt-tokens");
  }
  return Status();
}

}  // namespace condense
