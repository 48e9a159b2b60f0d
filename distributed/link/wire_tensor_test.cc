// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/wire_tensor.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/coding.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

// What a receiver makes of the bytes of a TensorProto.
StatusOr<Tensor> Take(absl::string_view bytes, int64_t* splat_bytes_left) {
  StatusOr<WireTensor> wire = WireTensor::ForProto(static_cast<int64_t>(bytes.size()));
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
