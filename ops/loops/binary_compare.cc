// SPDX-License-Identifier: Apache-2.0
#include <complex>
#include <string>

#include "core/dtype.h"
#include "ops/loops/binary.h"
#include "ops/loops/binary_loop.h"
#include "ops/loops/number.h"

namespace millrace::math {
namespace {

template <typename T>
struct Equal {
  static bool Apply(const T& a, const T& b) { return a == b; }
};
template <typename T>
struct NotEqual {
  static bool Apply(const T& a, const T& b) { return a != b; }
};
template <typename T>
struct Less {
  static bool Apply(T a, T b) { return a < b; }
};
template <typename T>
struct LessEqual {
  static bool Apply(T a, T b) { return a <= b; }
};
template <typename T>
struct Greater {
  static bool Apply(T a, T b) { return a > b; }
};
template <typename T>
struct GreaterEqual {
  static bool Apply(T a, T b) { return a >= b; }
};
// On the bytes of bools: without branches, so that the loop is vectorised.
struct LogicalAnd {
  static uint8_t Apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a & b); }
};
struct LogicalOr {
  static uint8_t Apply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); }
};

// Quantized elements and bools are compared as the integers that they are.
DType AsInteger(DType dtype) {
  switch (dtype) {
    case DT_BOOL:
    case DT_QINT8:
    case DT_QUINT8:
      return DT_UINT8;
    case DT_QINT32:
      return DT_UINT32;
    default:
      return dtype;
  }
}

template <template <typename> typename F>
BinaryFn Equality(DType dtype) {
  return LoopFor<Joined<NumberTypes, TypeList<std::string>>>(
      AsInteger(dtype), []<typename T> { return ToBool<F<Wide<Signless<T>>>, Signless<T>>(); });
}

template <template <typename> typename F>
BinaryFn Order(DType dtype) {
  return LoopFor<RealTypes>(dtype, []<typename T> { return ToBool<F<Wide<T>>, T>(); });
}

}  // namespace

BinaryFn FindComparison(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kEqual:
      return Equality<Equal>(dtype);
    case BinaryOp::kNotEqual:
      return Equality<NotEqual>(dtype);
    case BinaryOp::kLess:
      return Order<Less>(dtype);
    case BinaryOp::kLessEqual:
      return Order<LessEqual>(dtype);
    case BinaryOp::kGreater:
      return Order<Greater>(dtype);
    case BinaryOp::kGreaterEqual:
      return Order<GreaterEqual>(dtype);
    case BinaryOp::kLogicalAnd:
      return dtype == DT_BOOL ? SameType<LogicalAnd, uint8_t>() : nullptr;
    case BinaryOp::kLogicalOr:
      return dtype == DT_BOOL ? SameType<LogicalOr, uint8_t>() : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace millrace::math
