// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/cord.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(DTypeTest, NumbersOfTensorFlowAndTheirReferencesAreTypesOthersAreNot) {
  for (int number = 0; number <= 23; ++number) EXPECT_OK(DTypeFromNumber(number)) << number;
  for (int number = 101; number <= 123; ++number) EXPECT_OK(DTypeFromNumber(number)) << number;
  for (const int number : {-1, 24, 99, 100, 124, 201, std::numeric_limits<int>::min(),
                           std::numeric_limits<int>::max()}) {
    EXPECT_STATUS(DTypeFromNumber(number), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("got ", number));
  }
}

TEST(DTypeTest, NamesAreThoseOfTensorFlowAndReadBack) {
  const struct {
    DType type;
    const char* name;
    const char* enum_name;
    size_t size;
  } kCases[] = {
      {DT_FLOAT, "float", "DT_FLOAT", 4},       {DT_DOUBLE, "double", "DT_DOUBLE", 8},
      {DT_INT32, "int32", "DT_INT32", 4},       {DT_UINT8, "uint8", "DT_UINT8", 1},
      {DT_INT16, "int16", "DT_INT16", 2},       {DT_INT8, "int8", "DT_INT8", 1},
      {DT_STRING, "string", "DT_STRING", 0},    {DT_COMPLEX64, "complex64", "DT_COMPLEX64", 8},
      {DT_INT64, "int64", "DT_INT64", 8},       {DT_BOOL, "bool", "DT_BOOL", 1},
      {DT_QINT8, "qint8", "DT_QINT8", 1},       {DT_QUINT8, "quint8", "DT_QUINT8", 1},
      {DT_QINT32, "qint32", "DT_QINT32", 4},    {DT_BFLOAT16, "bfloat16", "DT_BFLOAT16", 2},
      {DT_QINT16, "qint16", "DT_QINT16", 2},    {DT_QUINT16, "quint16", "DT_QUINT16", 2},
      {DT_UINT16, "uint16", "DT_UINT16", 2},    {DT_COMPLEX128, "complex128", "DT_COMPLEX128", 16},
      {DT_HALF, "half", "DT_HALF", 2},          {DT_RESOURCE, "resource", "DT_RESOURCE", 0},
      {DT_VARIANT, "variant", "DT_VARIANT", 0}, {DT_UINT32, "uint32", "DT_UINT32", 4},
      {DT_UINT64, "uint64", "DT_UINT64", 8},
  };
  EXPECT_EQ(std::size(kCases), static_cast<size_t>(kNumDTypes));
  for (const auto& c : kCases) {
    EXPECT_EQ(DTypeName(c.type), c.name);
    EXPECT_EQ(DTypeEnumName(c.type), c.enum_name);
    EXPECT_EQ(DTypeSize(c.type), c.size) << c.name;
    EXPECT_EQ(IsMemcopyable(c.type), c.size > 0) << c.name;
    EXPECT_EQ(DTypeFromName(c.name).value_or(DT_INVALID), c.type);
    EXPECT_EQ(DTypeFromName(c.enum_name).value_or(DT_INVALID), c.type);
    const DType ref = RefOf(c.type);
    EXPECT_TRUE(IsRef(ref));
    EXPECT_EQ(WithoutRef(ref), c.type);
    EXPECT_EQ(DTypeName(ref), std::string(c.name) + "_ref");
    EXPECT_EQ(DTypeEnumName(ref), std::string(c.enum_name) + "_REF");
    EXPECT_EQ(DTypeFromName(DTypeName(ref)).value_or(DT_INVALID), ref);
    EXPECT_EQ(DTypeFromName(DTypeEnumName(ref)).value_or(DT_INVALID), ref);
  }
  EXPECT_EQ(DTypeFromName("float32").value_or(DT_INVALID), DT_FLOAT);
  EXPECT_EQ(DTypeFromName("float64").value_or(DT_INVALID), DT_DOUBLE);
  EXPECT_EQ(DTypeFromName("float16").value_or(DT_INVALID), DT_HALF);
}

