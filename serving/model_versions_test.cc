// SPDX-License-Identifier: Apache-2.0
//
// Versions that come, fail, serve and go.
#include "serving/model_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "serving/servable.h"
#include "serving/testing/model_versions_testing.h"
#include "serving/version_plan.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// covers: serving: what is not there is refused in TensorFlow Serving's words
TEST_F(ModelVersionsTest, RefusalsHaveTensorFlowServingsTexts) {
  StartWithOne();
  const auto expect = [](const Status& status, absl::StatusCode code, absl::string_view text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), text);
  };
  expect(versions_->Get("n").status(), absl::StatusCode::kNotFound,
         "Servable not found for request: Latest(n)");
  expect(versions_->Get("n", 1).status(), absl::StatusCode::kNotFound,
         "Servable not found for request: Specific(n, 1)");
  expect(versions_->Get("m", 7).status(), absl::StatusCode::kNotFound,
         "Servable not found for request: Specific(m, 7)");
  expect(versions_->GetLabelled("m", "stable").status(), absl::StatusCode::kInvalidArgument,
         "Unrecognized servable version label: stable");
  expect(versions_->GetLabelled("n", "stable").status(), absl::StatusCode::kInvalidArgument,
         "Unrecognized servable version label: stable");
  expect(versions_->GetStatus("n").status(), absl::StatusCode::kNotFound,
         "Could not find any versions of model n");
  expect(versions_->GetStatus("m", 7).status(), absl::StatusCode::kNotFound,
         "Could not find version 7 of model m");
  ASSERT_OK_AND_ASSIGN(const ModelVersions::Pin pin, versions_->Get("m", 1));
  EXPECT_EQ(pin.version(), 1);
  EXPECT_EQ(static_cast<FakeServable*>(pin.servable())->key(), "m/1");
  EXPECT_STATUS(ModelVersions::Create({}).status(), absl::StatusCode::kInvalidArgument, "loader");
}

// A look-up is one lock of the thread's place; the end of a pin that is not the last one is none.
TEST_F(ModelVersionsTest, RequestTakesOneLock) {
  StartWithOne();
  EXPECT_EQ(Latest("m"), 1);  // gives the thread its number
  const int64_t before = MutexLockCountForTesting();
  EXPECT_EQ(Latest("m"), 1);
  EXPECT_EQ(MutexLockCountForTesting() - before, 1);
}

// covers: serving: a version is swapped in under requests: none fails, none sees an older version
//   after a newer one, none waits for loading or warm-up
TEST_F(ModelVersionsTest, NewVersionTakesOverUnderRequests) {
  StartWithOne();
  const auto loading = std::make_shared<Door>(), warming = std::make_shared<Door>();
  world_->Set("m/2", {.at_load = loading, .at_warm_up = warming});
  Write("m", 2);

  std::atomic<int> num_wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      for (int64_t last = 1; last < 2; std::this_thread::yield()) {
        const StatusOr<ModelVersions::Pin> pin = versions_->Get("m");
        if (!pin.ok() || pin->version() < last ||
            static_cast<FakeServable*>(pin->servable())->key() !=
                absl::StrCat("m/", pin->version())) {
          ++num_wrong;
          return;
        }
        last = pin->version();
      }
    });
  }
  versions_->Poll();
  loading->AwaitVisitor();
  EXPECT_EQ(StatusOf("m", 2).state, State::kLoading);
  EXPECT_EQ(Latest("m"), 1);
  loading->Open();
  warming->AwaitVisitor();
  EXPECT_EQ(StatusOf("m", 2).state, State::kWarming);
  EXPECT_EQ(Latest("m"), 1);
  warming->Open();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_wrong, 0);
  AwaitVersion("m", 1, State::kEnded);
  EXPECT_EQ(Latest("m"), 2);
  EXPECT_EQ(world_->num_alive(), 1);
}

