// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_DTYPE_H_
#define MILLRACE_CORE_DTYPE_H_

// DType: the element types of tensors, with TensorFlow's numbers.
//
// All 23 types of TensorFlow 1.15, and the reference forms (number + 100) that
// old graphs use for variables. A number from a file is checked by
// DTypeFromNumber() before it becomes a DType.
//
// C++ element types: CppType<DT_X> and DTypeOf<T>. Half, Bfloat16 and the
// quantized types are storage of the right width; arithmetic converts.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

enum DType : int {
  DT_INVALID = 0,
  DT_FLOAT = 1,
  DT_DOUBLE = 2,
  DT_INT32 = 3,
  DT_UINT8 = 4,
  DT_INT16 = 5,
  DT_INT8 = 6,
  DT_STRING = 7,
  DT_COMPLEX64 = 8,
  DT_INT64 = 9,
  DT_BOOL = 10,
  DT_QINT8 = 11,
  DT_QUINT8 = 12,
  DT_QINT32 = 13,
  DT_BFLOAT16 = 14,
  DT_QINT16 = 15,
  DT_QUINT16 = 16,
  DT_UINT16 = 17,
  DT_COMPLEX128 = 18,
  DT_HALF = 19,
  DT_RESOURCE = 20,
  DT_VARIANT = 21,
  DT_UINT32 = 22,
  DT_UINT64 = 23,
  DT_FLOAT_REF = 101,  // every type has a reference form: RefOf(type)
};

inline constexpr int kNumDTypes = 23;
inline constexpr int kRefOffset = 100;

constexpr bool IsRef(DType type) { return static_cast<int>(type) > kRefOffset; }
constexpr DType RefOf(DType type) {
  return IsRef(type) ? type : static_cast<DType>(static_cast<int>(type) + kRefOffset);
}
constexpr DType WithoutRef(DType type) {
  return IsRef(type) ? static_cast<DType>(static_cast<int>(type) - kRefOffset) : type;
}

// InvalidArgument unless `number` is one of the 23 types or a reference form (or 0, DT_INVALID).
StatusOr<DType> DTypeFromNumber(int number);

// "float", "int32", "float_ref": TensorFlow's short names. Used in messages.
std::string DTypeName(DType type);
// How a dtype stands in the messages of core/status.h.
inline std::string MessageText(DType type) { return DTypeName(type); }
// "DT_FLOAT": the name of the enum value.
std::string DTypeEnumName(DType type);
// Reads short names ("float", "int32", also "float32", "float64", "string") and enum names.
StatusOr<DType> DTypeFromName(absl::string_view name);

// Bytes of one element; 0 for DT_STRING, DT_RESOURCE, DT_VARIANT and DT_INVALID.
size_t DTypeSize(DType type);

// Elements are plain bytes (everything but string, resource, variant).
bool IsMemcopyable(DType type);
bool IsFloating(DType type);  // half, bfloat16, float, double
bool IsComplex(DType type);   // complex64, complex128
bool IsInteger(DType type);   // the 8 integer types, not bool, not quantized
// Floating or complex: types through which gradients flow.
inline bool IsTrainable(DType type) { return IsFloating(type) || IsComplex(type); }

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct QInt8 {
  int8_t value;
};
struct QUInt8 {
  uint8_t value;
};
struct QInt16 {
  int16_t value;
};
struct QUInt16 {
  uint16_t value;
};
struct QInt32 {
  int32_t value;
};

// Round to nearest, ties to even; NaN stays NaN.
float ToFloat(Half value);
float ToFloat(Bfloat16 value);
Half ToHalf(float value);
Bfloat16 ToBfloat16(float value);

struct ResourceHandle;  // core/resource_handle.h
struct Variant;         // core/resource_handle.h

// DTypeOf<float> == DT_FLOAT. Undefined for types that are no element type.
template <typename T>
struct DTypeOfImpl;
#define MR_ELEMENT_TYPE(cpp_type, dtype)  \
  template <>                             \
  struct DTypeOfImpl<cpp_type> {          \
    static constexpr DType value = dtype; \
  };
MR_ELEMENT_TYPE(float, DT_FLOAT)
MR_ELEMENT_TYPE(double, DT_DOUBLE)
MR_ELEMENT_TYPE(int32_t, DT_INT32)
MR_ELEMENT_TYPE(uint8_t, DT_UINT8)
MR_ELEMENT_TYPE(int16_t, DT_INT16)
MR_ELEMENT_TYPE(int8_t, DT_INT8)
MR_ELEMENT_TYPE(std::string, DT_STRING)
MR_ELEMENT_TYPE(std::complex<float>, DT_COMPLEX64)
MR_ELEMENT_TYPE(int64_t, DT_INT64)
MR_ELEMENT_TYPE(bool, DT_BOOL)
MR_ELEMENT_TYPE(QInt8, DT_QINT8)
MR_ELEMENT_TYPE(QUInt8, DT_QUINT8)
MR_ELEMENT_TYPE(QInt32, DT_QINT32)
MR_ELEMENT_TYPE(Bfloat16, DT_BFLOAT16)
MR_ELEMENT_TYPE(QInt16, DT_QINT16)
MR_ELEMENT_TYPE(QUInt16, DT_QUINT16)
MR_ELEMENT_TYPE(uint16_t, DT_UINT16)
MR_ELEMENT_TYPE(std::complex<double>, DT_COMPLEX128)
MR_ELEMENT_TYPE(Half, DT_HALF)
MR_ELEMENT_TYPE(ResourceHandle, DT_RESOURCE)
MR_ELEMENT_TYPE(Variant, DT_VARIANT)
MR_ELEMENT_TYPE(uint32_t, DT_UINT32)
MR_ELEMENT_TYPE(uint64_t, DT_UINT64)
#undef MR_ELEMENT_TYPE

template <typename T>
inline constexpr DType DTypeOf = DTypeOfImpl<T>::value;

}  // namespace millrace

#endif  // MILLRACE_CORE_DTYPE_H_
