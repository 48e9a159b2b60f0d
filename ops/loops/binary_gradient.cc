// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <complex>

#include "core/dtype.h"
#include "ops/loops/binary.h"
#include "ops/loops/binary_loop.h"
#include "ops/loops/number.h"
#include "ops/loops/selu.h"

namespace millrace::math {
namespace {

// The gradient of an analytic function is multiplied by the conjugate of its derivative.
template <typename T>
T Conj(T v) {
  if constexpr (kIsComplex<T>) {
    return std::conj(v);
  } else {
    return v;
  }
}

template <typename T>
struct SigmoidGrad {
  static T Apply(T y, T dy) { return dy * Conj(y * (T(1) - y)); }
};
template <typename T>
struct TanhGrad {
  static T Apply(T y, T dy) { return dy * Conj(T(1) - y * y); }
};
template <typename T>
struct SqrtGrad {
  static T Apply(T y, T dy) { return dy * Conj(T(0.5) / y); }
};
template <typename T>
struct RsqrtGrad {
  static T Apply(T y, T dy) { return dy * Conj(T(-0.5) * (y * y * y)); }
};
template <typename T>
struct ReciprocalGrad {
  static T Apply(T y, T dy) { return -(dy * Conj(y * y)); }
};

template <typename T>
struct ReluGrad {
  static T Apply(T g, T x) { return x > T(0) ? g : T(0); }
};
template <typename T>
struct Relu6Grad {
  static T Apply(T g, T x) { return x > T(0) && x < T(6) ? g : T(0); }
};
template <typename T>
struct EluGrad {
  static T Apply(T g, T y) { return y < T(0) ? g * (y + T(1)) : g; }
};
template <typename T>
struct SeluGrad {
  static T Apply(T g, T y) { return y < T(0) ? g * (y + T(kSeluScaleAlpha)) : g * T(kSeluScale); }
};
template <typename T>
struct SoftplusGrad {
  static T Apply(T g, T x) { return g / (std::exp(-x) + T(1)); }
};
template <typename T>
struct SoftsignGrad {
  static T Apply(T g, T x) {
    const T d = T(1) + std::abs(x);
    return g / (d * d);
  }
};

template <template <typename> typename F>
BinaryFn Reals(DType dtype) {
  return SameTypeOf<F, FloatTypes>(dtype);
}
template <template <typename> typename F>
BinaryFn RealsAndComplexes(DType dtype) {
  return SameTypeOf<F, Joined<FloatTypes, ComplexTypes>>(dtype);
}
template <template <typename> typename F>
BinaryFn RealsAndIntegers(DType dtype) {
  return SameTypeOf<F, RealTypes>(dtype);
}

}  // namespace

BinaryFn FindGradient(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kSigmoidGrad:
      return RealsAndComplexes<SigmoidGrad>(dtype);
    case BinaryOp::kTanhGrad:
      return RealsAndComplexes<TanhGrad>(dtype);
    case BinaryOp::kSqrtGrad:
      return RealsAndComplexes<SqrtGrad>(dtype);
    case BinaryOp::kRsqrtGrad:
      return RealsAndComplexes<RsqrtGrad>(dtype);
    case BinaryOp::kReciprocalGrad:
      return RealsAndComplexes<ReciprocalGrad>(dtype);
    case BinaryOp::kReluGrad:
      return RealsAndIntegers<ReluGrad>(dtype);
    case BinaryOp::kRelu6Grad:
      return RealsAndIntegers<Relu6Grad>(dtype);
    case BinaryOp::kEluGrad:
      return Reals<EluGrad>(dtype);
    case BinaryOp::kSeluGrad:
      return Reals<SeluGrad>(dtype);
    case BinaryOp::kSoftplusGrad:
      return Reals<SoftplusGrad>(dtype);
    case BinaryOp::kSoftsignGrad:
      return Reals<SoftsignGrad>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
