// SPDX-License-Identifier: Apache-2.0
#include "serving/server/message_cost.h"

#include <cstdint>
#include <string>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/predict.pb.h"

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
  // 64 bytes each.
  EXPECT_OK(Check(examples, 64 * kCount + kAround));
  EXPECT_STATUS(Check(examples, 64 * kCount), absl::StatusCode::kInvalidArgument, "at most 64000");
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

TEST(MessageCostTest, WhatIsNoMessagePasses) {
  for (const char* const bytes :
       {"\x0a", "\x0a\x05x", "\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"}) {
    EXPECT_OK(CheckMessageCost(*PredictRequest::descriptor(), bytes, 1000)) << bytes;
  }
  EXPECT_OK(CheckMessageCost(*PredictRequest::descriptor(), "", 0));
}

}  // namespace
}  // namespace millrace
