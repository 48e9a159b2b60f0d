// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_SUPERVISOR_FIXTURE_H_
#define MILLRACE_TRAIN_TESTING_SUPERVISOR_FIXTURE_H_

// SupervisorTest: what the tests of the Supervisor share: a small model, a logdir of each test's
// own, which is deleted at its end, and parameter servers (shared_variables.h) that restart.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/supervisor.h"
#include "train/testing/shared_variables.h"

namespace millrace {

// A graph with w = 1, b = 2, a step counter and operations that change them.
struct SupervisedModel {
  SupervisedModel() {
    w = MakeVariable(root.WithName("w"), Const(root, 1.f));
    b = MakeVariable(root.WithName("b"), Const(root, 2.f));
    step = GlobalStep(root);
    count = AssignAddVariableOp(root.WithName("count"), step.handle, Const(root, int64_t{1}));
    grow = AssignAddVariableOp(root.WithName("grow"), w.handle, Const(root, 10.f));
  }
  Scope root;
  Variable w, b, step;
  Operation count, grow;
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest()
      : logdir_(JoinPath(::testing::TempDir(), absl::StrCat("supervisor_", RandomHexName()))) {
    RestartParameterServers();
  }
  ~SupervisorTest() override { FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError(); }

  // Afterwards no variable is initialised.
  void RestartParameterServers() { ASSERT_OK(cluster_.Restart()); }
  std::shared_ptr<Session> Variables() { return cluster_.variables(); }
  SupervisorOptions Options() {
    SupervisorOptions options;
    options.logdir = logdir_;
    options.save_model_period = absl::ZeroDuration();
    options.recovery_wait = absl::Milliseconds(1);
    options.max_wait = absl::Seconds(60);
    return options;
  }
  static float Float(Session* session, Output output) {
    const auto out = session->Run({}, {output});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<float>() : -1;
  }
  static int64_t Step(Session* session, const SupervisedModel& model) {
    const auto out = session->Run({}, {model.step.value});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<int64_t>() : -1;
  }
  // Writes a checkpoint of w = 11, b = 2, step 1 and returns its path.
  std::string SaveOne() {
    SupervisedModel model;
    Supervisor supervisor(model.root, Options());
    const auto session = supervisor.ManagedSession(kSharedTarget);
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Run({}, {}, {model.count, model.grow}).status());
    const auto path = supervisor.saver()->Save(session->get(), supervisor.save_path(), 1);
    EXPECT_OK(path.status());
    EXPECT_OK(supervisor.Stop());
    return path.ok() ? *path : "";
  }

  const std::string logdir_;
  SharedVariables cluster_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_SUPERVISOR_FIXTURE_H_
