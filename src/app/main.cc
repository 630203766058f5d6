// The command `condense`: parses the command line and hands over to a subcommand.
#include <fmt/format.h>

#include "app/arguments.h"
#include "app/commands.h"
#include "app/exit_code.h"
#include "app/output.h"
#include "decode/stop.h"

int main(int argc, char** argv) {
  using condense::Arguments;
  const condense::Result<Arguments> parsed = condense::ParseArguments(argc, argv);
  if (!parsed.ok()) {
    condense::PrintError(parsed.error());
    return condense::kExitUsage;
  }
  const Arguments& arguments = parsed.value();
  condense::RouteHostLog(arguments.verbose);
  condense::InstallStopHandler();
  switch (arguments.command) {
    case Arguments::Command::kCompare:
      return condense::CompareCommand(arguments.compare, arguments.argv);
    case Arguments::Command::kTune:
      return condense::TuneCommand(arguments.tune, arguments.argv);
    case Arguments::Command::kCalibrate:
      return condense::CalibrateCommand(arguments.calibrate);
    case Arguments::Command::kRun:
      return condense::RunCommand(arguments.run);
    case Arguments::Command::kProbe:
      return condense::ProbeCommand(arguments.probe);
    case Arguments::Command::kProfile:
      return condense::ProfileCommand(arguments.profile);
    case Arguments::Command::kBench:
      return condense::BenchCommand(arguments.bench);
    case Arguments::Command::kLab:
      return condense::LabCommand(arguments.lab, arguments.argv);
    case Arguments::Command::kReport:
      return condense::ReportCommand(arguments.report);
    case Arguments::Command::kEnv:
      return condense::EnvCommand(arguments.env_policy);
    case Arguments::Command::kPolicies:
      return condense::PoliciesCommand(arguments.policies_json);
    case Arguments::Command::kInfo:
      return condense::InfoCommand(arguments.info);
    case Arguments::Command::kText:
      fmt::print("{}\n", arguments.text);
      return condense::kExitOk;
  }
  return condense::kExitUsage;
}
