#include "kernels/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/result.h"

namespace condense {
namespace {

// Of one value; two or three do as a rule.
constexpr int kMostSteps = 64;

class Decomposition {
 public:
  Decomposition(std::vector<double>& matrix, size_t n)
      : n_(n), a_(matrix), diagonal_(n), beside_(n), factors_(n) {}

  SymmetricEigen Run() {
    ToThreeDiagonals();
    MakeBasis();
    for (size_t i = 0; i < n_; ++i) Converge(i);
    return Sorted();
  }

 private:
  double* Row(size_t i) { return a_.data() + i * n_; }

  // Reflections I - factor v vᵀ that make `a` three diagonals: diagonal_, and beside_[i] between i
  // and i + 1. v of reflection k is left in row k, from column k + 1 on.
  void ToThreeDiagonals() {
    std::vector<double> p(n_);
    for (size_t k = 0; k + 1 < n_; ++k) {
      double* v = Row(k) + k + 1;
      const size_t n = n_ - k - 1;
      diagonal_[k] = Row(k)[k];
      const double rest = std::inner_product(v + 1, v + n, v + 1, 0.0);
      if (rest == 0) {
        beside_[k] = v[0];
        factors_[k] = 0;
        continue;
      }
      const double length = std::sqrt(v[0] * v[0] + rest);
      beside_[k] = v[0] > 0 ? -length : length;
      v[0] -= beside_[k];  // the same sign: nothing cancels
      factors_[k] = 2 / (v[0] * v[0] + rest);
      Reflect(v, factors_[k], n, k + 1, p);
    }
    diagonal_[n_ - 1] = Row(n_ - 1)[n_ - 1];
  }

  // The block from row and column `first` on, n by n, from both sides.
  void Reflect(const double* v, double factor, size_t n, size_t first, std::vector<double>& p) {
    std::fill_n(p.begin(), n, 0.0);
    for (size_t i = 0; i < n; ++i) AddScaled(factor * v[i], Row(first + i) + first, n, p.data());
    const double along = 0.5 * factor * std::inner_product(v, v + n, p.begin(), 0.0);
    AddScaled(-along, v, n, p.data());
    for (size_t i = 0; i < n; ++i) {
      double* row = Row(first + i) + first;
      for (size_t j = 0; j < n; ++j) row[j] -= v[i] * p[j] + p[i] * v[j];
    }
  }

  // Rows of basis_: what the coordinates of the three diagonals mean.
  void MakeBasis() {
    std::vector<double> product(n_ * n_, 0.0), along(n_);
    for (size_t i = 0; i < n_; ++i) product[i * n_ + i] = 1;
    for (size_t k = n_ - 1; k-- > 0;) {  // so far, only rows and columns above k + 1 are not I's
      if (factors_[k] == 0) continue;
      const double* v = Row(k) + k + 1;
      const size_t n = n_ - k - 1;
      double* block = product.data() + (k + 1) * n_ + k + 1;
      std::fill_n(along.begin(), n, 0.0);
      for (size_t i = 0; i < n; ++i) AddScaled(v[i], block + i * n_, n, along.data());
      for (size_t i = 0; i < n; ++i)
        AddScaled(-factors_[k] * v[i], along.data(), n, block + i * n_);
    }
    basis_.resize(n_ * n_);
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < n_; ++j) basis_[j * n_ + i] = product[i * n_ + j];
    }
  }

  // Where the three diagonals fall apart at or after `first`: the last row of first's part.
  size_t EndOfPart(size_t first) const {
    size_t last = first;
    while (last + 1 < n_ && std::fabs(beside_[last]) >
                                std::numeric_limits<double>::epsilon() *
                                    (std::fabs(diagonal_[last]) + std::fabs(diagonal_[last + 1])))
      ++last;
    return last;
  }

  // Steps until value `first` stands alone.
  void Converge(size_t first) {
    for (int step = 0; step < kMostSteps; ++step) {
      const size_t last = EndOfPart(first);
      if (last == first) return;
      Step(first, last);
    }
  }

  // One QL step on rows first … last: rotations of neighbours from the last up, which chase what
  // the first one leaves beside the three diagonals.
  void Step(size_t first, size_t last) {
    const double half = (diagonal_[first + 1] - diagonal_[first]) / (2 * beside_[first]);
    const double shift = diagonal_[first] -
                         beside_[first] / (half + std::copysign(std::sqrt(half * half + 1), half));
    double cos = 1, sin = 1, moved = 0;
    double rest = diagonal_[last] - shift;
    for (size_t i = last; i-- > first;) {
      const double out = sin * beside_[i], in = cos * beside_[i];
      const double length = std::sqrt(out * out + rest * rest);
      beside_[i + 1] = length;
      if (length == 0) {  // fell apart here
        diagonal_[i + 1] -= moved;
        beside_[last] = 0;
        return;
      }
      sin = out / length, cos = rest / length;
      const double upper = diagonal_[i + 1] - moved;
      const double turn = (diagonal_[i] - upper) * sin + 2 * cos * in;
      moved = sin * turn;
      diagonal_[i + 1] = upper + moved;
      rest = cos * turn - in;
      Rotate(i, cos, sin);
    }
    diagonal_[first] -= moved;
    beside_[first] = rest;
    beside_[last] = 0;
  }

  void Rotate(size_t i, double cos, double sin) {
    double* low = basis_.data() + i * n_;
    double* high = low + n_;
    for (size_t c = 0; c < n_; ++c) {
      const double was = high[c];
      high[c] = sin * low[c] + cos * was;
      low[c] = cos * low[c] - sin * was;
    }
  }

  SymmetricEigen Sorted() const {
    std::vector<size_t> order(n_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return diagonal_[a] > diagonal_[b]; });
    SymmetricEigen result;
    for (size_t i : order) {
      result.values.push_back(diagonal_[i]);
      const auto row = basis_.begin() + static_cast<std::ptrdiff_t>(i * n_);
      result.vectors.insert(result.vectors.end(), row, row + static_cast<std::ptrdiff_t>(n_));
    }
    return result;
  }

  const size_t n_;
  std::vector<double>& a_;
  std::vector<double> diagonal_, beside_;
  std::vector<double> factors_;  // of reflections
  std::vector<double> basis_;
};

}  // namespace

SymmetricEigen DecomposeSymmetric(std::vector<double> matrix, int n) {
  CONDENSE_CHECK(n > 0 && matrix.size() == static_cast<size_t>(n) * n);
  double largest = 0;
  for (double value : matrix) largest = std::max(largest, std::fabs(value));
  CONDENSE_CHECK(std::isfinite(largest));
  // Squares of what is far from 1 would overflow or vanish.
  const int exponent = largest > 0 ? std::ilogb(largest) : 0;
  for (double& value : matrix) value = std::ldexp(value, -exponent);
  SymmetricEigen result = Decomposition(matrix, static_cast<size_t>(n)).Run();
  for (double& value : result.values) value = std::ldexp(value, exponent);
  return result;
}

}  // namespace condense
