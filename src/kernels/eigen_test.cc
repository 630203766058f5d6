// Eigenvectors by their properties: they are orthonormal and give the matrix back.
#include "kernels/eigen.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace condense {
namespace {

std::vector<double> RandomSymmetric(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> matrix(static_cast<size_t>(n) * n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      matrix[i * n + j] = matrix[j * n + i] = static_cast<double>(random()) * 0x1p-31 - 1;
    }
  }
  return matrix;
}

// Sum over k of weight[k] · a[k, i] · a[k, j], or with `by_row` of a[i, k] · a[j, k].
double Product(const std::vector<double>& a, int n, int i, int j, const double* weight,
               bool by_row) {
  double sum = 0;
  for (int k = 0; k < n; ++k) {
    const double product = by_row ? a[i * n + k] * a[j * n + k] : a[k * n + i] * a[k * n + j];
    sum += weight != nullptr ? weight[k] * product : product;
  }
  return sum;
}

void Check(const std::vector<double>& matrix, int n) {
  const SymmetricEigen eigen = DecomposeSymmetric(matrix, n);
  ASSERT_EQ(eigen.values.size(), static_cast<size_t>(n));
  ASSERT_TRUE(std::is_sorted(eigen.values.rbegin(), eigen.values.rend()));
  double largest = 0;
  for (double value : matrix) largest = std::max(largest, std::fabs(value));
  const double close = 16 * n * 0x1p-52;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      ASSERT_NEAR(Product(eigen.vectors, n, i, j, nullptr, true), i == j, close) << n;
      ASSERT_NEAR(Product(eigen.vectors, n, i, j, eigen.values.data(), false), matrix[i * n + j],
                  close * n * largest)
          << n;
    }
  }
}

TEST(SymmetricEigenTest, VectorsAreOrthonormalAndGiveTheMatrixBack) {
  for (int n : {1, 2, 3, 16, 48, 64, 80, 128, 256}) Check(RandomSymmetric(n, n), n);
}

TEST(SymmetricEigenTest, EqualValuesAndZerosAreHarmless) {
  const int n = 20;
  std::vector<double> matrix(n * n, 0.0);
  Check(matrix, n);
  for (int i = 0; i < n; ++i) matrix[i * n + i] = 3;
  Check(matrix, n);
  for (int i = 0; i < n; ++i) matrix[i * n + i] = i % 3;
  Check(matrix, n);
  for (double& value : matrix) value = 1;  // rank 1
  Check(matrix, n);
  EXPECT_NEAR(DecomposeSymmetric(matrix, n).values[0], n, 1e-12);
  // Two parts that know nothing of each other.
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) matrix[i * n + j] = i % 2 == j % 2 ? 1.0 / (1 + i + j) : 0;
  }
  Check(matrix, n);
}

TEST(SymmetricEigenTest, AnySizeOfNumbersWillDo) {
  for (double size : {1e-300, 1e-160, 1e160, 1e290}) {
    std::vector<double> matrix = RandomSymmetric(12, 5);
    for (double& value : matrix) value *= size;
    Check(matrix, 12);
  }
}

TEST(SymmetricEigenTest, KnowsTheValuesOfADiagonalInAnotherBasis) {
  // A reflection of a diagonal matrix with values that span twelve orders of magnitude.
  const int n = 30;
  std::vector<double> v(n), matrix(n * n);
  double length = 0;
  for (int i = 0; i < n; ++i) v[i] = 1 + i % 7, length += v[i] * v[i];
  const auto reflection = [&](int i, int j) { return (i == j) - 2 * v[i] * v[j] / length; };
  const auto value = [](int k) { return std::pow(10.0, -k * 0.4); };
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int k = 0; k < n; ++k)
        matrix[i * n + j] += reflection(i, k) * value(k) * reflection(j, k);
    }
  }
  Check(matrix, n);
  const SymmetricEigen eigen = DecomposeSymmetric(matrix, n);
  for (int k = 0; k < n; ++k) EXPECT_NEAR(eigen.values[k], value(k), 1e-14) << k;
}

TEST(SymmetricEigenTest, WholeNumbers) {
  EXPECT_TRUE(rc::check("decomposes", [] {
    const int n = *rc::gen::inRange(1, 12);
    std::vector<double> matrix(static_cast<size_t>(n) * n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j <= i; ++j) matrix[i * n + j] = matrix[j * n + i] = *rc::gen::inRange(-3, 4);
    }
    Check(matrix, n);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

}  // namespace
}  // namespace condense
