// SPDX-License-Identifier: Apache-2.0
#include "ops/linalg/qr.h"

#include <Eigen/Core>
#include <Eigen/QR>
#include <algorithm>
#include <complex>
#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/op_rule.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct QrRule {
  bool full_matrices = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "full_matrices", &full_matrices); }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape input, c->InputWithRankAtLeast(0, 2, "input"));
    if (!input.has_rank()) return absl::OkStatus();
    const int batch = input.rank() - 2;
    const int64_t m = input.dim(batch), n = input.dim(batch + 1);
    // An unknown size of two may still be the smaller one.
    const int64_t p = full_matrices      ? m
                      : m == 0 || n == 0 ? 0
                      : m < 0 || n < 0   ? -1
                                         : std::min(m, n);
    const auto shape = [&](int64_t rows, int64_t columns) {
      std::vector<int64_t> dims(input.dims().begin(), input.dims().end() - 2);
      dims.insert(dims.end(), {rows, columns});
      return PartialShape::Make(dims);
    };
    MR_ASSIGN_OR_RETURN(PartialShape q, shape(m, p));
    MR_ASSIGN_OR_RETURN(PartialShape r, shape(p, n));
    c->set_output(0, std::move(q));
    c->set_output(1, std::move(r));
    return absl::OkStatus();
  }
};

// One matrix: input [m, n], q [m, p], r [p, n]. Each way that Eigen multiplies matrices is seconds
// of compiling for each type: so all of them lie by columns here, and complex ones, which are rare,
// are decomposed a column at a time, without products.
template <typename T>
void Decompose(const T* input, int64_t m, int64_t n, int64_t p, T* q, T* r) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Matrix columns = Matrix::Identity(m, p);
  Eigen::Map<Rows> upper(r, p, n);
  if constexpr (Eigen::NumTraits<T>::IsComplex) {
    Matrix a = Eigen::Map<const Rows>(input, m, n);
    const int64_t steps = std::min(m, n);
    std::vector<T> factors(static_cast<size_t>(steps)), room(static_cast<size_t>(std::max(n, p)));
    for (int64_t k = 0; k < steps; ++k) {
      T& factor = factors[static_cast<size_t>(k)];
      typename T::value_type diagonal;
      a.col(k).tail(m - k).makeHouseholderInPlace(factor, diagonal);
      a(k, k) = diagonal;
      a.bottomRightCorner(m - k, n - k - 1)
          .applyHouseholderOnTheLeft(a.col(k).tail(m - k - 1), factor, room.data());
    }
    for (int64_t k = steps; k-- > 0;) {
      columns.bottomRightCorner(m - k, p - k)
          .applyHouseholderOnTheLeft(a.col(k).tail(m - k - 1),
                                     std::conj(factors[static_cast<size_t>(k)]), room.data());
    }
    upper = a.topRows(p).template triangularView<Eigen::Upper>();
  } else {
    const Eigen::HouseholderQR<Matrix> qr(Eigen::Map<const Rows>(input, m, n));
    columns.applyOnTheLeft(qr.householderQ());
    upper = qr.matrixQR().topRows(p).template triangularView<Eigen::Upper>();
  }
  Eigen::Map<Rows>(q, m, p) = columns;
}

template <typename T>
Status RunQr(KernelContext* ctx, const QrRule& rule) {
  const Tensor& input = ctx->input(0);
  const int batch = input.rank() - 2;
  const int64_t m = input.dim(batch), n = input.dim(batch + 1);
  const int64_t p = rule.full_matrices ? m : std::min(m, n);
  MR_ASSIGN_OR_RETURN(Tensor * q, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * r, ctx->AllocateOutput(1));
  const T* in = input.raw<T>().data();
  T* const qs = q->mutable_raw<T>().data();
  T* const rs = r->mutable_raw<T>().data();
  const int64_t matrices = input.shape().NumElements(0, batch);
  // About 4 m n p operations each.
  const double cost_ns = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(p);
  if (p == 0) return absl::OkStatus();
  ctx->ParallelFor(matrices, cost_ns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Decompose(in + i * m * n, m, n, p, qs + i * m * p, rs + i * p * n);
    }
  });
  return absl::OkStatus();
}

const OpRegistration kQr =
    OpSpec("Qr", "input: T -> q: T, r: T",
           "full_matrices: bool = false; T: {double, float, half, complex64, complex128}")
        .With(RuledKernelsFor<QrRule, float, double, std::complex<float>, std::complex<double>>(
            "T", []<typename T> { return &RunQr<T>; }));

}  // namespace
}  // namespace millrace
