// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_matmul.h"

#include <complex>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/loops/number.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/rules/index_type.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// [rows of op(a), columns of op(b)].
struct SparseMatMulRule {
  bool adjoint_a = false, adjoint_b = false;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "adjoint_a", &adjoint_a, "adjoint_b", &adjoint_b);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize a, CheckSparseInput(c, {.prefix = "a_"}));
    if (a.rank >= 0 && a.rank != 2) {
      return InvalidArgument("a_shape must be that of a matrix, got ", a.rank, " dimensions");
    }
    MR_ASSIGN_OR_RETURN(const PartialInts shape, c->IntVector(2, "a_shape"));
    MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(3, 2, "b"));
    const auto dim = [&](int d) { return shape.at(d).value_or(-1); };
    for (const int d : {0, 1}) {
      if (shape.at(d).value_or(0) < 0) {
        return InvalidArgument("a_shape[", d, "] must be >= 0, got ", *shape.at(d));
      }
    }
    const int64_t rows = dim(adjoint_a ? 1 : 0), inner = dim(adjoint_a ? 0 : 1);
    const int64_t b_inner = b.dim(adjoint_b ? 1 : 0);
    if (inner >= 0 && b_inner >= 0 && inner != b_inner) {
      return InvalidArgument("a and b must agree in the inner dimension, got ", inner, " and ",
                             b_inner);
    }
    return PartialShape::Make({{rows, b.dim(adjoint_b ? 0 : 1)}});
  }
};

template <typename T>
T Adjoint(T value, bool is_adjoint) {
  if constexpr (math::kIsComplex<T>) {
    return is_adjoint ? std::conj(value) : value;
  } else {
    return value;
  }
}

// Every thread has columns of its own and goes through the elements of `a` in their order, so that
// a sum does not depend on how many threads there are.
template <typename T>
Status RunSparseMatMul(KernelContext* ctx, const SparseMatMulRule& rule) {
  const Tensor &indices = ctx->input(0), &b = ctx->input(3);
  const absl::Span<const T> values = ctx->input(1).raw<T>();
  const int64_t* const shape = ctx->input(2).raw<int64_t>().data();
  MR_RETURN_IF_ERROR(VisitIndexType(indices.dtype(), [&]<typename Index>() -> Status {
    const Index* const index = indices.raw<Index>().data();
    for (size_t i = 0; i < values.size(); ++i) {
      for (const int d : {0, 1}) {
        const int64_t at = index[2 * i + static_cast<size_t>(d)];
        if (at >= 0 && at < shape[d]) continue;
        return InvalidArgument("a_indices[", i, ",", d, "] = ", at,
                               " is out of bounds: need 0 <= ", "index < ", shape[d]);
      }
    }
    return absl::OkStatus();
  }));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  const int64_t columns = out->dim(1);
  const T* const from = b.raw<T>().data();
  T* const to = out->mutable_raw<T>().data();
  // op(b)[k, j] is from[k * k_stride + j * j_stride].
  const int64_t k_stride = rule.adjoint_b ? 1 : columns, j_stride = rule.adjoint_b ? b.dim(1) : 1;
  const int row_at = rule.adjoint_a ? 1 : 0;
  return VisitIndexType(indices.dtype(), [&]<typename Index>() -> Status {
    const Index* const index = indices.raw<Index>().data();
    const double cost_ns = static_cast<double>(values.size()) * (rule.adjoint_b ? 2 : 0.5);
    const auto multiply = [&](int64_t begin, int64_t end) {
      for (size_t i = 0; i < values.size(); ++i) {
        const T value = Adjoint(values[i], rule.adjoint_a);
        T* const row = to + int64_t{index[2 * i + static_cast<size_t>(row_at)]} * columns;
        const T* const other =
            from + int64_t{index[2 * i + static_cast<size_t>(1 - row_at)]} * k_stride;
        if (j_stride == 1) {
          for (int64_t j = begin; j < end; ++j) {
            row[j] = math::WrapAdd(row[j], math::WrapMul(value, Adjoint(other[j], rule.adjoint_b)));
          }
        } else {
          for (int64_t j = begin; j < end; ++j) {
            row[j] = math::WrapAdd(
                row[j], math::WrapMul(value, Adjoint(other[j * j_stride], rule.adjoint_b)));
          }
        }
      }
    };
    // Whole vectors: a range of few columns is no faster.
    constexpr int64_t kColumns = 32;
    ctx->ParallelBlocks(columns, kColumns, cost_ns, multiply);
    return absl::OkStatus();
  });
}

Status SparseMatMulGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const SparseMatMulRule rule, c->GetRule<SparseMatMulRule>());
  const Scope& s = c->scope();
  const SparseTensor a = {c->input(0), c->input(1), c->input(2)};
  const Output b = c->input(3), grad = c->dense_grad();
  const bool is_complex = grad.dtype() == DT_COMPLEX64 || grad.dtype() == DT_COMPLEX128;
  const auto conj = [&](Output x) { return is_complex ? Conj(s, x) : x; };
  const auto adjoint = [&](Output x) { return conj(Transpose(s, x, Const<int32_t>(s, {1, 0}))); };
  const Output to_b = SparseTensorDenseMatMul(s, a, grad, {.adjoint_a = !rule.adjoint_a});
  c->set_input_grad(3, rule.adjoint_b ? adjoint(to_b) : to_b);
  // op(a)[i, k] is multiplied with row k of op(b) into row i.
  const auto column = [&](int32_t d) {
    return StridedSlice(s, c->input(0), Const<int32_t>(s, {0, d}), Const<int32_t>(s, {0, d + 1}),
                        Const<int32_t>(s, {1, 1}),
                        {.begin_mask = 1, .end_mask = 1, .shrink_axis_mask = 2});
  };
  const Output zero = Const(s, 0);
  const Output rows = GatherV2(s, grad, column(rule.adjoint_a ? 1 : 0), zero);
  const Output others =
      GatherV2(s, rule.adjoint_b ? adjoint(b) : b, column(rule.adjoint_a ? 0 : 1), zero);
  const Output to_values = ReduceSum(s, Mul(s, rows, conj(others)), {1});
  c->set_input_grad(1, rule.adjoint_a ? conj(to_values) : to_values);
  return absl::OkStatus();
}

const OpRegistration kSparseTensorDenseMatMul =
    OpSpec("SparseTensorDenseMatMul",
           "a_indices: Tindices, a_values: T, a_shape: int64, b: T -> product: T",
           "T: type; Tindices: {int32, int64} = DT_INT64; adjoint_a: bool = false; "
           "adjoint_b: bool = false")
        .With(RuledKernelsFor<SparseMatMulRule, float, double, int32_t, std::complex<float>,
                              std::complex<double>>(
            "T", []<typename T>() { return &RunSparseMatMul<T>; }))
        .Gradient(SparseMatMulGradient);

}  // namespace
}  // namespace millrace
