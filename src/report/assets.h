// The page's pieces and the Vega bundle, laid into the library at build time (assets/, and the
// cache variable CONDENSE_VEGA_BUNDLE).
#pragma once

#include <string_view>

namespace condense::report {

// By file name: "page.html", "report.css", "report.js", "NAME.vl.json", "vega_bundle.js". An
// unknown name is a programmer's mistake.
std::string_view Asset(std::string_view name);

}  // namespace condense::report