TEST(DTypeTest, UnknownNamesAreRefused) {
  for (const char* name : {"", "Float", "DT_", "float_", "_ref", "INVALID", "DT_INVALID", "int"}) {
    EXPECT_STATUS(DTypeFromName(name), absl::StatusCode::kInvalidArgument, name);
  }
}

TEST(DTypeTest, NoTypeIsOfTwoKinds) {
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType type = static_cast<DType>(number);
    EXPECT_LE(IsFloating(type) + IsComplex(type) + IsInteger(type), 1) << DTypeName(type);
    EXPECT_EQ(IsFloating(type), IsFloating(RefOf(type)));
    EXPECT_EQ(IsTrainable(type), IsFloating(type) || IsComplex(type));
  }
  EXPECT_TRUE(IsFloating(DT_HALF) && IsFloating(DT_BFLOAT16) && IsFloating(DT_DOUBLE));
  EXPECT_TRUE(IsInteger(DT_UINT64) && IsInteger(DT_INT8) && !IsInteger(DT_BOOL));
  EXPECT_FALSE(IsInteger(DT_QINT32));
}

// The value of a half by its definition in IEEE 754.
float HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

TEST(HalfTest, EveryPatternConvertsByDefinitionAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float want = HalfByDefinition(half.bits);
    const float got = ToFloat(half);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_TRUE(std::isnan(ToFloat(ToHalf(got)))) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
      ASSERT_EQ(ToHalf(got).bits, half.bits);
    }
  }
}

TEST(HalfTest, RoundsToNearestAndTiesToEven) {
  const struct {
    float value;
    uint16_t bits;
  } kCases[] = {
      {2049.0f, 0x6800},  // between 2048 and 2050: even
      {2051.0f, 0x6802},  // between 2050 and 2052: even
      {2049.01f, 0x6801},  {65504.0f, 0x7bff}, {65519.9f, 0x7bff},   {65520.0f, 0x7c00},
      {-65520.0f, 0xfc00}, {0x1p-25f, 0x0000}, {0x1.8p-25f, 0x0001}, {0.1f, 0x2e66},
  };
  for (const auto& c : kCases) EXPECT_EQ(ToHalf(c.value).bits, c.bits) << c.value;
}

TEST(Bfloat16Test, RoundsToNearestAndTiesToEven) {
  const struct {
    float value;
    uint16_t bits;
  } kCases[] = {
      {1.0f, 0x3f80},
      {-2.0f, 0xc000},
      {0x1.01p0f, 0x3f80},      // half-way between 0x3f80 and 0x3f81: even
      {0x1.03p0f, 0x3f82},      // half-way between 0x3f81 and 0x3f82: even
      {0x1.010002p0f, 0x3f81},  // just above half-way
      {3.14159265f, 0x4049},
      {std::numeric_limits<float>::max(), 0x7f80},
      {std::numeric_limits<float>::infinity(), 0x7f80},
      {-0.0f, 0x8000},
  };
  for (const auto& c : kCases) EXPECT_EQ(ToBfloat16(c.value).bits, c.bits) << c.value;
}

TEST(Bfloat16Test, EveryPatternSurvivesARoundTripAndNanStaysNan) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Bfloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(ToFloat(value))))) << bits;
    } else {
      ASSERT_EQ(ToBfloat16(ToFloat(value)).bits, bits);
    }
  }
}

TEST(StatusTest, PrefixAndSuffixKeepCodeAndPayloads) {
  absl::Status status = absl::NotFoundError("no such file");
  status.SetPayload("type", absl::Cord("payload"));
  const absl::Status got = Suffixed(Prefixed("Saver", status), "; try again");
  EXPECT_EQ(got.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(got.message(), "Saver: no such file; try again");
  EXPECT_EQ(got.GetPayload("type"), absl::Cord("payload"));
  EXPECT_OK(Prefixed("Saver", absl::OkStatus()));
  EXPECT_OK(Suffixed(absl::OkStatus(), "; try again"));
}

}  // namespace
}  // namespace millrace
