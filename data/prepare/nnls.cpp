#include "data/prepare/nnls.h"

#include "trireme/base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace trireme {
namespace {

class Solver {
 public:
  Solver(const SparseColumns& a, const std::vector<double>& b)
      : a_(a), m_(a.rows), qt_(m_ * m_), c_(b), x_(a.size()), gradient_(a.size()), is_passive_(a.size()) {
    for (size_t i = 0; i < m_; ++i) qt_[i * m_ + i] = 1;
    double widest = 0, largest = 0;
    for (size_t j = 0; j < a.size(); ++j) {
      double sum = 0;
      for (const auto& entry : column(j)) sum += std::abs(entry.value);
      widest = std::max(widest, sum);
    }
    for (const double value : b) largest = std::max(largest, std::abs(value));
    tolerance_ =
        10 * static_cast<double>(std::max(m_, a.size())) * std::numeric_limits<double>::epsilon() * widest * largest;
  }

  NnlsResult solve() {
    NnlsResult result;
    const int most = 3 * static_cast<int>(a_.size()) + 10;
    while (passive_.size() < m_ && enter()) {
      TRIREME_CHECK(++result.iterations < most, "non-negative least squares did not converge in ", most, " iterations");
      make_feasible();
    }
    result.x = x_;
    double squares = 0;
    for (size_t i = passive_.size(); i < m_; ++i) squares += c_[i] * c_[i];
    result.residual_norm = std::sqrt(squares);
    return result;
  }

 private:
  std::span<const SparseColumns::Entry> column(size_t j) const {
    return std::span(a_.entries).subspan(a_.starts[j], a_.starts[j + 1] - a_.starts[j]);
  }
  double* row(size_t i) { return qt_.data() + i * m_; }

  /// Moves the column of steepest descent among the active ones into the passive set; false at the optimum.
  bool enter() {
    compute_gradient();
    for (;;) {
      const auto best = std::max_element(gradient_.begin(), gradient_.end());
      if (best == gradient_.end() || *best <= tolerance_) return false;
      const auto j = static_cast<size_t>(best - gradient_.begin());
      if (append(j)) return true;
      *best = 0;  // linearly dependent on the passive columns, or its coefficient would not be positive
    }
  }

  /// Aᵀ(b − A x) of the active columns, 0 for the passive ones.
  void compute_gradient() {
    residual_.assign(m_, 0);
    for (size_t i = passive_.size(); i < m_; ++i)
      for (size_t k = 0; k < m_; ++k) residual_[k] += c_[i] * row(i)[k];
    for (size_t j = 0; j < a_.size(); ++j) {
      double sum = 0;
      if (!is_passive_[j])
        for (const auto& entry : column(j)) sum += entry.value * residual_[entry.row];
      gradient_[j] = sum;
    }
  }

  /// Adds column j to the factorisation by one Householder reflection of the rows from k on.
  bool append(size_t j) {
    const size_t k = passive_.size();
    std::vector<double> v(m_, 0);
    for (const auto& entry : column(j))
      for (size_t i = 0; i < m_; ++i) v[i] += entry.value * row(i)[entry.row];
    const auto squares = [&](size_t begin) {
      return std::inner_product(v.begin() + static_cast<ptrdiff_t>(begin), v.end(),
                                v.begin() + static_cast<ptrdiff_t>(begin), 0.0);
    };
    const double norm = std::sqrt(squares(k));
    double along = 0;  // has the sign of the new coefficient
    for (size_t i = k; i < m_; ++i) along += v[i] * c_[i];
    if (norm <= 1e-10 * std::sqrt(squares(0)) || along <= 0) return false;
    const double diagonal = v[k] > 0 ? -norm : norm;
    std::vector<double> r(v.begin(), v.begin() + static_cast<ptrdiff_t>(k));
    r.push_back(diagonal);
    v[k] -= diagonal;
    const double scale = 2 / squares(k);
    // H = 1 − scale v vᵀ applied to the rows of Qᵀ and to Qᵀb.
    residual_.assign(m_, 0);
    double dot = 0;
    for (size_t i = k; i < m_; ++i) {
      dot += v[i] * c_[i];
      for (size_t t = 0; t < m_; ++t) residual_[t] += v[i] * row(i)[t];
    }
    for (size_t i = k; i < m_; ++i) {
      c_[i] -= scale * dot * v[i];
      const double factor = scale * v[i];
      for (size_t t = 0; t < m_; ++t) row(i)[t] -= factor * residual_[t];
    }
    r_.push_back(std::move(r));
    passive_.push_back(j);
    is_passive_[j] = true;
    return true;
  }

