// Flags that several commands share, and the commands that are made of little else.
#pragma once

#include "app/arguments.h"

namespace CLI {
class App;
}  // namespace CLI

namespace condense {

void AddModel(CLI::App* app, DecodeFlags& flags);  // -m
void AddCache(CLI::App* app, DecodeFlags& flags);  // -c, -t, -fa, -ctk, -ctv

void AddOffset(CLI::App* app, int64_t& offset);  // --offset
// --policy, where the default is what is in force. `what`: the beginning of the help, here and
// below.
void AddPolicy(CLI::App* app, std::string& policy, const std::string& what);
void AddPredict(CLI::App* app, int& n_generate, const std::string& what);  // -n

void AddModes(CLI::App* run, RunFlags& flags);  // --mode and what goes with it

CLI::App* AddCalibrate(CLI::App& app, CalibrateFlags& flags);
CLI::App* AddTune(CLI::App& app, TuneFlags& flags);
CLI::App* AddReport(CLI::App& app, ReportFlags& flags);
CLI::App* AddProfile(CLI::App& app, ProfileFlags& flags);

}  // namespace condense
