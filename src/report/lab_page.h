// The page's part of lab folders: first what was found in plain words, then an article for each
// experiment with its tables, the figures of others, charts, records and provenance.
#pragma once

#include <string>
#include <vector>

#include "report/lab_records.h"
#include "report/report.h"

namespace condense::report {

// HTML; the charts' specs go to the end of `specs`. `out_html`: where links to records start from.
std::string LabHtml(const std::vector<LabRecords>& labs, const std::vector<ExperimentNotes>& notes,
                    const std::string& out_html, Json& specs);

// Names of the models that any experiment ran.
std::string LabModels(const std::vector<LabRecords>& labs);

}  // namespace condense::report
