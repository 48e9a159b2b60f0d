// SPDX-License-Identifier: Apache-2.0
//
// RunWithRecovery and RunStepsWithRecovery: new sessions after a lost one.
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/supervisor.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"

// covers: training: the count of recoveries restarts after progress; only the lost step runs again,
//   with its batch
// covers: training: variables that another client resets are restored from the last checkpoint and
//   every task trains on

namespace millrace {
namespace {

using absl::StatusCode;
using Model = SupervisedModel;

TEST_F(SupervisorTest, ALostParameterServerMeansANewSessionFromTheCheckpoint) {
  Model model;
  Supervisor supervisor(model.root, Options());
  std::vector<float> began_with;
  const Status status =
      RunWithRecovery(&supervisor, kSharedTarget, 5, [&](Session* session) -> Status {
        began_with.push_back(Float(session, model.w.value));
        if (began_with.size() == 3) return absl::OkStatus();
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.grow}).status());
        MR_RETURN_IF_ERROR(supervisor.saver()->Save(session, supervisor.save_path(), 1).status());
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.grow}).status());  // lost
        RestartParameterServers();
        return began_with.size() == 1 ? absl::UnavailableError("ps is gone")
                                      : absl::AbortedError("ps restarted");
      });
  EXPECT_OK(status);
  EXPECT_EQ(began_with, (std::vector<float>{1, 11, 21}));
  EXPECT_EQ(cluster_.sessions_made(), 3);
}

TEST_F(SupervisorTest, RecoveryGivesUpAfterItsLastSession) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::UnavailableError("ps is gone");
                                }),
                StatusCode::kUnavailable, "ps is gone; gave up after 2 new sessions");
  EXPECT_EQ(runs, 3);
}

TEST_F(SupervisorTest, ProgressResetsTheCountOfRecoveries) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_OK(RunWithRecovery(&supervisor, kSharedTarget, 2, [&](Session* session) -> Status {
    if (++runs == 8) return absl::OkStatus();
    // Every other session makes a step.
    if (runs % 2 == 0) MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
    return absl::UnavailableError("ps is gone");
  }));
  EXPECT_EQ(runs, 8);
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::UnavailableError("ps is gone");
                                }),
                StatusCode::kUnavailable, "gave up after 2 new sessions");
  EXPECT_EQ(runs, 11);
}

TEST_F(SupervisorTest, OnlyTheStepThatWasLostIsRunAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int sessions = 0, tries = 0;
  std::vector<int> steps;
  int next = 0;
  EXPECT_OK(RunStepsWithRecovery(
      &supervisor, kSharedTarget, 5,
      [&](Session*) {
        ++sessions;
        return absl::OkStatus();
      },
      [&](Session* session) -> StatusOr<bool> {
        if (++tries == 3) return absl::AbortedError("ps restarted");
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
        steps.push_back(next++);
        return next < 5;
      }));
  EXPECT_EQ(sessions, 2);
  EXPECT_EQ(tries, 6);
  EXPECT_EQ(steps, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_F(SupervisorTest, VariablesThatWereResetAreRestoredAndTrainingGoesOn) {
  const std::string path = SaveOne();
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_OK(RunWithRecovery(&supervisor, kSharedTarget, 5, [&](Session* session) -> Status {
    if (++runs == 1) {
      RestartParameterServers();
      MR_ASSIGN_OR_RETURN(const auto other, NewSession({.target = kSharedTarget}));
      MR_RETURN_IF_ERROR(other->Extend(model.root));
      return other->Run({}, {}, {model.grow}).status();
    }
    EXPECT_EQ(Float(session, model.w.value), 11);
    return absl::OkStatus();
  }));
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(supervisor.restored_checkpoint(), path);
}

TEST_F(SupervisorTest, OtherErrorsAreNotTriedAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::InvalidArgumentError("NaN");
                                }),
                StatusCode::kInvalidArgument, "NaN");
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace millrace
