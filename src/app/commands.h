// The subcommands. Each prints what it has to say and returns the command's exit code.
#pragma once

#include <string>
#include <vector>

#include "app/arguments.h"

namespace condense {

int CompareCommand(const CompareFlags& flags, const std::vector<std::string>& argv);
int TuneCommand(const TuneFlags& flags, const std::vector<std::string>& argv);
int CalibrateCommand(const CalibrateFlags& flags);
int RunCommand(const RunFlags& flags);
int ProbeCommand(const ProbeFlags& flags);
int ProfileCommand(const ProfileFlags& flags);
int BenchCommand(const BenchFlags& flags);
int LabCommand(const LabFlags& flags, const std::vector<std::string>& argv);
int ReportCommand(const ReportFlags& flags);
int EnvCommand(const std::string& policy);
int PoliciesCommand(bool json);
int InfoCommand(const DecodeFlags& flags);

}  // namespace condense
