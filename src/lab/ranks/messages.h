// What ranks say to each other, as JSON objects with the key `say`.
//
//   worker to rank 0: host {host}                     first of all
//                     hello {shared, folder, finished} its folder is taken; what rank 0 cannot read
//                     plan {plan}                      what it would do: see AgreedPlan
//                     ask                              for a group; it has done with the one before
//                     working {doing, cell}            the cell under way, "" for none
//                     finished {lines}                 but `step` and `rows`; the cell's end last
//                     spent {part, seconds}, warning {text}
//                     error {text}                     it cannot go on
//                     stopped                          a user stopped it
//                     bye                              it writes and says nothing more
//   rank 0 to worker: welcome {run}                    the folder is locked, by this run's name
//                     kept {cells}                     [experiment, id] of what is finished
//                     begin                            all plan the same
//                     group {group, cells, finished}   run these cells of it
//                     end                              no group is left
//                     stop                             after this step, keep what is done
//                     leave {lost}                     all have said bye; whether ranks are lost
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "lab/lab_folder.h"
#include "lab/ranks/hand_out.h"
#include "lab/records.h"

namespace condense {

inline Json Say(const std::string& what) { return Json{{"say", what}}; }

// A finished cell as its lines, the end last.
Json ToJson(const FinishedCell& cell);
// Nothing where they are no cell's.
std::vector<FinishedCell> FinishedFromJson(const Json& cells);

Json ToJson(const HandedGroup& group);
HandedGroup HandedFromJson(const Json& message);

}  // namespace condense
