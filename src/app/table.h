// Tables for a terminal: columns of text that align by characters, not bytes, and fit a width by
// leaving out the columns of least priority. Prints nothing itself.
#pragma once

#include <string>
#include <vector>

#include "lab/compare.h"

namespace condense {

struct TableColumn {
  std::string title;
  int priority =
      0;  // columns of the highest number go first where the width is short; 0 always stays
  bool left = false;
  std::vector<std::string> cells;
};

// Characters that a UTF-8 text takes in a terminal, one each.
int DisplayWidth(const std::string& text);

// Lines with newlines. The first column is shortened where even the columns of priority 0 are too
// wide.
std::string RenderTable(std::vector<TableColumn> columns, int width);

// The result of a comparison, in `width` characters.
std::string CompareTable(const std::vector<CompareRow>& rows, int n_generate, int width);

}  // namespace condense
