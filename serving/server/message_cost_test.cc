// SPDX-License-Identifier: Apache-2.0
#include "serving/server/message_cost.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/tensor.pb.h"

// covers: serving: what a message will take in memory is bounded before it is read

namespace millrace {
namespace {

using tensorflow::serving::ClassificationRequest;
using tensorflow::serving::PredictRequest;

constexpr int kCount = 1000;

template <typename Message>
Status Check(const Message& message, int64_t most) {
  return CheckMessageCost(*Message::descriptor(), message.SerializeAsString(), most);
}

// What is around the elements takes less than `kAround`.
constexpr int64_t kAround = 1000;

TEST(MessageCostTest, EmptyTextsAndMessagesTakeMoreThanTheirBytes) {
  PredictRequest texts;
  tensorflow::TensorProto& tensor = (*texts.mutable_inputs())["x"];
  for (int i = 0; i < kCount; ++i) tensor.add_string_val("");
  EXPECT_LT(texts.ByteSizeLong(), 3u * kCount);
  // 40 bytes each.
  EXPECT_OK(Check(texts, 40 * kCount + kAround));
  EXPECT_STATUS(Check(texts, 40 * kCount), absl::StatusCode::kInvalidArgument,
                "a tensorflow.serving.PredictRequest may take at most 40000 bytes of memory");

  ClassificationRequest examples;
  for (int i = 0; i < kCount; ++i) {
    examples.mutable_input()->mutable_example_list()->add_examples();
  }
  // 48 bytes each, and 8 for the one field.
  EXPECT_OK(Check(examples, 56 * kCount + kAround));
  EXPECT_STATUS(Check(examples, 56 * kCount), absl::StatusCode::kInvalidArgument, "at most 56000");
}

TEST(MessageCostTest, NumbersTakeTheirSize) {
  PredictRequest request;
  tensorflow::TensorProto& tensor = (*request.mutable_inputs())["x"];
  for (int i = 0; i < kCount; ++i) {
    tensor.add_int64_val(1);  // a byte that takes 8
    tensor.add_int_val(-1);   // ten bytes that take 4
    tensor.add_float_val(1);  // 4
  }
  EXPECT_OK(Check(request, 16 * kCount + kAround));
  EXPECT_STATUS(Check(request, 16 * kCount), absl::StatusCode::kInvalidArgument, "at most 16000");

  PredictRequest content;
  (*content.mutable_inputs())["x"].set_tensor_content(std::string(100'000, '\xff'));
  EXPECT_OK(Check(content, 100'000 + kAround));
}

TEST(MessageCostTest, WhatIsUnknownCountsAndGroupsAreRefused) {
  // Field 100 as a number: protobuf keeps it.
  std::string unknown;
  for (int i = 0; i < kCount; ++i) unknown += std::string("\xa0\x06\x01", 3);
  EXPECT_STATUS(CheckMessageCost(*PredictRequest::descriptor(), unknown, 16 * kCount - 1),
                absl::StatusCode::kInvalidArgument, "may take at most");
  EXPECT_OK(CheckMessageCost(*PredictRequest::descriptor(), unknown, 16 * kCount));
  EXPECT_STATUS(CheckMessageCost(*PredictRequest::descriptor(), "\x0b\x0c", 1000),
                absl::StatusCode::kInvalidArgument, "without groups");
}

// Protobuf keeps it as unknown: a text of its own each.
TEST(MessageCostTest, ANumberThatIsWrittenAsATextTakesMoreThanItsBytes) {
  std::string dtypes;  // "0a 00" is field 1, dtype, with a length
  for (int i = 0; i < kCount; ++i) dtypes += std::string("\x0a\x00", 2);
  const auto& tensor = *tensorflow::TensorProto::descriptor();
  EXPECT_STATUS(CheckMessageCost(tensor, dtypes, 56 * kCount - 1),
                absl::StatusCode::kInvalidArgument, "may take at most");
  EXPECT_OK(CheckMessageCost(tensor, dtypes, 56 * kCount));
  // A text that is written as a number.
  std::string contents;
  for (int i = 0; i < kCount; ++i) contents += std::string("\x20\x01", 2);
  EXPECT_STATUS(CheckMessageCost(tensor, contents, 16 * kCount - 1),
                absl::StatusCode::kInvalidArgument, "may take at most");
}

TEST(MessageCostTest, AnEntryOfAMapHoldsItsValueFromTheBeginning) {
  std::string entries;  // without a value
  for (int i = 0; i < kCount; ++i) entries += std::string("\x12\x00", 2);
  EXPECT_STATUS(CheckMessageCost(*PredictRequest::descriptor(), entries, 300 * kCount),
                absl::StatusCode::kInvalidArgument, "may take at most");
}

TEST(MessageCostTest, WhatGrpcReceivedMayTakeSomeTimesItsBytes) {
  const auto& type = *PredictRequest::descriptor();
  const auto check = [&](size_t count, absl::string_view each) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes.append(each.data(), each.size());
    // In two pieces.
    const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, 7)), grpc::Slice(bytes.substr(7))};
    return CheckReceivedCost(type, grpc::ByteBuffer(slices, 2));
  };
  // Empty entries of output_filter, 40 bytes each: 2 million are 80 MB, and may be 64 MiB + 32 MB.
  const absl::string_view filter("\x1a\x00", 2);
  EXPECT_OK(check(100'000, filter));
  EXPECT_OK(check(2'000'000, filter));
  EXPECT_STATUS(check(4'000'000, filter), absl::StatusCode::kInvalidArgument, "may take at most");
}

TEST(MessageCostTest, WhatIsNoMessagePasses) {
  for (const char* const bytes :
       {"\x0a", "\x0a\x05x", "\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"}) {
    EXPECT_OK(CheckMessageCost(*PredictRequest::descriptor(), bytes, 1000)) << bytes;
  }
  EXPECT_OK(CheckMessageCost(*PredictRequest::descriptor(), "", 0));
}

}  // namespace
}  // namespace millrace
