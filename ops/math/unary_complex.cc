// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <complex>

#include "ops/math/unary_loop.h"

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
UnaryFn Complexes(DType dtype) {
  return dtype == DT_COMPLEX64 ? &UnaryEach<ComplexFn<kOp, float>, std::complex<float>>
                               : &UnaryEach<ComplexFn<kOp, double>, std::complex<double>>;
}

}  // namespace

UnaryFn FindUnaryComplex(UnaryOp op, DType dtype) {
  if (!IsComplex(dtype)) return nullptr;
  switch (op) {
    case UnaryOp::kNeg:
      return Complexes<UnaryOp::kNeg>(dtype);
    case UnaryOp::kSign:
      return Complexes<UnaryOp::kSign>(dtype);
    case UnaryOp::kSquare:
      return Complexes<UnaryOp::kSquare>(dtype);
    case UnaryOp::kReciprocal:
      return Complexes<UnaryOp::kReciprocal>(dtype);
    case UnaryOp::kSqrt:
      return Complexes<UnaryOp::kSqrt>(dtype);
    case UnaryOp::kRsqrt:
      return Complexes<UnaryOp::kRsqrt>(dtype);
    case UnaryOp::kRound:
      return Complexes<UnaryOp::kRound>(dtype);
    case UnaryOp::kConj:
      return Complexes<UnaryOp::kConj>(dtype);
    case UnaryOp::kExp:
      return Complexes<UnaryOp::kExp>(dtype);
    case UnaryOp::kExpm1:
      return Complexes<UnaryOp::kExpm1>(dtype);
    case UnaryOp::kLog:
      return Complexes<UnaryOp::kLog>(dtype);
    case UnaryOp::kLog1p:
      return Complexes<UnaryOp::kLog1p>(dtype);
    case UnaryOp::kSigmoid:
      return Complexes<UnaryOp::kSigmoid>(dtype);
    case UnaryOp::kTanh:
      return Complexes<UnaryOp::kTanh>(dtype);
    case UnaryOp::kSin:
      return Complexes<UnaryOp::kSin>(dtype);
    case UnaryOp::kCos:
      return Complexes<UnaryOp::kCos>(dtype);
    case UnaryOp::kTan:
      return Complexes<UnaryOp::kTan>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
