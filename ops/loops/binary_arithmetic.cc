// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <complex>
#include <string>

#include "core/dtype.h"
#include "ops/loops/binary.h"
#include "ops/loops/binary_loop.h"
#include "ops/loops/number.h"

namespace millrace::math {
namespace {

template <typename T>
struct Add {
  static T Apply(const T& a, const T& b) { return WrapAdd(a, b); }
};
template <typename T>
struct Sub {
  static T Apply(T a, T b) { return WrapSub(a, b); }
};
template <typename T>
struct Mul {
  static T Apply(T a, T b) { return WrapMul(a, b); }
};
template <typename T>
struct SquaredDifference {
  static T Apply(T a, T b) {
    const T d = WrapSub(a, b);
    if constexpr (kIsComplex<T>) {
      return d * std::conj(d);
    } else {
      return WrapMul(d, d);
    }
  }
};
template <typename T>
struct Divide {
  static T Apply(T a, T b) { return a / b; }
};
template <typename T>
struct Maximum {
  static T Apply(T a, T b) { return a < b ? b : a; }
};
template <typename T>
struct Minimum {
  static T Apply(T a, T b) { return b < a ? b : a; }
};
template <typename T>
struct DivNoNan {
  static T Apply(T a, T b) { return b == T(0) ? T(0) : a / b; }
};
template <typename T>
struct MulNoNan {
  static T Apply(T a, T b) { return b == T(0) ? T(0) : a * b; }
};
template <typename T>
struct Atan2 {
  static T Apply(T a, T b) { return std::atan2(a, b); }
};

template <typename T>
struct FloorDivReal {
  static T Apply(T a, T b) { return std::floor(a / b); }
};
template <typename T>
struct TruncateModReal {
  static T Apply(T a, T b) { return std::fmod(a, b); }
};
// The sign follows the divisor.
template <typename T>
struct FloorModReal {
  static T Apply(T a, T b) {
    const T m = std::fmod(a, b);
    return (m < T(0)) == (b < T(0)) || m == T(0) ? m : m + b;
  }
};
template <typename T>
struct PowReal {
  static T Apply(T a, T b) { return b == T(2) ? a * a : std::pow(a, b); }
};
template <typename T>
struct PowComplex {
  static T Apply(const T& a, const T& b) { return std::pow(a, b); }
};

// Division by -1 is negation: the quotient of the lowest number does not exist.
template <typename T>
bool IsMinusOne(T b) {
  if constexpr (std::is_signed_v<T>) {
    return b == T(-1);
  } else {
    return false;
  }
}
template <typename T>
bool IsNegative(T b) {
  if constexpr (std::is_signed_v<T>) {
    return b < T(0);
  } else {
    return false;
  }
}

template <typename T>
struct TruncateDivInt {
  static bool Legal(T, T b) { return b != 0; }
  static T Apply(T a, T b) { return IsMinusOne(b) ? WrapNeg(a) : static_cast<T>(a / b); }
};
template <typename T>
struct TruncateModInt {
  static bool Legal(T, T b) { return b != 0; }
  static T Apply(T a, T b) { return IsMinusOne(b) ? T(0) : static_cast<T>(a % b); }
};
template <typename T>
struct FloorDivInt {
  static bool Legal(T, T b) { return b != 0; }
  static T Apply(T a, T b) {
    if (IsMinusOne(b)) return WrapNeg(a);
    const T q = static_cast<T>(a / b);
    const bool inexact = static_cast<T>(q * b) != a;
    return inexact && IsNegative(a) != IsNegative(b) ? static_cast<T>(q - 1) : q;
  }
};
template <typename T>
struct FloorModInt {
  static bool Legal(T, T b) { return b != 0; }
  static T Apply(T a, T b) {
    if (IsMinusOne(b)) return T(0);
    const T m = static_cast<T>(a % b);
    return m != 0 && IsNegative(m) != IsNegative(b) ? static_cast<T>(m + b) : m;
  }
};
template <typename T>
struct PowInt {
  static bool Legal(T, T b) { return !IsNegative(b); }
  static T Apply(T base, T exponent) {
    T result = 1;
    while (exponent != 0) {
      if ((exponent & 1) != 0) result = WrapMul(result, base);
      base = WrapMul(base, base);
      exponent = static_cast<T>(exponent >> 1);
    }
    return result;
  }
};

// Sum, difference and product do not depend on the sign.
template <template <typename> typename F>
BinaryFn AnyNumber(DType dtype) {
  return LoopFor<NumberTypes>(
      dtype, []<typename T> { return SameType<F<Wide<Signless<T>>>, Signless<T>>(); });
}
template <template <typename> typename F>
BinaryFn Integers(DType dtype) {
  return SameTypeOf<F, IntegerTypes>(dtype);
}
template <template <typename> typename F>
BinaryFn Reals(DType dtype) {
  return SameTypeOf<F, FloatTypes>(dtype);
}
template <template <typename> typename F>
BinaryFn Complexes(DType dtype) {
  return SameTypeOf<F, ComplexTypes>(dtype);
}

BinaryFn Either(BinaryFn first, BinaryFn second) { return first != nullptr ? first : second; }

}  // namespace

BinaryFn FindArithmetic(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kAdd:
      if (dtype == DT_STRING) return SameType<Add<std::string>, std::string>();
      return AnyNumber<Add>(dtype);
    case BinaryOp::kSub:
      return AnyNumber<Sub>(dtype);
    case BinaryOp::kMul:
      return AnyNumber<Mul>(dtype);
    case BinaryOp::kSquaredDifference:
      return AnyNumber<SquaredDifference>(dtype);
    case BinaryOp::kDiv:
      return Either(Either(Reals<Divide>(dtype), Complexes<Divide>(dtype)),
                    Integers<TruncateDivInt>(dtype));
    case BinaryOp::kFloorDiv:
      return Either(Reals<FloorDivReal>(dtype), Integers<FloorDivInt>(dtype));
    case BinaryOp::kFloorMod:
      return Either(Reals<FloorModReal>(dtype), Integers<FloorModInt>(dtype));
    case BinaryOp::kTruncateMod:
      return Either(Reals<TruncateModReal>(dtype), Integers<TruncateModInt>(dtype));
    case BinaryOp::kPow:
      return Either(Either(Reals<PowReal>(dtype), Complexes<PowComplex>(dtype)),
                    Integers<PowInt>(dtype));
    case BinaryOp::kMaximum:
      return Either(Reals<Maximum>(dtype), Integers<Maximum>(dtype));
    case BinaryOp::kMinimum:
      return Either(Reals<Minimum>(dtype), Integers<Minimum>(dtype));
    case BinaryOp::kDivNoNan:
      return Either(Reals<DivNoNan>(dtype), Complexes<DivNoNan>(dtype));
    case BinaryOp::kMulNoNan:
      return Either(Reals<MulNoNan>(dtype), Complexes<MulNoNan>(dtype));
    case BinaryOp::kAtan2:
      return Reals<Atan2>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
