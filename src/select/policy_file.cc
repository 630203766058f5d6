#include "select/policy_file.h"

#include "base/text.h"
#include "base/whole_file.h"

// Header-only: the plug-in carries no library more into its host, and throws nothing.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace condense {
namespace {

int LineOf(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

// Reads the tables of one file; the first error is kept.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<PolicyFile> Read(const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (name == "spec") {
        ReadSpec(node);
      } else if (name == "keys" || name == "made") {
        ReadTable(name, node);
      } else {
        FailUnknown(key, "", {"spec", "keys", "made"});
      }
    }
    if (error_.empty() && file_.spec_line == 0)
      Fail(0, "has no key spec, which says the policy: spec = \"NAME:KEY=VALUE\"");
    if (error_.empty()) AddKeys();
    if (!error_.empty()) return Error{error_};
    return std::move(file_);
  }

 private:
  void Fail(int line, const std::string& what) {
    if (error_.empty()) error_ = PolicyFilePlace(path_, line) + what;
  }

  void FailUnknown(const toml::key& key, const std::string& table,
                   const std::vector<std::string>& known) {
    const std::string name(key.str());
    Fail(static_cast<int>(key.source().begin.line),
         "key " + Quote(name) + (table.empty() ? "" : " of [" + table + "]") + " is unknown" +
             DidYouMean(name, known) + " (keys: " + JoinNames(known) + ")");
  }

  // Empty after an error.
  std::string Text(const std::string& name, const toml::node& node) {
    const auto text = node.value_exact<std::string>();
    if (!text) Fail(LineOf(node), name + " is no text: write it in quotes");
    return text.value_or("");
  }

  void ReadSpec(const toml::node& node) {
    file_.spec_line = LineOf(node);
    const std::string text = Text("spec", node);
    if (!error_.empty()) return;
    if (NamesPolicyFile(text))
      return Fail(file_.spec_line, "spec names another policy file: write the policy itself");
    Result<PolicySpec> spec = ParseSpec(text);
    if (!spec.ok()) return Fail(file_.spec_line, spec.error());
    file_.spec = std::move(spec.value());
  }

  void ReadTable(const std::string& name, const toml::node& node) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Fail(LineOf(node), name + " is no table: write [" + name + "]");
    for (const auto& [key, value] : *table) {
      if (name == "made") {
        ReadMade(key, value);
      } else {
        ReadKey(std::string(key.str()), value);
      }
    }
  }

  // In quotes, or a whole number as it is.
  void ReadKey(const std::string& name, const toml::node& node) {
    const auto number = node.value_exact<int64_t>();
    const std::string value = number ? std::to_string(*number) : Text(name, node);
    if (value.empty()) Fail(LineOf(node), "key " + Quote(name) + " has no value");
    file_.key_lines[name] = LineOf(node);
    more_.emplace_back(name, value);
  }

  void AddKeys() {
    for (auto& [name, value] : more_) {
      for (const auto& [known, unused] : file_.spec.keys) {
        if (known == name)
          Fail(file_.key_lines[name], "key " + Quote(name) + " is given twice: in spec too");
      }
    }
    file_.spec.keys.insert(file_.spec.keys.end(), more_.begin(), more_.end());
  }

  void ReadMade(const toml::key& key, const toml::node& node) {
    PolicyProvenance& made = file_.made;
    const std::pair<const char*, std::string*> texts[] = {
        {"program", &made.program},           {"model", &made.model},
        {"model_sha256", &made.model_sha256}, {"target", &made.target},
        {"confidence", &made.confidence},     {"measured", &made.measured}};
    const std::pair<const char*, std::vector<std::string>*> lists[] = {
        {"text", &made.text}, {"text_sha256", &made.text_sha256}};
    std::vector<std::string> known;
    for (const auto& [name, to] : texts) {
      if (key.str() == name) *to = Text(name, node);
      if (key.str() == name) return;
      known.emplace_back(name);
    }
    for (const auto& [name, to] : lists) {
      if (key.str() == name) return ReadList(name, node, *to);
      known.emplace_back(name);
    }
    FailUnknown(key, "made", known);
  }

  // One text, or a list of texts.
  void ReadList(const std::string& name, const toml::node& node, std::vector<std::string>& to) {
    const toml::array* list = node.as_array();
    if (list == nullptr) return to.push_back(Text(name, node));
    for (const toml::node& item : *list) to.push_back(Text(name, item));
  }

  const std::string path_;
  std::string error_;
  PolicyFile file_;
  std::vector<std::pair<std::string, std::string>> more_;  // of [keys]
};

std::string InQuotes(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string Line(const std::string& name, const std::string& text) {
  return text.empty() ? "" : name + " = " + InQuotes(text) + "\n";
}

std::string Line(const std::string& name, const std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(InQuotes(text));
  return name + " = [" + JoinNames(quoted) + "]\n";
}

}  // namespace

bool NamesPolicyFile(std::string_view text) { return text.starts_with('@'); }

std::string PolicyFilePath(std::string_view text) { return std::string(text.substr(1)); }

std::string PolicyFilePlace(const std::string& path, int line) {
  return "policy file " + Quote(path) + (line > 0 ? ", line " + std::to_string(line) : "") + ": ";
}

Result<PolicyFile> ParsePolicyFile(std::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& wrong = parsed.error();
    return Error{PolicyFilePlace(path, static_cast<int>(wrong.source().begin.line)) +
                 std::string(wrong.description())};
  }
  return Reader(path).Read(parsed.table());
}

Result<PolicyFile> ReadPolicyFile(const std::string& path) {
  if (path.empty()) return Error{"no file behind '@': write @FILE, the path of a policy file"};
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return Error{PolicyFilePlace(path, 0) + "cannot be read: " + text.error()};
  return ParsePolicyFile(text.value(), path);
}

std::string PrintPolicyFile(const PolicySpec& spec, const PolicyProvenance& made,
                            const std::vector<std::string>& comments) {
  std::string text;
  for (const std::string& comment : comments) text += "# " + comment + "\n";
  text += Line("spec", PrintSpec(spec));
  const std::string provenance = Line("program", made.program) + Line("model", made.model) +
                                 Line("model_sha256", made.model_sha256) + Line("text", made.text) +
                                 Line("text_sha256", made.text_sha256) +
                                 Line("target", made.target) + Line("confidence", made.confidence) +
                                 Line("measured", made.measured);
  return provenance.empty() ? text : text + "\n[made]\n" + provenance;
}

}  // namespace condense
