// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_SCALAR_LIKE_H_
#define MILLRACE_OPS_ARRAY_SCALAR_LIKE_H_

// ScalarLike: a scalar constant in the dtype of another tensor, for formulas of gradients and
// optimizers that are written once for all floating and complex types.
//
//   Mul(scope, g, ScalarLike(scope, g, 0.5))
//
// Failure: an invalid Output and an error in the Scope for other dtypes (an invalid `like` gives an
// invalid Output without one).

#include <complex>

#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/array/constant.h"

namespace millrace {

inline Output ScalarLike(ScopeAt at, Output like, double value) {
  switch (WithoutRef(like.dtype())) {
    case DT_FLOAT:
      return Const(at, Tensor::Scalar<float>(static_cast<float>(value)));
    case DT_DOUBLE:
      return Const(at, Tensor::Scalar<double>(value));
    case DT_HALF:
      return Const(at, Tensor::Scalar<Half>(ToHalf(static_cast<float>(value))));
    case DT_BFLOAT16:
      return Const(at, Tensor::Scalar<Bfloat16>(ToBfloat16(static_cast<float>(value))));
    case DT_COMPLEX64:
      return Const(at, Tensor::Scalar<std::complex<float>>(static_cast<float>(value)));
    case DT_COMPLEX128:
      return Const(at, Tensor::Scalar<std::complex<double>>(value));
    case DT_INVALID:
      return Output();
    default:
      at.scope.UpdateStatus(
          absl::InvalidArgumentError(absl::StrCat(
              "a scalar constant must be floating or complex, got ", DTypeName(like.dtype()))),
          at.where);
      return Output();
  }
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_SCALAR_LIKE_H_
