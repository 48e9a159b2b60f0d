// SPDX-License-Identifier: Apache-2.0
#include <complex>
#include <string>

#include "ops/math/binary_loop.h"

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

// Equality of integers does not depend on the sign; quantized elements are their integers.
template <template <typename> typename F>
BinaryFn Equality(DType dtype) {
  switch (dtype) {
    case DT_FLOAT:
      return ToBool<F<float>, float>();
    case DT_DOUBLE:
      return ToBool<F<double>, double>();
    case DT_INT8:
    case DT_UINT8:
    case DT_QINT8:
    case DT_QUINT8:
    case DT_BOOL:
      return ToBool<F<uint8_t>, uint8_t>();
    case DT_INT16:
    case DT_UINT16:
      return ToBool<F<uint16_t>, uint16_t>();
    case DT_INT32:
    case DT_UINT32:
    case DT_QINT32:
      return ToBool<F<uint32_t>, uint32_t>();
    case DT_INT64:
    case DT_UINT64:
      return ToBool<F<uint64_t>, uint64_t>();
    case DT_HALF:
      return ToBool<F<float>, Half>();
    case DT_BFLOAT16:
      return ToBool<F<float>, Bfloat16>();
    case DT_COMPLEX64:
      return ToBool<F<std::complex<float>>, std::complex<float>>();
    case DT_COMPLEX128:
      return ToBool<F<std::complex<double>>, std::complex<double>>();
    case DT_STRING:
      return ToBool<F<std::string>, std::string>();
    default:
      return nullptr;
  }
}

template <template <typename> typename F>
BinaryFn Order(DType dtype) {
  switch (dtype) {
    case DT_FLOAT:
      return ToBool<F<float>, float>();
    case DT_DOUBLE:
      return ToBool<F<double>, double>();
    case DT_INT8:
      return ToBool<F<int8_t>, int8_t>();
    case DT_UINT8:
      return ToBool<F<uint8_t>, uint8_t>();
    case DT_INT16:
      return ToBool<F<int16_t>, int16_t>();
    case DT_UINT16:
      return ToBool<F<uint16_t>, uint16_t>();
    case DT_INT32:
      return ToBool<F<int32_t>, int32_t>();
    case DT_UINT32:
      return ToBool<F<uint32_t>, uint32_t>();
    case DT_INT64:
      return ToBool<F<int64_t>, int64_t>();
    case DT_UINT64:
      return ToBool<F<uint64_t>, uint64_t>();
    case DT_HALF:
      return ToBool<F<float>, Half>();
    case DT_BFLOAT16:
      return ToBool<F<float>, Bfloat16>();
    default:
      return nullptr;
  }
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
