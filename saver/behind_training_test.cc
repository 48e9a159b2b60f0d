// SPDX-License-Identifier: Apache-2.0
#include "saver/behind_training.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <thread>

#include "core/testing/tensor_testing.h"

namespace millrace {
namespace {

int PriorityOfThisThread() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); }

TEST(BehindTrainingTest, TheWorkYieldsAndItsStepsInFrontDoNot) {
  const int normal = PriorityOfThisThread();
  const auto caller = std::this_thread::get_id();
  int steps = 0;
  EXPECT_OK(RunBehindTraining([&](InFront in_front) -> Status {
    EXPECT_NE(std::this_thread::get_id(), caller);
    EXPECT_EQ(PriorityOfThisThread(), std::max(normal, 5));
    for (int i = 0; i < 1000; ++i) {
      in_front([&] {
        ++steps;
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_EQ(PriorityOfThisThread(), normal);
      });
      EXPECT_EQ(steps, i + 1);
    }
    return absl::OkStatus();
  }));
  EXPECT_EQ(steps, 1000);
  EXPECT_EQ(PriorityOfThisThread(), normal);
}

TEST(BehindTrainingTest, ErrorsAndExceptionsOfTheWorkAndOfItsStepsComeBack) {
  EXPECT_STATUS(RunBehindTraining([](InFront) { return absl::DataLossError("gone"); }),
                absl::StatusCode::kDataLoss, "gone");
  EXPECT_STATUS(RunBehindTraining([](InFront) -> Status { throw std::bad_alloc(); }),
                absl::StatusCode::kResourceExhausted, "out of memory");
  int reached = 0;
  EXPECT_STATUS(RunBehindTraining([&](InFront in_front) -> Status {
                  in_front([] { throw std::runtime_error("in front"); });
                  ++reached;
                  return absl::OkStatus();
                }),
                absl::StatusCode::kInternal, "unexpected exception: in front");
  EXPECT_EQ(reached, 0);
}

}  // namespace
}  // namespace millrace
