// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/dtype.h"
#include "ops/loops/number.h"
#include "ops/loops/unary.h"
#include "ops/loops/unary_loop.h"

namespace millrace::math {
namespace {

template <typename T>
struct Abs {
  static T Apply(T v) {
    if constexpr (std::is_integral_v<T>) {
      return v < 0 ? WrapNeg(v) : v;
    } else {
      return std::abs(v);
    }
  }
};
template <typename T>
struct Neg {
  static T Apply(T v) {
    if constexpr (std::is_integral_v<T>) {
      return WrapNeg(v);
    } else {
      return -v;
    }
  }
};
template <typename T>
struct Sign {
  static T Apply(T v) { return static_cast<T>((v > T(0)) - (v < T(0))); }
};
template <typename T>
struct Square {
  static T Apply(T v) { return WrapMul(v, v); }
};
template <typename T>
struct Identity {
  static T Apply(T v) { return v; }
};
template <typename T>
struct Reciprocal {
  static T Apply(T v) { return T(1) / v; }
};
template <typename T>
struct Sqrt {
  static T Apply(T v) { return std::sqrt(v); }
};
template <typename T>
struct Rsqrt {
  static T Apply(T v) { return T(1) / std::sqrt(v); }
};
template <typename T>
struct Floor {
  static T Apply(T v) { return std::floor(v); }
};
template <typename T>
struct Ceil {
  static T Apply(T v) { return std::ceil(v); }
};
template <typename T>
struct Round {
  static T Apply(T v) { return std::rint(v); }
};
// NaN stays: it is not below zero.
template <typename T>
struct Relu {
  static T Apply(T v) { return v < T(0) ? T(0) : v; }
};
template <typename T>
struct Relu6 {
  static T Apply(T v) { return v < T(0) ? T(0) : v > T(6) ? T(6) : v; }
};
template <typename T>
struct Softsign {
  static T Apply(T v) { return v / (T(1) + std::abs(v)); }
};
template <typename T>
struct IsNan {
  static bool Apply(T v) { return v != v; }
};
template <typename T>
struct IsInf {
  static bool Apply(T v) { return std::abs(v) == std::numeric_limits<T>::infinity(); }
};
template <typename T>
struct IsFinite {
  static bool Apply(T v) { return std::abs(v) <= std::numeric_limits<T>::max(); }
};
struct LogicalNot {
  static uint8_t Apply(uint8_t v) { return static_cast<uint8_t>(v ^ 1u); }
};

using SignedTypes = Joined<FloatTypes, TypeList<int32_t, int64_t>>;

template <template <typename> typename F>
UnaryFn Numbers(DType dtype) {
  return EachOf<F, SignedTypes>(dtype);
}
template <template <typename> typename F>
UnaryFn Reals(DType dtype) {
  return EachOf<F, FloatTypes>(dtype);
}
template <template <typename> typename F>
UnaryFn RealsToBool(DType dtype) {
  return LoopFor<FloatTypes>(dtype,
                             []<typename T>() -> UnaryFn { return &UnaryToBool<F<Wide<T>>, T>; });
}

}  // namespace

UnaryFn FindUnaryArithmetic(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kAbs:
      return Numbers<Abs>(dtype);
    case UnaryOp::kNeg:
      return Numbers<Neg>(dtype);
    case UnaryOp::kSign:
      return Numbers<Sign>(dtype);
    case UnaryOp::kSquare:
      return Numbers<Square>(dtype);
    case UnaryOp::kReciprocal:
      return Reals<Reciprocal>(dtype);
    case UnaryOp::kSqrt:
      return Reals<Sqrt>(dtype);
    case UnaryOp::kRsqrt:
      return Reals<Rsqrt>(dtype);
    case UnaryOp::kFloor:
      return Reals<Floor>(dtype);
    case UnaryOp::kCeil:
      return Reals<Ceil>(dtype);
    case UnaryOp::kRound:
      return IsInteger(dtype) ? Numbers<Identity>(dtype) : Reals<Round>(dtype);
    case UnaryOp::kRelu:
      return EachOf<Relu, RealTypes>(dtype);
    case UnaryOp::kRelu6:
      return EachOf<Relu6, RealTypes>(dtype);
    case UnaryOp::kSoftsign:
      return Reals<Softsign>(dtype);
    case UnaryOp::kIsNan:
      return RealsToBool<IsNan>(dtype);
    case UnaryOp::kIsInf:
      return RealsToBool<IsInf>(dtype);
    case UnaryOp::kIsFinite:
      return RealsToBool<IsFinite>(dtype);
    case UnaryOp::kLogicalNot:
      return dtype == DT_BOOL ? &UnaryEach<LogicalNot, uint8_t> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
