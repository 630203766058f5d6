// Calibration files of guarded decoding, as TOML: a threshold, and everything that its promise
// depends on. Written by `condense calibrate`, taken by --mode guard, refused wherever the promise
// does not hold. Every key must be there and known.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lab/guard_rule.h"

namespace condense {

// What the promise depends on.
struct GuardSetting {
  std::string model, model_sha256;  // the file's name and digest
  std::string policy;               // canonical
  std::string k_type, v_type;       // of the cache
  bool rewrite = false;
  int from = 0, to = 0;  // tokens in the cache at the first and after the last decision
};

struct GuardCalibration {
  std::string program;
  GuardSetting setting;
  double threshold = 0;               // logits
  double risk = 0, confidence = 0;    // shares
  std::vector<GuardTally> certified;  // on the part held out, by teacher
  double speed_over_dense = 0;        // steps of the trial, without look-ahead
  std::vector<std::string> text, text_sha256;
  double bound() const;          // the largest of the teachers'
  double fallback_rate() const;  // of all decisions
};

std::string PrintCalibration(const GuardCalibration& calibration);
// Errors name `path`, the line and the reason.
Result<GuardCalibration> ParseCalibration(std::string_view toml, const std::string& path);
Result<GuardCalibration> ReadCalibration(const std::string& path);

// Whether the promise holds in `use`, whose from is the prompt's length and whose to is the last
// position that may be decided. Errors name what differs and the way out.
Status CheckSetting(const GuardCalibration& calibration, const GuardSetting& use,
                    const std::string& path);

}  // namespace condense
