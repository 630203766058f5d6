// The assembler lays the files in as they are (.incbin): no generated source, no size limit. The
// paths come from CMake, which also makes this object depend on the files.
#include "report/assets.h"

#include <array>

#include "base/result.h"

// Symbols NAME_begin and NAME_end around the bytes of a file, read only.
#define CONDENSE_ASSET(name, path)                       \
  asm(".section .rodata\n"                               \
      ".global condense_asset_" #name                    \
      "_begin\n"                                         \
      ".hidden condense_asset_" #name                    \
      "_begin\n"                                         \
      "condense_asset_" #name                            \
      "_begin:\n"                                        \
      ".incbin \"" path                                  \
      "\"\n"                                             \
      ".global condense_asset_" #name                    \
      "_end\n"                                           \
      ".hidden condense_asset_" #name                    \
      "_end\n"                                           \
      "condense_asset_" #name                            \
      "_end:\n"                                          \
      ".byte 0\n"                                        \
      ".previous\n");                                    \
  extern "C" const char condense_asset_##name##_begin[]; \
  extern "C" const char condense_asset_##name##_end[]

CONDENSE_ASSET(page, CONDENSE_ASSET_DIR "/page.html");
CONDENSE_ASSET(css, CONDENSE_ASSET_DIR "/report.css");
CONDENSE_ASSET(js, CONDENSE_ASSET_DIR "/report.js");
CONDENSE_ASSET(t_div, CONDENSE_ASSET_DIR "/t_div.vl.json");
CONDENSE_ASSET(quality, CONDENSE_ASSET_DIR "/quality.vl.json");
CONDENSE_ASSET(omitted_mass, CONDENSE_ASSET_DIR "/omitted_mass.vl.json");
CONDENSE_ASSET(speed, CONDENSE_ASSET_DIR "/speed.vl.json");
CONDENSE_ASSET(margins, CONDENSE_ASSET_DIR "/margins.vl.json");
CONDENSE_ASSET(pareto, CONDENSE_ASSET_DIR "/pareto.vl.json");
CONDENSE_ASSET(survival, CONDENSE_ASSET_DIR "/survival.vl.json");
CONDENSE_ASSET(head_mass, CONDENSE_ASSET_DIR "/head_mass.vl.json");
CONDENSE_ASSET(rows, CONDENSE_ASSET_DIR "/rows.vl.json");
CONDENSE_ASSET(lab_score, CONDENSE_ASSET_DIR "/lab_score.vl.json");
CONDENSE_ASSET(lab_match_ppl, CONDENSE_ASSET_DIR "/lab_match_ppl.vl.json");
CONDENSE_ASSET(lab_survival, CONDENSE_ASSET_DIR "/lab_survival.vl.json");
CONDENSE_ASSET(lab_heat, CONDENSE_ASSET_DIR "/lab_heat.vl.json");
CONDENSE_ASSET(lab_speed, CONDENSE_ASSET_DIR "/lab_speed.vl.json");
CONDENSE_ASSET(lab_layer_mass, CONDENSE_ASSET_DIR "/lab_layer_mass.vl.json");
CONDENSE_ASSET(lab_split, CONDENSE_ASSET_DIR "/lab_split.vl.json");
CONDENSE_ASSET(lab_draft_places, CONDENSE_ASSET_DIR "/lab_draft_places.vl.json");
CONDENSE_ASSET(lab_draft_speed, CONDENSE_ASSET_DIR "/lab_draft_speed.vl.json");
CONDENSE_ASSET(lab_guard, CONDENSE_ASSET_DIR "/lab_guard.vl.json");
CONDENSE_ASSET(vega, CONDENSE_VEGA_BUNDLE);

namespace condense::report {
namespace {

struct Entry {
  std::string_view name;
  const char *begin, *end;
};

#define CONDENSE_ENTRY(file, name) \
  { file, condense_asset_##name##_begin, condense_asset_##name##_end }

const std::array kEntries = {
    Entry CONDENSE_ENTRY("page.html", page),
    Entry CONDENSE_ENTRY("report.css", css),
    Entry CONDENSE_ENTRY("report.js", js),
    Entry CONDENSE_ENTRY("t_div.vl.json", t_div),
    Entry CONDENSE_ENTRY("quality.vl.json", quality),
    Entry CONDENSE_ENTRY("omitted_mass.vl.json", omitted_mass),
    Entry CONDENSE_ENTRY("speed.vl.json", speed),
    Entry CONDENSE_ENTRY("margins.vl.json", margins),
    Entry CONDENSE_ENTRY("pareto.vl.json", pareto),
    Entry CONDENSE_ENTRY("survival.vl.json", survival),
    Entry CONDENSE_ENTRY("head_mass.vl.json", head_mass),
    Entry CONDENSE_ENTRY("rows.vl.json", rows),
    Entry CONDENSE_ENTRY("lab_score.vl.json", lab_score),
    Entry CONDENSE_ENTRY("lab_match_ppl.vl.json", lab_match_ppl),
    Entry CONDENSE_ENTRY("lab_survival.vl.json", lab_survival),
    Entry CONDENSE_ENTRY("lab_heat.vl.json", lab_heat),
    Entry CONDENSE_ENTRY("lab_speed.vl.json", lab_speed),
    Entry CONDENSE_ENTRY("lab_layer_mass.vl.json", lab_layer_mass),
    Entry CONDENSE_ENTRY("lab_split.vl.json", lab_split),
    Entry CONDENSE_ENTRY("lab_draft_places.vl.json", lab_draft_places),
    Entry CONDENSE_ENTRY("lab_draft_speed.vl.json", lab_draft_speed),
    Entry CONDENSE_ENTRY("lab_guard.vl.json", lab_guard),
    Entry CONDENSE_ENTRY("vega_bundle.js", vega),
};

}  // namespace

std::string_view Asset(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (entry.name == name) return {entry.begin, static_cast<size_t>(entry.end - entry.begin)};
  CONDENSE_CHECK(!"an asset of this name");
  return {};
}

}  // namespace condense::report
