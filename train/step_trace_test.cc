// SPDX-License-Identifier: Apache-2.0
//
// Traces of steps that a program is asked for from outside: by its environment, by a signal.
#include "train/step_trace.h"

#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "train/gradient_descent.h"
#include "train/hooks/monitored_training_session.h"
#include "train/testing/hooked_model.h"
#include "train/train.h"

// covers: clusters: steps of a program that runs are traced when its environment or a signal asks
//   for it

namespace millrace {
namespace {

class StepTraceTest : public ::testing::Test {
 protected:
  StepTraceTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("trace_", RandomHexName()))) {
    ::setenv("MILLRACE_TRACE_DIR", dir_.c_str(), 1);
    ::unsetenv("MILLRACE_TRACE");
  }
  ~StepTraceTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }
  std::vector<std::string> Written() const {
    return fs_->GetChildren(dir_).value_or(std::vector<std::string>());
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
};

TEST_F(StepTraceTest, TrainTracesWhatASignalAsksForEachTime) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
  const Output loss = Square(root.WithName("loss"), Sub(root, w.value, x));
  const Operation step = GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(root, loss);
  ::setenv("MILLRACE_TRACE", "100:2", 1);  // never by the step here
  int batches = 0;
  const auto trained = Train(root, step,
                             {.data =
                                  [&] {
                                    ++batches;
                                    if (batches == 3 || batches == 8) ::raise(SIGUSR2);
                                    return Feeds{{x, Tensor::Scalar(1.0f)}};
                                  },
                              .steps = 12,
                              .loss = loss});
  ASSERT_OK(trained);
  EXPECT_EQ(Written(), (std::vector<std::string>{"trace-local-3-4.json", "trace-local-8-9.json"}));
  const auto text = ReadFileToString(fs_, JoinPath(dir_, "trace-local-3-4.json"));
  ASSERT_OK(text);
  EXPECT_TRUE(absl::StrContains(*text, "\"traceEvents\"")) << *text;
  EXPECT_TRUE(absl::StrContains(*text, "loss")) << *text;
}

TEST_F(StepTraceTest, AMonitoredSessionTracesTheStepsOfTheVariableOnce) {
  ::setenv("MILLRACE_TRACE", "2:3", 1);
  for (int session = 0; session < 2; ++session) {
    HookedModel model;
    auto monitored = MonitoredTrainingSession(model.root, {});
    ASSERT_OK(monitored);
    for (int i = 0; i < 8; ++i) ASSERT_OK((*monitored)->Run({}, {model.count}).status());
    ASSERT_OK((*monitored)->Close());
  }
  EXPECT_EQ(Written(), std::vector<std::string>{"trace-local-3-5.json"});
}

TEST_F(StepTraceTest, AVariableThatIsNoneIsRefused) {
  for (const char* const text : {"x", "1", "1:", ":5", "-1:5", "1:0", "1:1001", "1:2:3"}) {
    ::setenv("MILLRACE_TRACE", text, 1);
    const Status status = StepTrace::OfEnvironment().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("got '", text, "'"))) << status;
    HookedModel model;
    EXPECT_EQ(MonitoredTrainingSession(model.root, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
