// What a stopped `condense calibrate` keeps: JSON Lines, the run's description first, then a line a
// finished prefix. Lines of another run are an error; a cut last line is dropped. A file that is
// refused stays as it is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/records.h"

namespace condense {

class CalibrateRecords {
 public:
  // `identity`: how records of the run at hand begin. An empty path: nothing is kept.
  static Result<CalibrateRecords> Open(const std::string& path, const Json& identity);

  // What was kept of a prefix; null: nothing.
  const Json* Searched(int prefix) const;
  const Json* Tried(int prefix, const std::vector<double>& thresholds) const;
  Status WriteSearched(int prefix, Json found);
  Status WriteTried(int prefix, const std::vector<double>& thresholds, Json found);
  const std::string& path() const { return path_; }

 private:
  Status Write(const char* record, int prefix, Json found);

  std::string path_;
  std::map<int, Json> searched_, tried_;
  std::optional<RecordWriter> writer_;
};

}  // namespace condense
