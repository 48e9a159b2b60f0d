// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/wire_tensor.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

// What a receiver makes of the bytes of a TensorProto.
StatusOr<Tensor> Take(absl::string_view bytes, int64_t* splat_bytes_left) {
  StatusOr<WireTensor> wire = WireTensor::For(WireTensor::Form::kProto, DT_INVALID, Shape(),
                                              static_cast<int64_t>(bytes.size()));
  EXPECT_OK(wire);
  if (!wire.ok()) return wire.status();
  if (!bytes.empty()) std::memcpy(wire->mutable_bytes().data(), bytes.data(), bytes.size());
  return wire->TakeTensor(splat_bytes_left);
}

std::string Times(int64_t n, absl::string_view bytes) {
  std::string result;
  for (int64_t i = 0; i < n; ++i) result.append(bytes.data(), bytes.size());
  return result;
}

// A field of `number` that holds `bytes`.
std::string FieldOf(uint64_t number, absl::string_view bytes) {
  std::string result;
  PutVarint64(&result, number << 3 | 2);
  PutVarint64(&result, bytes.size());
  result.append(bytes.data(), bytes.size());
  return result;
}

// So many ids from -3 on, and then `last`.
Tensor Ids(int64_t count, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i + 1 < count; ++i) ids.push_back(i - 3);
  ids.push_back(last);
  return Tensor::Vector<int64_t>(ids);
}

