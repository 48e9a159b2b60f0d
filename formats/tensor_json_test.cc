// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_json.h"

#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "core/resource_handle.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

std::string Text(const Tensor& tensor) {
  ordered_json json;
  EXPECT_OK(TensorToJson(tensor, &json));
  return json.dump();
}

TEST(TensorJsonTest, HasDtypeShapeAndFlatValues) {
  EXPECT_EQ(Text(TensorOf<float>({2, 1}, {0.1f, -3})),
            R"({"dtype":"float32","shape":[2,1],"values":[0.1,-3.0]})");
  EXPECT_EQ(Text(Tensor::Scalar<int64_t>(1LL << 62)),
            R"({"dtype":"int64","shape":[],"values":[4611686018427387904]})");
  EXPECT_EQ(Text(TensorOf<uint64_t>({1}, {~uint64_t{0}})),
            R"({"dtype":"uint64","shape":[1],"values":[18446744073709551615]})");
  EXPECT_EQ(Text(TensorOf<int8_t>({2}, {-128, 65})),
            R"({"dtype":"int8","shape":[2],"values":[-128,65]})");
  EXPECT_EQ(Text(TensorOf<bool>({2}, {true, false})),
            R"({"dtype":"bool","shape":[2],"values":[true,false]})");
  EXPECT_EQ(Text(TensorOf<float>({0, 3}, {})), R"({"dtype":"float32","shape":[0,3],"values":[]})");
  EXPECT_EQ(Text(Tensor::Scalar<Half>(ToHalf(1.5f))),
            R"({"dtype":"float16","shape":[],"values":[1.5]})");
  EXPECT_EQ(Text(Tensor::Scalar<Bfloat16>(ToBfloat16(2.0f))),
            R"({"dtype":"bfloat16","shape":[],"values":[2.0]})");
  EXPECT_EQ(Text(Tensor::Scalar<QUInt8>(QUInt8{200})),
            R"({"dtype":"quint8","shape":[],"values":[200]})");
}

TEST(TensorJsonTest, WhatJsonHasNoNumberForIsText) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Text(TensorOf<double>({3}, {inf, -inf, std::numeric_limits<double>::quiet_NaN()})),
            R"({"dtype":"float64","shape":[3],"values":["inf","-inf","nan"]})");
  EXPECT_EQ(
      Text(Tensor::Scalar<std::complex<float>>({0.1f, -std::numeric_limits<float>::infinity()})),
      R"({"dtype":"complex64","shape":[],"values":[[0.1,"-inf"]]})");
  EXPECT_EQ(Text(TensorOf<std::string>({4}, {"a\"b\n", std::string("\0", 1), "\xc3\xa9", "\xc3"})),
            "{\"dtype\":\"string\",\"shape\":[4],\"values\":[\"a\\\"b\\n\",{\"b64\":\"AA==\"},"
            "\"\xc3\xa9\","
            "{\"b64\":\"ww==\"}]}");
}

// Every bit pattern of a float's exponent, and neighbours of awkward values.
TEST(TensorJsonTest, FloatsAreReadBackBitForBit) {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               16777217.0f,
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::min()};
  float power = std::numeric_limits<float>::denorm_min();
  for (int i = 0; i < 276; ++i, power *= 2) {
    values.push_back(power);
    values.push_back(power * 1.1f);
    values.push_back(-power / 3);
  }
  ordered_json json;
  ASSERT_OK(TensorToJson(Tensor::Vector<float>(values), &json));
  const ordered_json read = ordered_json::parse(json.dump());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(static_cast<float>(read.at("values")[i].get<double>()), values[i]) << i;
  }
}

TEST(TensorJsonTest, ResourcesAreRefused) {
  ASSERT_OK_AND_ASSIGN(const Tensor handle, Tensor::Allocate(DT_RESOURCE, Shape()));
  ordered_json json;
  EXPECT_STATUS(TensorToJson(handle, &json), absl::StatusCode::kUnimplemented,
                "JSON has no form for a tensor of resource");
}

TEST(TensorJsonTest, TypesHaveNumpysNames) {
  EXPECT_EQ(JsonTypeName(DT_FLOAT), "float32");
  EXPECT_EQ(JsonTypeName(DT_DOUBLE), "float64");
  EXPECT_EQ(JsonTypeName(DT_STRING), "string");
  EXPECT_EQ(JsonTypeName(DT_VARIANT), "variant");
  EXPECT_EQ(JsonTypeName(RefOf(DT_FLOAT)), "float32_ref");
}

}  // namespace
}  // namespace millrace
