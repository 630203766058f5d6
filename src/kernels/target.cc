#include "kernels/target.h"

#include "kernels/highway_config.h"
//
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace condense {
namespace {

// The targets compiled in, and supported when nothing is forced.
int64_t UsableTargets() {
  // The fallback always works; the library may not report it where it was built without one.
  static const int64_t usable = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
  return usable;
}

int64_t LowestBit(int64_t targets) { return targets & -targets; }

void Use(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  // Without this, dispatched functions would stay with the target of their first call.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> AvailableTargets() {
  std::vector<std::string> names;
  for (int64_t rest = UsableTargets(); rest != 0; rest &= rest - 1) {
    names.emplace_back(hwy::TargetName(LowestBit(rest)));
  }
  return names;
}

std::string CurrentTarget() {
  UsableTargets();
  return hwy::TargetName(LowestBit((hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET));
}

Status ForceTarget(const std::string& name) {
  const int64_t usable = UsableTargets();
  if (name.empty()) {
    Use(0);
    return {};
  }
  std::string available;
  for (int64_t rest = usable; rest != 0; rest &= rest - 1) {
    const int64_t target = LowestBit(rest);
    if (name == hwy::TargetName(target)) {
      Use(target);
      return {};
    }
    available += (available.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  return Error{"instruction set '" + name + "' is not available here; choose one of: " + available};
}

}  // namespace condense
