// SPDX-License-Identifier: Apache-2.0
//
// What tensors on their way allocate besides their elements, counted: nothing for each of them.
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/tensor_coding.h"

// covers: clusters: a tensor of numbers is written and read without an allocation of its own, its
//   elements apart

namespace millrace {
namespace {

using testing::Allocations;

StatusOr<Shape> AShape() { return Shape::Make({2, 1, 3}); }

// Of writing n tensors into one message.
int64_t AllocationsOfWriting(int n) {
  const Tensor tensor = *Tensor::Zeros(DT_FLOAT, *AShape());
  MessageWriter writer;
  Status status;
  const int64_t before = Allocations();
  for (int i = 0; i < n; ++i) {
    status.Update(writer.AddIndexedTensor(1, static_cast<uint64_t>(i), tensor, i % 8 == 7));
  }
  const int64_t allocations = Allocations() - before;
  EXPECT_OK(status);
  return allocations;
}

// Of reading n tensors of one message, their elements apart.
int64_t AllocationsOfReading(int n) {
  const Tensor tensor = *Tensor::Zeros(DT_FLOAT, *AShape());
  MessageWriter writer;
  for (int i = 0; i < n; ++i) {
    EXPECT_OK(writer.AddIndexedTensor(1, static_cast<uint64_t>(i), tensor, false));
  }
  const StatusOr<grpc::ByteBuffer> message = writer.Finish();
  EXPECT_OK(message.status());
  std::vector<DecodedTensor> read;
  read.reserve(static_cast<size_t>(n));
  int64_t reading = 0, making = 0;
  // The first round fills what is recycled.
  for (int round = 0; round < 2; ++round) {
    read.clear();
    const int64_t before = Allocations();
    const Status status =
        DecodeMessage("m", *message, 1, TensorField::kNamedOrIndexed, &read, nullptr);
    reading = Allocations() - before;
    EXPECT_OK(status);
    EXPECT_EQ(read.size(), static_cast<size_t>(n));
  }
  std::vector<Tensor> made;
  made.reserve(static_cast<size_t>(n));
  for (int round = 0; round < 2; ++round) {
    made.clear();
    const int64_t before = Allocations();
    for (int i = 0; i < n; ++i) made.push_back(*Tensor::Allocate(DT_FLOAT, tensor.shape()));
    making = Allocations() - before;
  }
  return reading - making;
}

TEST(TensorCodingAllocationsTest, SmallTensorsShareTheMemoryOfTheirMessage) {
  // Not more for more tensors: their bytes, and what keeps them.
  const int64_t eight = AllocationsOfWriting(8), sixteen = AllocationsOfWriting(16);
  std::printf("allocations of writing 8 tensors: %d, 16: %d\n", static_cast<int>(eight),
              static_cast<int>(sixteen));
  EXPECT_LE(eight, 2);
  EXPECT_LE(sixteen, 2);
}

TEST(TensorCodingAllocationsTest, AReadTensorAllocatesItsElementsAlone) {
  const int64_t one = AllocationsOfReading(1), forty = AllocationsOfReading(40);
  std::printf("allocations of reading 1 tensor, its elements apart: %d, 40: %d\n",
              static_cast<int>(one), static_cast<int>(forty));
  EXPECT_EQ(one, forty);
}

}  // namespace
}  // namespace millrace
