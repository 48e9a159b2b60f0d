// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <complex>

#include "core/dtype.h"
#include "ops/loops/number.h"
#include "ops/loops/unary.h"
#include "ops/loops/unary_loop.h"

namespace millrace::math {
namespace {

template <UnaryOp kOp, typename R>
struct ComplexFn {
  using C = std::complex<R>;
  static C Apply(const C& v) {
    switch (kOp) {
      case UnaryOp::kNeg:
        return -v;
      case UnaryOp::kSign:
        return v == C(0) ? C(0) : v / std::abs(v);
      case UnaryOp::kSquare:
        return v * v;
      case UnaryOp::kReciprocal:
        return C(1) / v;
      case UnaryOp::kSqrt:
        return std::sqrt(v);
      case UnaryOp::kRsqrt:
        return C(1) / std::sqrt(v);
      case UnaryOp::kRound:
        return C(std::rint(v.real()), std::rint(v.imag()));
      case UnaryOp::kConj:
        return std::conj(v);
      case UnaryOp::kExp:
        return std::exp(v);
      case UnaryOp::kExpm1:
        return std::exp(v) - C(1);
      case UnaryOp::kLog:
        return std::log(v);
      case UnaryOp::kLog1p:
        return std::log(C(1) + v);
      case UnaryOp::kSigmoid:
        return C(1) / (C(1) + std::exp(-v));
      case UnaryOp::kTanh:
        return std::tanh(v);
      case UnaryOp::kSin:
        return std::sin(v);
      case UnaryOp::kCos:
        return std::cos(v);
      case UnaryOp::kTan:
        return std::tan(v);
      default:
        return v;
    }
  }
};

template <UnaryOp kOp>
UnaryFn LoopOf(DType dtype) {
  return LoopFor<ComplexTypes>(dtype, []<typename C>() -> UnaryFn {
    return &UnaryEach<ComplexFn<kOp, typename C::value_type>, C>;
  });
}

template <UnaryOp... kOps>
UnaryFn OneOf(UnaryOp op, DType dtype) {
  UnaryFn fn = nullptr;
  ((op == kOps ? void(fn = LoopOf<kOps>(dtype)) : void()), ...);
  return fn;
}

}  // namespace

UnaryFn FindUnaryComplex(UnaryOp op, DType dtype) {
  return OneOf<UnaryOp::kNeg, UnaryOp::kSign, UnaryOp::kSquare, UnaryOp::kReciprocal,
               UnaryOp::kSqrt, UnaryOp::kRsqrt, UnaryOp::kRound, UnaryOp::kConj, UnaryOp::kExp,
               UnaryOp::kExpm1, UnaryOp::kLog, UnaryOp::kLog1p, UnaryOp::kSigmoid, UnaryOp::kTanh,
               UnaryOp::kSin, UnaryOp::kCos, UnaryOp::kTan>(op, dtype);
}

}  // namespace millrace::math