// covers: serving: a bad version never replaces a good one; it is tried again after the interval,
// at
//   once when its files change, and anew when it comes back
TEST_F(ModelVersionsTest, BadVersionNeverReplacesGoodOneAndIsRetried) {
  StartWithOne();
  world_->Set("m/2", {.load = absl::DataLossError("saved_model.pb is cut off")});
  Write("m", 2);
  versions_->Poll();
  const int most_tries = 1 + PlanOptions().max_retries;
  for (int tries = 1; tries < most_tries; ++tries) {
    AwaitVersion("m", 2, State::kWaiting, [&] { return world_->num_loads("m/2") == tries; });
    EXPECT_EQ(Latest("m"), 1);
    EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kDataLoss,
                  "Model 'm' version 2: saved_model.pb is cut off");
    clock_.Advance(PlanOptions().retry_interval);
  }
  AwaitVersion("m", 2, State::kFailed, [&] { return world_->num_loads("m/2") == most_tries; });
  clock_.Advance(absl::Hours(1));
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 2).state, State::kFailed);
  EXPECT_EQ(world_->num_loads("m/2"), most_tries);
  EXPECT_EQ(Latest("m"), 1);

  // Other files: all tries again.
  Write("m", 2, "longer than before");
  versions_->Poll();
  AwaitVersion("m", 2, State::kWaiting, [&] { return world_->num_loads("m/2") == most_tries + 1; });
  // While it waits for the next try, too; it is good now.
  world_->Set("m/2", {});
  Write("m", 2, "longer than before, and once more");
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
  AwaitVersion("m", 1, State::kEnded);
  EXPECT_EQ(world_->num_loads("m/2"), most_tries + 2);
  EXPECT_OK(StatusOf("m", 2).status);
}

TEST_F(ModelVersionsTest, FailedVersionThatComesBackBeginsAnew) {
  ModelVersions::Options options = Options();
  options.plan.max_retries = 0;
  StartWithOne(std::move(options));
  world_->Set("m/2", {.load = absl::DataLossError("cut off")});
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kFailed);
  Delete("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kEnded);
  world_->Set("m/2", {});
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
}

TEST_F(ModelVersionsTest, FailedWarmUpAndThrownExceptionFailTheVersion) {
  ModelVersions::Options options = Options();
  options.plan.max_retries = 0;
  StartWithOne(std::move(options));
  world_->Set("m/2", {.warm_up = absl::InvalidArgumentError("record 3")});
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kFailed);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kInvalidArgument,
                "Model 'm' version 2: warm-up: record 3");
  EXPECT_EQ(world_->num_alive(), 1);

  Script script;
  script.throws = true;
  world_->Set("m/3", script);
  Write("m", 3);
  versions_->Poll();
  AwaitVersion("m", 3, State::kFailed);
  EXPECT_STATUS(StatusOf("m", 3).status, absl::StatusCode::kInternal, "a loader that throws");
  EXPECT_EQ(Latest("m"), 1);
}

// covers: serving: an unload waits for the requests of its version, and none of them frees it
TEST_F(ModelVersionsTest, UnloadWaitsForPinsAndFreesElsewhere) {
  StartWithOne();
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin first, versions_->Get("m"));
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin second, versions_->Get("m", 1));
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 1, State::kDraining);
  EXPECT_EQ(Latest("m"), 2);
  EXPECT_STATUS(versions_->Get("m", 1).status(), absl::StatusCode::kNotFound, "Specific(m, 1)");
  first = ModelVersions::Pin();
  EXPECT_EQ(StatusOf("m", 1).state, State::kDraining);
  EXPECT_EQ(static_cast<FakeServable*>(second.servable())->key(), "m/1");
  EXPECT_EQ(world_->num_alive(), 2);
  second = ModelVersions::Pin();
  AwaitVersion("m", 1, State::kEnded);
  EXPECT_EQ(world_->num_alive(), 1);
  EXPECT_FALSE(world_->ThisThreadFreed());
}

// covers: serving: a version that is wanted again waits until its old instance is gone
TEST_F(ModelVersionsTest, VersionThatIsWantedAgainWaitsUntilItIsGone) {
  StartWithOne();
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin pin, versions_->Get("m"));
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 1, State::kDraining);
  // Back to version 1: version 2 stands in meanwhile.
  Delete("m", 2);
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 1).state, State::kDraining);
  EXPECT_EQ(Latest("m"), 2);
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  pin = ModelVersions::Pin();
  AwaitVersion("m", 1, State::kAvailable);
  AwaitVersion("m", 2, State::kEnded);
  EXPECT_EQ(world_->num_loads("m/1"), 2);
  EXPECT_EQ(Latest("m"), 1);
  // Never two of version 1 at a time: at most one of each version.
  EXPECT_EQ(world_->most_alive(), 2);
}

TEST_F(ModelVersionsTest, ResourcesFirstUnloadsBeforeItLoads) {
  ModelVersions::Options options = Options();
  options.plan.order = LoadOrder::kResourcesFirst;
  StartWithOne(std::move(options));
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin pin, versions_->Get("m"));
  Write("m", 2);
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 1).state, State::kDraining);
  EXPECT_EQ(StatusOf("m", 2).state, State::kQueued);
  pin = ModelVersions::Pin();
  AwaitVersion("m", 2, State::kAvailable);
  EXPECT_EQ(world_->most_alive(), 1);
}

