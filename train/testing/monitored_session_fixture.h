// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_MONITORED_SESSION_FIXTURE_H_
#define MILLRACE_TRAIN_TESTING_MONITORED_SESSION_FIXTURE_H_

// MonitoredSessionTest: what the tests of MonitoredSession share: parameter servers
// (shared_variables.h), a directory of each test's own, two hooks that record their calls.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/testing/hooked_model.h"
#include "train/testing/recording_hook.h"
#include "train/testing/shared_variables.h"

namespace millrace {

class MonitoredSessionTest : public ::testing::Test {
 protected:
  MonitoredSessionTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("monitored_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~MonitoredSessionTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  SessionCreatorOptions ChiefOptions() const {
    SessionCreatorOptions options;
    options.target = kSharedTarget;
    options.recovery_wait = absl::Milliseconds(1);
    options.max_wait = absl::Seconds(60);
    return options;
  }
  StatusOr<std::unique_ptr<MonitoredSession>> Open(const HookedModel& model,
                                                   std::vector<SessionRunHook*> hooks,
                                                   int max_recoveries = 20) const {
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    options.max_recoveries = max_recoveries;
    options.recovery_wait = absl::Milliseconds(1);
    return MonitoredSession::Open(
        model.root, std::make_unique<ChiefSessionCreator>(model.root, creator_options),
        std::move(options));
  }
  std::string Calls() {
    const std::string text = absl::StrJoin(calls_, " ");
    calls_.clear();
    return text;
  }
  static int64_t Step(MonitoredSession* session, const HookedModel& model) {
    const auto out = session->raw_session()->Run({}, {model.step.value});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<int64_t>() : -1;
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  SharedVariables servers_;
  SessionCreatorOptions creator_options = ChiefOptions();
  std::vector<std::string> calls_;
  RecordingHook a_{"a", &calls_}, b_{"b", &calls_};
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_MONITORED_SESSION_FIXTURE_H_
