// Typed reading of an experiment's spec (TOML). Every read checks type and range; a key that the
// spec leaves out has the value of the experiment's default spec, so defaults are written once. The
// first error is kept, with file and line, and later reads return the default: an experiment needs
// no error handling while it reads. A key that was given but never read is an error in the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace condense {

class SpecReader {
 public:
  // `text` is what the user wrote, `path` how messages name it; `defaults` the default spec, which
  // must be right. Errors: no TOML, with the line.
  static Result<SpecReader> Parse(std::string_view text, const std::string& path,
                                  std::string_view defaults);

  // What says whether a text is a policy that can be had; without it, any text is one.
  using PolicyCheck = std::function<Status(const std::string& policy)>;
  void CheckPoliciesWith(PolicyCheck check);

  // True where the user's spec has the key. No read.
  bool Given(std::string_view key) const;

  // `key` must be one of the default spec's.
  int64_t Int(std::string_view key, int64_t min, int64_t max);
  double Number(std::string_view key, double min, double max);
  bool Flag(std::string_view key);
  std::string Text(std::string_view key);
  // One of `names`.
  std::string Choice(std::string_view key, const std::vector<std::string>& names);
  // Lists: at least `least` values, each once.
  std::vector<int64_t> Ints(std::string_view key, int64_t min, int64_t max, size_t least = 1);
  std::vector<double> Numbers(std::string_view key, double min, double max, size_t least = 1);
  std::vector<std::string> Texts(std::string_view key, size_t least = 1);
  // Texts that are policies.
  std::string Policy(std::string_view key);
  std::vector<std::string> Policies(std::string_view key, size_t least = 1);
  // An error at its line where `policy`, which `value` of `key` names, is none.
  void CheckPolicy(std::string_view key, const std::string& value, const std::string& policy);
  // A table [key], where lists of tables [[key]] are: each of them. Errors and reads are shared
  // with this reader; a key that the user's table leaves out has the value of the default spec's
  // (first) table of that name. A list that is given takes the whole default list's place.
  SpecReader Table(std::string_view key);
  std::vector<SpecReader> Tables(std::string_view key, size_t least = 1);

  // An error of the experiment's own about a key that was read, at the key's line; about one of the
  // texts that it holds, at that text's.
  void Fail(std::string_view key, const std::string& what);
  void Fail(std::string_view key, const std::string& value, const std::string& what);
  // No error so far: what was read may be used.
  bool ok() const;
  // The first error; without one, the first key that nothing read, with the nearest that is known.
  Status Finish() const;

 private:
  struct Node;    // a table of the spec beside that of the default spec
  struct Shared;  // both documents and the first error
  SpecReader(std::shared_ptr<Shared> shared, Node* node);
  const void* Find(std::string_view key, bool& given);
  template <typename T>
  std::vector<T> List(std::string_view key, size_t least, const char* kind);

  std::shared_ptr<Shared> shared_;
  Node* node_;
};

// "spec 'x.toml', line 3: ": how messages about a spec begin; line 0: none.
std::string SpecPlace(const std::string& path, int line);

}  // namespace condense
