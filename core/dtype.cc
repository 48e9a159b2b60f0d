// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <immintrin.h>

#include <array>
#include <bit>
#include <cmath>

#include "absl/strings/match.h"

namespace millrace {
namespace {

enum class Kind { kInvalid, kFloating, kComplex, kInteger, kQuantized, kBool, kObject };

struct Row {
  const char* name;
  const char* enum_name;
  size_t size;
  Kind kind;
};

// Indexed by the number of the type.
constexpr std::array<Row, kNumDTypes + 1> kRows = {{
    {"INVALID", "DT_INVALID", 0, Kind::kInvalid},
    {"float", "DT_FLOAT", 4, Kind::kFloating},
    {"double", "DT_DOUBLE", 8, Kind::kFloating},
    {"int32", "DT_INT32", 4, Kind::kInteger},
    {"uint8", "DT_UINT8", 1, Kind::kInteger},
    {"int16", "DT_INT16", 2, Kind::kInteger},
    {"int8", "DT_INT8", 1, Kind::kInteger},
    {"string", "DT_STRING", 0, Kind::kObject},
    {"complex64", "DT_COMPLEX64", 8, Kind::kComplex},
    {"int64", "DT_INT64", 8, Kind::kInteger},
    {"bool", "DT_BOOL", 1, Kind::kBool},
    {"qint8", "DT_QINT8", 1, Kind::kQuantized},
    {"quint8", "DT_QUINT8", 1, Kind::kQuantized},
    {"qint32", "DT_QINT32", 4, Kind::kQuantized},
    {"bfloat16", "DT_BFLOAT16", 2, Kind::kFloating},
    {"qint16", "DT_QINT16", 2, Kind::kQuantized},
    {"quint16", "DT_QUINT16", 2, Kind::kQuantized},
    {"uint16", "DT_UINT16", 2, Kind::kInteger},
    {"complex128", "DT_COMPLEX128", 16, Kind::kComplex},
    {"half", "DT_HALF", 2, Kind::kFloating},
    {"resource", "DT_RESOURCE", 0, Kind::kObject},
    {"variant", "DT_VARIANT", 0, Kind::kObject},
    {"uint32", "DT_UINT32", 4, Kind::kInteger},
    {"uint64", "DT_UINT64", 8, Kind::kInteger},
}};

struct Alias {
  const char* name;
  DType type;
};

// NumPy's names where TensorFlow's short name is another.
constexpr Alias kAliases[] = {{"float16", DT_HALF}, {"float32", DT_FLOAT}, {"float64", DT_DOUBLE}};

// Null when `type`, which is not a reference, is not a type at all.
const Row* FindRow(DType type) {
  const int number = static_cast<int>(type);
  if (number < 0 || number > kNumDTypes) return nullptr;
  return &kRows[static_cast<size_t>(number)];
}

Kind KindOf(DType type) {
  const Row* row = FindRow(type);
  return row == nullptr ? Kind::kInvalid : row->kind;
}

}  // namespace

StatusOr<DType> DTypeFromNumber(int number) {
  const int base = number > kRefOffset ? number - kRefOffset : number;
  if (base < 0 || base > kNumDTypes) {
    return absl::InvalidArgumentError(
        absl::StrCat("DType: the number must be that of a TensorFlow 1.15 type, got ", number));
  }
  return static_cast<DType>(number);
}

std::string DTypeName(DType type) {
  const Row* row = FindRow(WithoutRef(type));
  if (row == nullptr) return absl::StrCat("dtype(", static_cast<int>(type), ")");
  return IsRef(type) ? absl::StrCat(row->name, "_ref") : row->name;
}

std::string DTypeEnumName(DType type) {
  const Row* row = FindRow(WithoutRef(type));
  if (row == nullptr) return absl::StrCat("DType(", static_cast<int>(type), ")");
  return IsRef(type) ? absl::StrCat(row->enum_name, "_REF") : row->enum_name;
}

StatusOr<DType> DTypeFromName(absl::string_view name) {
  absl::string_view base = name;
  bool ref = false;
  for (absl::string_view suffix : {"_ref", "_REF"}) {
    if (absl::EndsWith(base, suffix)) {
      base.remove_suffix(suffix.size());
      ref = true;
      break;
    }
  }
  for (int number = 1; number <= kNumDTypes; ++number) {
    const Row& row = kRows[static_cast<size_t>(number)];
    if (base == row.name || base == row.enum_name) {
      const DType type = static_cast<DType>(number);
      return ref ? RefOf(type) : type;
    }
  }
  for (const Alias& alias : kAliases) {
    if (base == alias.name) return ref ? RefOf(alias.type) : alias.type;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "DType: the name must be one like 'float', 'int32' or 'DT_FLOAT', got '", name, "'"));
}

size_t DTypeSize(DType type) {
  const Row* row = FindRow(WithoutRef(type));
  return row == nullptr ? 0 : row->size;
}

bool IsMemcopyable(DType type) { return DTypeSize(type) != 0; }
bool IsFloating(DType type) { return KindOf(WithoutRef(type)) == Kind::kFloating; }
bool IsComplex(DType type) { return KindOf(WithoutRef(type)) == Kind::kComplex; }
bool IsInteger(DType type) { return KindOf(WithoutRef(type)) == Kind::kInteger; }

float ToFloat(Half value) { return _cvtsh_ss(value.bits); }

Half ToHalf(float value) { return Half{_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }

float ToFloat(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

Bfloat16 ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    // Rounding could carry a NaN into infinity: keep the top of its payload and make it quiet.
    return Bfloat16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  const uint32_t tie_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return Bfloat16{static_cast<uint16_t>((bits + tie_to_even) >> 16)};
}

}  // namespace millrace
