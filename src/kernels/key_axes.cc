#include "kernels/key_axes.h"

#include <algorithm>
#include <cmath>

#include "kernels/eigen.h"

namespace condense {
namespace {

using Matrix = std::vector<double>;  // [dim, dim]

// Added to the diagonal, as a share of its mean: what the sample's queries did not use is not
// thrown away.
constexpr double kFloor = .003;

bool AllFinite(const Matrix& matrix) {
  return std::all_of(matrix.begin(), matrix.end(), [](double x) { return std::isfinite(x); });
}

Matrix UnitMatrix(size_t dim) {
  Matrix unit(dim * dim, 0.0);
  for (size_t i = 0; i < dim; ++i) unit[i * dim + i] = 1;
  return unit;
}

// The queries' second moment in units of its diagonal's mean, with the floor; its lower half.
Matrix Metric(size_t dim, const float* products, const float* moment) {
  Matrix metric(dim * dim, 0.0);
  double trace = 0;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; products != nullptr && j < i; ++j)
      metric[i * dim + j] = products[j * dim + i];
    if (products != nullptr)
      metric[i * dim + i] = products[i * dim + i];
    else if (moment != nullptr)
      metric[i * dim + i] = moment[i];
    trace += metric[i * dim + i];
  }
  if (!AllFinite(metric) || !(trace > 0)) return UnitMatrix(dim);
  const double unit = static_cast<double>(dim) / trace;
  for (double& value : metric) value *= unit;
  for (size_t i = 0; i < dim; ++i)
    metric[i * dim + i] = std::max(metric[i * dim + i], 0.0) + kFloor;
  return metric;
}

// Cᵀ of the metric C Cᵀ, C lower triangular: row j is column j of C. Takes the metric's lower half.
// Moments that are none (not positive but for rounding) give some C as well.
Matrix TransposedRoot(Matrix metric, size_t dim) {
  Matrix root(dim * dim, 0.0);
  for (size_t j = 0; j < dim; ++j) {
    const double pivot = std::sqrt(std::max(metric[j * dim + j], 1e-3 * kFloor));
    double* row = root.data() + j * dim;
    row[j] = pivot;
    for (size_t i = j + 1; i < dim; ++i) row[i] = metric[i * dim + j] / pivot;
    for (size_t i = j + 1; i < dim; ++i)
      AddScaled(-row[i], row + j + 1, i - j, metric.data() + i * dim + j + 1);
  }
  return root;
}

// Cᵀ Cov C.
Matrix InMetric(const Matrix& covariance, const Matrix& root, size_t dim) {
  Matrix left(dim * dim, 0.0), both(dim * dim, 0.0);
  for (size_t a = 0; a < dim; ++a) {
    for (size_t i = a; i < dim; ++i)
      AddScaled(root[a * dim + i], covariance.data() + i * dim, dim, left.data() + a * dim);
  }
  // both = left C; (left C)ᵀ = Cᵀ leftᵀ, and the whole is symmetric.
  Matrix turned(dim * dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) turned[j * dim + i] = left[i * dim + j];
  }
  for (size_t a = 0; a < dim; ++a) {
    for (size_t i = a; i < dim; ++i)
      AddScaled(root[a * dim + i], turned.data() + i * dim, dim, both.data() + a * dim);
  }
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < i; ++j)
      both[i * dim + j] = both[j * dim + i] = 0.5 * (both[i * dim + j] + both[j * dim + i]);
  }
  return both;
}

}  // namespace

KeyAxes FindKeyAxes(const std::vector<double>& covariance, int n_dims, const float* products,
                    const float* moment) {
  KeyAxes axes;
  if (!AllFinite(covariance)) return axes;
  const auto dim = static_cast<size_t>(n_dims);
  const Matrix root = TransposedRoot(Metric(dim, products, moment), dim);
  // Rows of C, for the substitution below.
  Matrix lower(dim * dim, 0.0);
  for (size_t j = 0; j < dim; ++j) {
    for (size_t i = j; i < dim; ++i) lower[i * dim + j] = root[j * dim + i];
  }
  SymmetricEigen eigen = DecomposeSymmetric(InMetric(covariance, root, dim), n_dims);
  axes.variance = std::move(eigen.values);
  for (double& value : axes.variance) value = std::max(value, 0.0);
  std::vector<double> code(dim), query(dim);
  for (size_t a = 0; a < dim; ++a) {
    double* u = eigen.vectors.data() + a * dim;
    std::fill(code.begin(), code.end(), 0.0);
    for (size_t j = 0; j < dim; ++j)
      AddScaled(u[j], root.data() + j * dim + j, dim - j, code.data() + j);
    for (size_t i = dim; i-- > 0;) {
      query[i] = u[i] / lower[i * dim + i];
      AddScaled(-query[i], lower.data() + i * dim, i, u);
    }
    for (double value : code) axes.to_code.push_back(static_cast<float>(value));
    for (double value : query) axes.to_query.push_back(static_cast<float>(value));
  }
  return axes;
}

}  // namespace condense
