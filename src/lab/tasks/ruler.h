// The tasks of RULER (Hsieh et al., arXiv 2404.06654; NVIDIA/RULER, scripts/data/synthetic) whose
// texts can be made without any file: niah_single_1, niah_multikey_2, niah_multikey_3, vt and fwe,
// with its settings, its wording and its lengths. Ours: the draws, the words of which niah keys are
// made (RULER takes those of wonderwords), and that everything fits the length, where RULER's fwe
// leaves no room for the answer. Not here: essays, common words (cwe) and questions (qa). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "lab/tasks/item.h"
#include "lab/tasks/tokeniser.h"

namespace condense {

// In the order above.
const std::vector<std::string>& RulerTasks();
// Errors: unknown, with the nearest name.
Status CheckRulerTask(const std::string& task);

struct RulerSpec {
  std::string task;  // one of RulerTasks()
  uint64_t seed = 0;
  int n_context = 0;  // prompt and answer together hold at most so many tokens
  int sample = 0;
};

// As much text as fits. The answer is judged by StringMatchAll. Errors: a context that is too short
// for the task.
Result<TaskItem> MakeRuler(const TaskTokeniser& tokeniser, const RulerSpec& spec);

}  // namespace condense