  /// Removes passive column p: rotations make R triangular again.
  void remove(size_t p) {
    is_passive_[passive_[p]] = false;
    x_[passive_[p]] = 0;
    passive_.erase(passive_.begin() + static_cast<ptrdiff_t>(p));
    r_.erase(r_.begin() + static_cast<ptrdiff_t>(p));
    for (size_t i = p; i < r_.size(); ++i) {
      const double above = r_[i][i], below = r_[i][i + 1], norm = std::hypot(above, below);
      const double cosine = norm > 0 ? above / norm : 1, sine = norm > 0 ? below / norm : 0;
      const auto rotate = [&](double& first, double& second) {
        const double kept = cosine * first + sine * second;
        second = cosine * second - sine * first;
        first = kept;
      };
      for (size_t j = i; j < r_.size(); ++j) rotate(r_[j][i], r_[j][i + 1]);
      r_[i].resize(i + 1);
      rotate(c_[i], c_[i + 1]);
      for (size_t t = 0; t < m_; ++t) rotate(row(i)[t], row(i + 1)[t]);
    }
  }

  /// The least-squares solution of the passive columns.
  std::vector<double> solve_passive() const {
    const size_t k = passive_.size();
    std::vector<double> z(c_.begin(), c_.begin() + static_cast<ptrdiff_t>(k));
    for (size_t i = k; i-- > 0;) {
      z[i] /= r_[i][i];
      for (size_t t = 0; t < i; ++t) z[t] -= z[i] * r_[i][t];
    }
    return z;
  }

  /// Moves towards the passive columns' solution as far as x ≥ 0 allows and removes the columns that reach 0, until
  /// that solution is feasible.
  void make_feasible() {
    for (;;) {
      const std::vector<double> z = solve_passive();
      double step = 1;
      size_t blocking = z.size();
      for (size_t i = 0; i < z.size(); ++i) {
        if (z[i] > 0) continue;
        const double x = x_[passive_[i]], ratio = x > 0 ? x / (x - z[i]) : 0;
        if (blocking == z.size() || ratio < step) {
          step = ratio;
          blocking = i;
        }
      }
      for (size_t i = 0; i < z.size(); ++i) x_[passive_[i]] += step * (z[i] - x_[passive_[i]]);
      if (blocking == z.size()) return;
      x_[passive_[blocking]] = 0;
      for (size_t i = passive_.size(); i-- > 0;)
        if (x_[passive_[i]] <= 0) remove(i);
    }
  }

  const SparseColumns& a_;
  size_t m_;
  std::vector<double> qt_;              // [m, m] Qᵀ
  std::vector<double> c_;               // [m] Qᵀ b
  std::vector<std::vector<double>> r_;  // columns of R
  std::vector<size_t> passive_;         // columns of A in the order of R's
  std::vector<double> x_, gradient_, residual_;
  std::vector<bool> is_passive_;
  double tolerance_ = 0;
};

}  // namespace

NnlsResult solve_nnls(const SparseColumns& a, const std::vector<double>& b) {
  TRIREME_CHECK(b.size() == a.rows, b.size(), " right-hand sides for ", a.rows, " rows");
  return Solver(a, b).solve();
}

}  // namespace trireme
