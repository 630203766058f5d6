// `condense report`: records that are there already as one page.
#include <fmt/format.h>

#include <filesystem>

#include "app/commands.h"
#include "app/exit_code.h"
#include "app/output.h"
#include "base/text.h"
#include "report/report.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

// What can be told before anything is read.
Status CheckPaths(const ReportFlags& flags) {
  std::error_code error;
  for (const std::string& path : flags.paths)
    if (!fs::exists(path, error))
      return Error{Quote(path) +
                   " is neither a file of records nor a folder of `condense lab run`"};
  if (fs::is_directory(flags.out, error))
    return Error{fmt::format("--output {} is a folder: name a file, as in -o {}", Quote(flags.out),
                             (fs::path(flags.out) / "report.html").string())};
  for (const std::string& path : flags.paths)
    if (fs::equivalent(path, flags.out, error))
      return Error{fmt::format("--output {} would be written over the records", Quote(flags.out))};
  const fs::path folder = fs::path(flags.out).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    return Error{fmt::format("--output {}: there is no folder {}", Quote(flags.out),
                             Quote(folder.string()))};
  return {};
}

}  // namespace

int ReportCommand(const ReportFlags& flags) {
  if (const Status status = CheckPaths(flags); !status.ok())
    return Fail(kExitUsage, status.error());
  if (const Status status = WriteReport(flags.paths, flags.out); !status.ok())
    return Fail(kExitFailed, status.error());
  fmt::print("report: {}\n", flags.out);
  return kExitOk;
}

}  // namespace condense