// covers: serving: of several models the good ones serve; each bad one says why
TEST_F(ModelVersionsTest, BadModelsTouchNoOther) {
  Write("good", 1);
  Write("broken", 1);
  EXPECT_OK(fs_->CreateDirectory(BasePath("empty")));
  world_->Set("broken/1", {.load = absl::DataLossError("cut off")});
  Start();
  EXPECT_OK(versions_->SetModels(
      {Settings("absent"), Settings("broken"), Settings("empty"), Settings("good")}));
  versions_->Poll();
  const auto missing = versions_->WaitUntilTried(absl::InfiniteFuture());
  ASSERT_EQ(missing.size(), 3u);
  EXPECT_EQ(missing[0].first, "absent");
  EXPECT_STATUS(missing[0].second, absl::StatusCode::kNotFound, "Model 'absent': base path");
  EXPECT_EQ(missing[1].first, "broken");
  EXPECT_STATUS(missing[1].second, absl::StatusCode::kDataLoss,
                "Model 'broken' version 1: cut off");
  EXPECT_EQ(missing[2].first, "empty");
  EXPECT_STATUS(missing[2].second, absl::StatusCode::kNotFound, "has no version");
  EXPECT_EQ(Latest("good"), 1);
}

TEST_F(ModelVersionsTest, WaitEndsAtItsDeadline) {
  Start();
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  // Nobody polls.
  const auto missing = versions_->WaitUntilTried(clock_.Now());
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_STATUS(missing[0].second, absl::StatusCode::kUnavailable, "not looked for yet");
  EXPECT_FALSE(versions_->WaitFor(
      "m", [](auto) { return false; }, clock_.Now()));
}

TEST_F(ModelVersionsTest, BasePathThatVanishesLeavesWhatIsLoaded) {
  StartWithOne();
  EXPECT_OK(fs_->RenameFile(BasePath("m"), BasePath("elsewhere")));
  versions_->Poll();
  EXPECT_EQ(Latest("m"), 1);
  ASSERT_EQ(versions_->GetStatuses().size(), 1u);
  EXPECT_STATUS(versions_->GetStatuses()[0].source, absl::StatusCode::kNotFound, "base path");
  // One that is there and empty unloads.
  EXPECT_OK(fs_->CreateDirectory(BasePath("m")));
  versions_->Poll();
  AwaitVersion("m", 1, State::kEnded);
  EXPECT_OK(versions_->GetStatuses()[0].source);
}

TEST_F(ModelVersionsTest, VersionThatIsNotCompleteIsInTheStatus) {
  StartWithOne();
  EXPECT_OK(fs_->CreateDirectory(JoinPath(BasePath("m"), "2")));
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 2).state, State::kFound);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kNotFound, "must have files");
  EXPECT_EQ(Latest("m"), 1);
  ASSERT_OK_AND_ASSIGN(const auto statuses, versions_->GetStatus("m"));
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[0].version, 2);
  EXPECT_EQ(statuses[1].version, 1);
  EXPECT_EQ(statuses[1].num_bytes, 100);
}

// covers: serving: the status remembers a bounded number of ended versions and counts the others
TEST_F(ModelVersionsTest, StatusForgetsTheOldestEndedVersions) {
  ModelVersions::Options options = Options();
  options.most_ended = 2;
  StartWithOne(std::move(options));
  for (int64_t version = 2; version <= 5; ++version) {
    Write("m", version);
    versions_->Poll();
    AwaitVersion("m", version, State::kAvailable);
    AwaitVersion("m", version - 1, State::kEnded);
  }
  ASSERT_EQ(versions_->GetStatuses().size(), 1u);
  const ModelStatus status = versions_->GetStatuses()[0];
  std::vector<int64_t> numbers;
  for (const VersionStatus& v : status.versions) numbers.push_back(v.version);
  // The available one and two that have ended; versions 1 and 2 are forgotten.
  EXPECT_THAT(numbers, ElementsAre(5, 4, 3));
  EXPECT_EQ(status.num_forgotten, 2);
}

TEST_F(ModelVersionsTest, ThreadPollsEachPeriod) {
  Write("m", 1);
  ModelVersions::Options options = Options();
  options.poll_period = absl::Seconds(7);
  Start(std::move(options));
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  AwaitVersion("m", 1, State::kAvailable);
  // The thread that polls and the one that waits for times.
  clock_.AwaitWaiters(2);
  Write("m", 2);
  clock_.Advance(absl::Seconds(7));
  AwaitVersion("m", 2, State::kAvailable);
}

}  // namespace
}  // namespace millrace
