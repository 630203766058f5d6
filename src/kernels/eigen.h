// Eigenvalues and eigenvectors of a symmetric matrix, in double: Householder's reduction to three
// diagonals, then implicit QL steps with Wilkinson's shifts (Golub and Van Loan, Matrix
// Computations, 8.3). IEEE operations alone, in one order: the same bits on every machine. For
// training, not for steps: 64 by 64 takes about a millisecond, eight times as long at twice the
// size.
#pragma once

#include <cstddef>
#include <vector>

namespace condense {

struct SymmetricEigen {
  std::vector<double> values;   // [n], descending
  std::vector<double> vectors;  // [n, n]: row i is a unit vector of values[i], its sign arbitrary
};

// matrix: [n, n], symmetric, finite.
SymmetricEigen DecomposeSymmetric(std::vector<double> matrix, int n);

// to += factor · from, n values. Loops of this form, unlike sums, are vectorised without another
// order of additions.
inline void AddScaled(double factor, const double* from, size_t n, double* to) {
  for (size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

}  // namespace condense
