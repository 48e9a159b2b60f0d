// SPDX-License-Identifier: Apache-2.0
//
// Files of parameters: defaults, and each text of a refusal.

#include "serving/batching/batch_parameters.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: serving: a file of batching parameters is read with TensorFlow Serving's defaults, and
//   refused with its texts

namespace millrace {
namespace {

TEST(BatchParametersTest, WhatAFileLeavesOutHasTensorFlowServingsDefault) {
  ASSERT_OK_AND_ASSIGN(const BatchParameters parameters, ReadBatchParameters(""));
  EXPECT_EQ(parameters.max_batch_size, 1000);
  EXPECT_EQ(parameters.max_execution_batch_size, 1000);
  EXPECT_EQ(parameters.batch_timeout, absl::ZeroDuration());
  EXPECT_EQ(parameters.max_enqueued_batches, 10);
  EXPECT_EQ(parameters.num_batch_threads, 0);
  EXPECT_FALSE(parameters.pad_variable_length_inputs);
  EXPECT_FALSE(parameters.enable_large_batch_splitting);
  EXPECT_TRUE(parameters.allowed_batch_sizes.empty());
}

TEST(BatchParametersTest, AllThatAFileSaysIsRead) {
  ASSERT_OK_AND_ASSIGN(const BatchParameters parameters, ReadBatchParameters(R"(
      max_batch_size { value: 128 }
      batch_timeout_micros { value: 5 }
      max_enqueued_batches { value: 1000000 }
      num_batch_threads { value: 8 }
      thread_pool_name { value: "pool" }
      allowed_batch_sizes: 2
      allowed_batch_sizes: 32
      pad_variable_length_inputs: true
      enable_large_batch_splitting { value: true }
      max_execution_batch_size { value: 32 })"));
  EXPECT_EQ(parameters.max_batch_size, 128);
  EXPECT_EQ(parameters.batch_timeout, absl::Microseconds(5));
  EXPECT_EQ(parameters.max_enqueued_batches, 1'000'000);
  EXPECT_EQ(parameters.num_batch_threads, 8);
  EXPECT_EQ(parameters.thread_pool_name, "pool");
  EXPECT_EQ(parameters.allowed_batch_sizes, (std::vector<int64_t>{2, 32}));
  EXPECT_TRUE(parameters.pad_variable_length_inputs);
  EXPECT_TRUE(parameters.enable_large_batch_splitting);
  EXPECT_EQ(parameters.max_execution_batch_size, 32);
}

TEST(BatchParametersTest, WithoutSplittingABatchHasTheRowsOfARequest) {
  ASSERT_OK_AND_ASSIGN(
      const BatchParameters parameters,
      ReadBatchParameters("max_batch_size { value: 8 } max_execution_batch_size { value: 4 } "
                          "max_enqueued_batches { value: 0 }"));
  EXPECT_EQ(parameters.max_execution_batch_size, 8);
  EXPECT_EQ(parameters.max_enqueued_batches, 1);  // 0 is taken for 1
}

TEST(BatchParametersTest, WrongFilesAreRefusedWithTensorFlowServingsTexts) {
  const struct {
    const char* file;
    const char* text;
  } kWrong[] = {
      {"max_batch_size { value: 4 } allowed_batch_sizes: 2",
       "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 2; expected 4"},
      {"allowed_batch_sizes: 2",
       "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 2; expected "
       "1000"},
      {"max_batch_size { value: 4 } allowed_batch_sizes: 4 allowed_batch_sizes: 4",
       "allowed_batch_sizes entries must be monotonically increasing"},
      {"allowed_batch_sizes: 0", "allowed_batch_sizes must be positive; was 0"},
      {"max_batch_size { value: 8 } enable_large_batch_splitting { value: true } "
       "max_execution_batch_size { value: 4 } allowed_batch_sizes: 8",
       "Last entry in allowed_batch_sizes must be equal to max_execution_batch_size; last entry "
       "was 8; expected 4"},
      {"max_batch_size { value: 4 } enable_large_batch_splitting { value: true } "
       "max_execution_batch_size { value: 8 }",
       "must be greater than or equal to max_execution_batch_size"},
      {"max_batch_size { value: 0 }", "max_batch_size must be positive; was 0"},
      {"batch_timeout_micros { value: -1 }", "batch_timeout_micros must be non-negative; was -1"},
      {"max_enqueued_batches { value: -1 }", "max_enqueued_batches must be positive; was -1"},
      {"enable_large_batch_splitting { value: true } max_enqueued_batches { value: 0 }",
       "max_enqueued_batches must be positive; was 0"},
      {"num_batch_threads { value: 0 }", "num_batch_threads must be positive; was 0"},
      {"num_batch_threads { value: 1000000 }", "num_batch_threads must be at most"},
      {"max_batch_size: 4", "Error parsing text-format tensorflow.serving.BatchingParameters: 1:"},
  };
  for (const auto& wrong : kWrong) {
    SCOPED_TRACE(wrong.file);
    EXPECT_STATUS(ReadBatchParameters(wrong.file), absl::StatusCode::kInvalidArgument, wrong.text);
  }
}

TEST(BatchParametersTest, BatchesArePaddedToTheNextAllowedSize) {
  EXPECT_EQ(PaddedBatchSize({}, 3), 3);
  EXPECT_EQ(PaddedBatchSize({2, 4}, 1), 2);
  EXPECT_EQ(PaddedBatchSize({2, 4}, 2), 2);
  EXPECT_EQ(PaddedBatchSize({2, 4}, 3), 4);
  EXPECT_EQ(PaddedBatchSize({2, 4}, 5), 5);
}

}  // namespace
}  // namespace millrace