// covers: clusters: ids travel over links as int32 where all fit, and arrive as the int64 they were
TEST(WireTensorTest, IdsTakeHalfOfTheirBytesWhenAllFit) {
  using Form = WireTensor::Form;
  constexpr int64_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const struct {
    std::string name;
    Tensor tensor;
    Form form;
    int64_t num_bytes;
  } cases[] = {
      {"1 KiB", Ids(128, 7), Form::kNarrow, 512},
      {"less", Ids(127, 7), Form::kRaw, 127 * 8},
      {"the largest int32", Ids(1000, kMost), Form::kNarrow, 4000},
      {"one more", Ids(1000, kMost + 1), Form::kRaw, 8000},
      {"the least int32", Ids(1000, kLeast), Form::kNarrow, 4000},
      {"one less", Ids(1000, kLeast - 1), Form::kRaw, 8000},
      {"2^32", Ids(513, int64_t{1} << 32), Form::kRaw, 513 * 8},
      {"the largest int64", Ids(512, std::numeric_limits<int64_t>::max()), Form::kRaw, 4096},
      {"the least int64", Ids(512, std::numeric_limits<int64_t>::min()), Form::kRaw, 4096},
      {"1 MiB", Ids(131'072, 7), Form::kNarrow, 524'288},
      {"more", Ids(131'073, 7), Form::kRaw, 1'048'584},
      {"a matrix", *Tensor::Zeros(DT_INT64, Shape{2, 64}), Form::kNarrow, 512},
      {"no elements", *Tensor::Zeros(DT_INT64, Shape{1000, 0}), Form::kRaw, 0},
      {"a scalar", Tensor::Scalar<int64_t>(7), Form::kRaw, 8},
      {"int32", *Tensor::Zeros(DT_INT32, Shape{1000}), Form::kRaw, 4000},
      {"uint64", *Tensor::Zeros(DT_UINT64, Shape{1000}), Form::kRaw, 8000},
      {"float", *Tensor::Zeros(DT_FLOAT, Shape{1000}), Form::kRaw, 4000},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK_AND_ASSIGN(const WireTensor sent, WireTensor::Of(c.tensor));
    EXPECT_EQ(sent.form(), c.form);
    EXPECT_EQ(sent.num_bytes(), c.num_bytes);
    EXPECT_EQ(sent.dtype(), c.tensor.dtype());
    EXPECT_EQ(sent.shape(), c.tensor.shape());
    ASSERT_OK_AND_ASSIGN(WireTensor received, WireTensor::For(sent.form(), sent.dtype(),
                                                              sent.shape(), sent.num_bytes()));
    ASSERT_EQ(received.mutable_bytes().size(), sent.bytes().size());
    if (!sent.bytes().empty()) {
      std::memcpy(received.mutable_bytes().data(), sent.bytes().data(), sent.bytes().size());
    }
    int64_t left = 0;
    ASSERT_OK_AND_ASSIGN(const Tensor tensor, received.TakeTensor(&left));
    ExpectTensorEqual(tensor, c.tensor);
  }
}

TEST(WireTensorTest, SizesThatAreNotThoseOfTheFormAreRefused) {
  using Form = WireTensor::Form;
  const struct {
    Form form;
    DType dtype;
    Shape shape;
    int64_t num_bytes;
    std::string message;
  } cases[] = {
      {Form::kRaw, DT_FLOAT, Shape{2}, 4, "a tensor float[2] must have 8 bytes, got 4"},
      {Form::kRaw, DT_STRING, Shape{2}, 4, "must be of a dtype of fixed size, got string"},
      {Form::kNarrow, DT_INT64, Shape{2}, 16, "a narrow tensor int64[2] must have 8 bytes, got 16"},
      {Form::kNarrow, DT_INT64, Shape{2}, -8, "must have 8 bytes, got -8"},
      {Form::kNarrow, DT_INT64, Shape{0}, 4, "must have 0 bytes, got 4"},
      {Form::kNarrow, DT_INT32, Shape{2}, 8, "narrow bytes must be of int64, got int32"},
      {Form::kNarrow, DT_DOUBLE, Shape{2}, 8, "narrow bytes must be of int64, got double"},
      {Form::kNarrow, DT_INT64, Shape{131'073}, 524'292,
       "a narrow tensor must have at most 1048576 bytes, got int64[131073]"},
      {Form::kNarrow, DT_INT64, Shape{1 << 19, 1 << 20}, 0, "must have at most 1048576 bytes"},
      {Form::kProto, DT_INVALID, Shape(), -1, "a TensorProto must be below 2 GiB, got -1 bytes"},
      {Form::kProto, DT_INVALID, Shape(), int64_t{1} << 31, "must be below 2 GiB"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_STATUS(WireTensor::For(c.form, c.dtype, c.shape, c.num_bytes),
                  absl::StatusCode::kInvalidArgument, c.message);
  }
}

TEST(WireTensorTest, StringsTakeNoneOfTheBound) {
  tensorflow::TensorProto proto;
  proto.set_dtype(tensorflow::DT_STRING);
  proto.mutable_tensor_shape()->add_dim()->set_size(10'000);
  for (int i = 0; i < 10'000; ++i) proto.add_string_val(i % 2 == 0 ? "" : "abc");
  int64_t left = 0;
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, Take(proto.SerializeAsString(), &left));
  EXPECT_EQ(tensor.num_elements(), 10'000);
  EXPECT_EQ(left, 0);
}

TEST(WireTensorTest, AVariantTakesWhatItsTensorsNeed) {
  tensorflow::TensorProto proto;
  proto.set_dtype(tensorflow::DT_VARIANT);
  proto.mutable_tensor_shape();
  auto* const variant = proto.add_variant_val();
  variant->set_type_name("a name of no message");
  variant->set_metadata("\xff\xff");
  auto* const inner = variant->add_tensors();
  inner->set_dtype(tensorflow::DT_FLOAT);
  inner->mutable_tensor_shape()->add_dim()->set_size(1);
  inner->mutable_tensor_shape()->mutable_dim(0)->set_name("a name");
  inner->add_float_val(-1);
  const std::string bytes = proto.SerializeAsString();
  int64_t left = 10'000;
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, Take(bytes, &left));
  EXPECT_EQ(tensor.num_elements(), 1);
  EXPECT_LT(left, 9'500);
  EXPECT_GT(left, 9'000);
  left = 300;
  EXPECT_STATUS(Take(bytes, &left), absl::StatusCode::kResourceExhausted,
                "Link: bytes of messages within a tensor, beyond what they have come in, must be "
                "at most 300 (ServerLimits::max_splat_bytes), got ");
  EXPECT_EQ(left, 300);
}

// covers: clusters: a stranger's tensor of a few megabytes does not take gigabytes on a link while
//   it is decoded
TEST(WireTensorTest, MessagesWithinATensorAreCountedBeforeTheyAreParsed) {
  constexpr int64_t kMany = 1'000'000;
  const struct {
    std::string name, bytes;
  } cases[] = {
      {"tensors of a variant", FieldOf(15, Times(kMany, FieldOf(3, "")))},
      {"variants", Times(kMany, FieldOf(15, ""))},
      {"handles", Times(kMany, FieldOf(14, ""))},
      {"shapes of a handle", FieldOf(14, Times(kMany, FieldOf(6, "")))},
      {"dimensions", FieldOf(2, Times(kMany, FieldOf(2, "")))},
      {"fields of no release", Times(kMany, FieldOf(30, ""))},
      {"the same within a tensor of a variant",
       FieldOf(15, FieldOf(3, FieldOf(2, Times(kMany, FieldOf(2, "")))))},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    int64_t left = int64_t{32} << 20;
    EXPECT_STATUS(Take(c.bytes, &left), absl::StatusCode::kResourceExhausted,
                  "(ServerLimits::max_splat_bytes)");
  }
}

TEST(WireTensorTest, BytesOfNoTensorProtoAreRefused) {
  std::string nested;
  for (int i = 0; i < 200; ++i) nested = FieldOf(i % 2 == 0 ? 3 : 15, nested);
  const struct {
    std::string name, bytes;
  } cases[] = {
      {"an end within a tag", "\x82"},
      {"an end within a number", std::string("\x08\x80", 2)},
      {"an end within eight bytes", std::string("\x09\x00", 2)},
      {"an end within a length", std::string("\x22\x80", 2)},
      {"a length beyond the end",
       "\x22\x05"
       "abc"},
      {"a group", std::string("\x0b\x0c", 2)},
      {"two hundred messages within each other", nested},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    int64_t left = int64_t{32} << 20;
    EXPECT_STATUS(Take(c.bytes, &left), absl::StatusCode::kInvalidArgument,
                  "the bytes of a tensor must be a TensorProto");
  }
}

}  // namespace
}  // namespace millrace
