#pragma once
// Non-negative least squares: min ‖A x − b‖₂ over x ≥ 0, by the active-set method of Lawson and Hanson (Solving Least
// Squares Problems, 1974, chapter 23), in double, for a sparse A of few rows and many columns. The passive columns' QR
// factorisation is updated by Householder reflections and Givens rotations.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

/// Columns of a matrix.
struct SparseColumns {
  size_t rows = 0;
  std::vector<size_t> starts{0};  // [columns + 1] in entries
  struct Entry {
    uint32_t row;
    double value;
  };
  std::vector<Entry> entries;
  size_t size() const { return starts.size() - 1; }
};

struct NnlsResult {
  std::vector<double> x;     // [columns]
  double residual_norm = 0;  // ‖A x − b‖₂
  int iterations = 0;
};

/// InternalError when it does not converge within three iterations a column.
NnlsResult solve_nnls(const SparseColumns& a, const std::vector<double>& b);

}  // namespace trireme
