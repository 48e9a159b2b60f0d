// SPDX-License-Identifier: Apache-2.0
//
// Loads that take long, models that rest, and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/paced_thread.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "serving/model_versions.h"
#include "serving/servable.h"
#include "serving/testing/model_versions_testing.h"

namespace millrace {
namespace {

// covers: serving: a load that is no longer wanted is cancelled
TEST_F(ModelVersionsTest, LoadThatIsNotWantedAnyMoreIsCancelled) {
  StartWithOne();
  const auto door = std::make_shared<Door>();
  world_->Set("m/2", {.at_load = door});
  Write("m", 2);
  versions_->Poll();
  door->AwaitVisitor();
  Delete("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kEnded);
  EXPECT_EQ(Latest("m"), 1);
  EXPECT_EQ(world_->num_alive(), 1);
}

TEST_F(ModelVersionsTest, LoadThatTakesTooLongIsToldToEnd) {
  ModelVersions::Options options = Options();
  options.plan.max_load_time = absl::Minutes(5);
  options.plan.max_retries = 0;
  StartWithOne(std::move(options));
  const auto door = std::make_shared<Door>();
  world_->Set("m/2", {.at_load = door});
  Write("m", 2);
  versions_->Poll();
  door->AwaitVisitor();
  clock_.Advance(absl::Minutes(5));
  AwaitVersion("m", 2, State::kFailed);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kDeadlineExceeded,
                "Model 'm' version 2: its load takes longer than 5m");
  EXPECT_EQ(Latest("m"), 1);
}

// covers: serving: a load that hangs fails its version, holds up nobody, and is tried again only
//   when it has come back; what it brings is dropped
TEST_F(ModelVersionsTest, LoadThatHangsIsLeftBehindAndItsResultIsDropped) {
  ModelVersions::Options options = Options();
  options.plan.max_loads = 1;
  options.plan.max_left_behind = 1;
  options.plan.max_load_time = absl::Minutes(5);
  options.plan.retry_interval = absl::Minutes(1);
  Start(std::move(options));
  Script hangs;
  hangs.heeds_cancellation = false;
  std::vector<std::shared_ptr<Door>> doors;
  for (const char* model : {"a", "b", "c"}) {
    hangs.at_load = doors.emplace_back(std::make_shared<Door>());
    world_->Set(absl::StrCat(model, "/1"), hangs);
    Write(model, 1);
  }
  EXPECT_OK(versions_->SetModels({Settings("a"), Settings("b"), Settings("c")}));
  versions_->Poll();
  // One after the other: of equal ones the first model's comes first.
  for (int i = 0; i < 2; ++i) {
    doors[static_cast<size_t>(i)]->AwaitVisitor();
    clock_.Advance(absl::Minutes(5));
    AwaitVersion(i == 0 ? "a" : "b", 1, State::kFailed);
  }
  // Both threads hang: the third has none, and nobody waits for it.
  const auto missing = versions_->WaitUntilTried(absl::InfiniteFuture());
  ASSERT_EQ(missing.size(), 3u);
  EXPECT_STATUS(missing[0].second, absl::StatusCode::kDeadlineExceeded, "takes longer than 5m");
  EXPECT_STATUS(missing[2].second, absl::StatusCode::kUnavailable,
                "Model 'c': version 1 waits until one of 2 loads that hang has ended");
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(StatusOf("a", 1).state, State::kFailed);
  EXPECT_EQ(world_->num_loads("a/1"), 1);
  // The next tries do not hang.
  world_->Set("a/1", {});
  world_->Set("c/1", {});
  doors[0]->Open();
  AwaitVersion("c", 1, State::kAvailable);
  // The load of long ago failed an hour ago.
  AwaitVersion("a", 1, State::kAvailable);
  EXPECT_EQ(world_->num_loads("a/1"), 2);
  EXPECT_EQ(world_->num_loads("c/1"), 1);
  // What the first load brought is gone: one instance of each.
  EXPECT_EQ(world_->num_alive(), 2);
  doors[1]->Open();
}

// covers: serving: a version whose files change while it loads is not served; it is tried again
// when
//   they have settled
TEST_F(ModelVersionsTest, FilesThatChangeDuringTheLoadFailIt) {
  StartWithOne();
  const auto door = std::make_shared<Door>();
  world_->Set("m/2", {.at_load = door});
  Write("m", 2);
  versions_->Poll();
  door->AwaitVisitor();
  Write("m", 2, "another model");
  world_->Set("m/2", {});
  door->Open();
  // The first try fails, and waits for its interval, or for other files than it began with.
  AwaitVersion("m", 2, State::kWaiting);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kUnavailable,
                "Model 'm' version 2: its files must stay as they are, and changed while");
  EXPECT_EQ(Latest("m"), 1);
  EXPECT_EQ(world_->num_alive(), 1);
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
  EXPECT_EQ(world_->num_loads("m/2"), 2);
}

// The "nice" of all threads of this process, by their ids.
std::map<std::string, int> NiceOfThreads() {
  std::map<std::string, int> nice;
  const StatusOr<std::vector<std::string>> ids =
      FileSystem::Posix()->GetChildren("/proc/self/task");
  EXPECT_OK(ids.status());
  if (!ids.ok()) return nice;
  for (const std::string& id : *ids) {
    // Threads end while this reads; what the files have is not their size.
    std::ifstream file(absl::StrCat("/proc/self/task/", id, "/stat"));
    std::string text;
    if (!std::getline(file, text)) continue;
    // Field 19; the second is the name, which ends with the last parenthesis.
    const size_t end = text.rfind(')');
    if (end == std::string::npos || end + 2 > text.size()) continue;
    const std::vector<std::string> fields = absl::StrSplit(text.substr(end + 2), ' ');
    int value;
    if (fields.size() > 16 && absl::SimpleAtoi(fields[16], &value)) nice[id] = value;
  }
  return nice;
}

// covers: serving: until something serves, models load with the priority of the process; then,
//   unless they are paced, with a lower one
TEST_F(ModelVersionsTest, OnlyLoadsBesideRequestsHaveALowPriority) {
  constexpr int kLowest = 19;
  const int own = ::getpriority(PRIO_PROCESS, 0);
  if (own == kLowest) GTEST_SKIP() << "this process has the lowest";
  Mutex mu;
  std::map<std::string, int> seen;  // by version
  ModelVersions::Options options = Options();
  options.load_cpu_share = 1;
  options.nice = kLowest;
  options.loader = [&, load = options.loader](const VersionToLoad& version,
                                              CancellationManager* cancellation) {
    const int nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
    {
      MutexLock lock(&mu);
      seen[KeyOf(version.directory)] = nice;
    }
    return load(version, cancellation);
  };
  StartWithOne(std::move(options));
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
  MutexLock lock(&mu);
  EXPECT_EQ(seen["m/1"], own);
  EXPECT_EQ(seen["m/2"], kLowest);
}

// covers: serving: loads beside versions that serve are paced and keep the priority of the process;
//   those that nobody can ask for yet are not paced
TEST_F(ModelVersionsTest, LoadsBesideRequestsArePaced) {
  struct Seen {
    bool is_paced_thread, is_on;
    int nice;
  };
  const LoadPace* const pace = LoadPace::OfProcess();
  const int own = ::getpriority(PRIO_PROCESS, 0);
  Mutex mu;
  std::map<std::string, Seen> seen;  // by version
  ModelVersions::Options options = Options();
  options.load_cpu_share = 0.5;
  options.loader = [&, load = options.loader](const VersionToLoad& version,
                                              CancellationManager* cancellation) {
    const Seen now = {IsPacedThread(), pace->is_on(), ::getpriority(PRIO_PROCESS, 0)};
    {
      MutexLock lock(&mu);
      seen[KeyOf(version.directory)] = now;
    }
    return load(version, cancellation);
  };
  EXPECT_FALSE(pace->is_on());
  StartWithOne(std::move(options));
  EXPECT_TRUE(pace->is_on());
  Write("m", 2);
  versions_->Poll();
  AwaitVersion("m", 2, State::kAvailable);
  versions_->SetNobodyAsks(true);
  EXPECT_FALSE(pace->is_on());
  versions_->SetNobodyAsks(false);
  EXPECT_TRUE(pace->is_on());
  versions_.reset();
  EXPECT_FALSE(pace->is_on());
  MutexLock lock(&mu);
  EXPECT_TRUE(seen["m/1"].is_paced_thread);
  EXPECT_FALSE(seen["m/1"].is_on);
  EXPECT_EQ(seen["m/1"].nice, own);
  EXPECT_TRUE(seen["m/2"].is_paced_thread);
  EXPECT_TRUE(seen["m/2"].is_on);
  EXPECT_EQ(seen["m/2"].nice, own);

  for (const double wrong : {0.0, -1.0, 1.01, std::nan("")}) {
    ModelVersions::Options other = Options();
    other.load_cpu_share = wrong;
    EXPECT_STATUS(ModelVersions::Create(std::move(other)).status(),
                  absl::StatusCode::kInvalidArgument, "load_cpu_share must be 0.01 to 1");
  }
}

// covers: serving: a loader that computes makes no thread of low priority that requests then need
TEST_F(ModelVersionsTest, ThreadsOfTheArenaKeepThePriorityOfTheProcess) {
  constexpr int kLowest = 19;
  if (::getpriority(PRIO_PROCESS, 0) == kLowest) GTEST_SKIP() << "this process has the lowest";
  ModelVersions::Options options = Options();
  options.load_cpu_share = 1;
  options.nice = kLowest;
  options.loader = [load = options.loader](const VersionToLoad& version,
                                           CancellationManager* cancellation) {
    std::atomic<int64_t> sum{0};
    Arena::Default()->ParallelFor(1000, 1e6, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    EXPECT_EQ(sum, 999 * 1000 / 2);
    return load(version, cancellation);
  };
  // Polls, times, unloads, and all loads.
  const int most = 3 + options.plan.max_loads + options.plan.max_left_behind;
  StartWithOne(std::move(options));
  int num_low = 0;
  for (const auto& [id, nice] : NiceOfThreads()) num_low += nice == kLowest;
  EXPECT_GE(num_low, 1);
  EXPECT_LE(num_low, most);
}

// covers: serving: a model loads when the first request asks for it; others join its load; it rests
//   when none asks
TEST_F(ModelVersionsTest, ModelLoadsOnDemandAndRestsWhenIdle) {
  ModelVersions::Options options = Options();
  options.load_on_demand = true;
  options.plan.idle_unload = absl::Minutes(5);
  options.plan.max_retries = 0;
  options.most_waiting = 2;
  Start(std::move(options));
  const auto door = std::make_shared<Door>();
  world_->Set("m/1", {.at_load = door});
  Write("m", 1);
  ModelSettings labelled = Settings("m");
  EXPECT_OK(versions_->SetModels({labelled}));
  versions_->Poll();
  EXPECT_TRUE(versions_->WaitUntilTried(absl::InfiniteFuture()).empty());
  EXPECT_EQ(StatusOf("m", 1).state, State::kFound);
  // A label of what rests.
  labelled.labels = {{"stable", 1}};
  EXPECT_OK(versions_->SetModels({labelled}));
  EXPECT_STATUS(versions_->Get("m", 7).status(), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 7)");
  EXPECT_EQ(world_->num_loads("m/1"), 0);

  int64_t got[] = {0, 0};
  std::thread first([&] { got[0] = Latest("m"); });
  std::thread second([&] {
    const StatusOr<ModelVersions::Pin> pin = versions_->GetLabelled("m", "stable");
    got[1] = pin.ok() ? pin->version() : 0;
  });
  door->AwaitVisitor();
  // Both wait on the clock, as the thread of the times does.
  clock_.AwaitWaiters(3);
  EXPECT_STATUS(versions_->Get("m").status(), absl::StatusCode::kResourceExhausted,
                "Model 'm': at most 2 requests may wait");
  door->Open();
  first.join();
  second.join();
  EXPECT_EQ(got[0], 1);
  EXPECT_EQ(got[1], 1);
  EXPECT_EQ(world_->num_loads("m/1"), 1);

  // When a use is noted is up to the thread of the times: at the latest the time after it rests.
  while (StatusOf("m", 1).state != State::kEnded) {
    clock_.Advance(absl::Minutes(1));
    std::this_thread::yield();
  }
  EXPECT_EQ(world_->num_alive(), 0);
  // Polls do not wake it; requests do. One with a deadline that has come does not wait.
  world_->Set("m/1", {});
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 1).state, State::kEnded);
  EXPECT_EQ(Latest("m"), 1);
  EXPECT_EQ(world_->num_loads("m/1"), 2);
}

TEST_F(ModelVersionsTest, RequestOnDemandEndsWithItsDeadlineOrTheErrorOfTheLoad) {
  ModelVersions::Options options = Options();
  options.load_on_demand = true;
  options.plan.max_retries = 0;
  Start(std::move(options));
  const auto door = std::make_shared<Door>();
  world_->Set("m/1", {.load = absl::DataLossError("cut off"), .at_load = door});
  Write("m", 1);
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  versions_->Poll();
  EXPECT_STATUS(versions_->Get("m", std::nullopt, {.deadline = clock_.Now()}).status(),
                absl::StatusCode::kDeadlineExceeded, "its load must end before");
  // It goes on for the next one.
  door->AwaitVisitor();
  door->Open();
  EXPECT_STATUS(versions_->Get("m").status(), absl::StatusCode::kDataLoss,
                "Model 'm' version 1: cut off");
  EXPECT_STATUS(versions_->Get("m", 1).status(), absl::StatusCode::kDataLoss, "cut off");
  EXPECT_EQ(world_->num_loads("m/1"), 1);
}

// covers: serving: with a memory limit the model that was used least recently makes room; what can
//   never fit is refused
TEST_F(ModelVersionsTest, LeastRecentlyUsedModelMakesRoom) {
  ModelVersions::Options options = Options();
  options.plan.memory_limit = 250;  // a FakeServable takes 100
  EXPECT_STATUS(ModelVersions::Create(options).status(), absl::StatusCode::kInvalidArgument,
                "memory_limit must come with load_on_demand");
  options.load_on_demand = true;
  options.plan.max_retries = 0;
  Start(std::move(options));
  for (const char* model : {"a", "b", "c"}) Write(model, 1);
  Write("large", 1, std::string(251, 'x'));
  EXPECT_OK(versions_->SetModels({Settings("a"), Settings("b"), Settings("c"), Settings("large")}));
  versions_->Poll();
  // "b" is the one that was not used for longest.
  for (const char* model : {"a", "b", "a"}) {
    EXPECT_EQ(Latest(model), 1);
    versions_->Poll();  // notes the uses
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(Latest("c"), 1);
  // By its files it was thought to be small; after its load it is known to take too much.
  AwaitVersion("b", 1, State::kEnded);
  EXPECT_EQ(StatusOf("a", 1).state, State::kAvailable);
  EXPECT_EQ(world_->num_alive(), 2);
  EXPECT_STATUS(versions_->Get("large").status(), absl::StatusCode::kResourceExhausted,
                "it must fit into the memory limit of 250 bytes, got 251");
  EXPECT_EQ(world_->num_loads("large/1"), 0);
  EXPECT_EQ(world_->num_alive(), 2);
  EXPECT_EQ(Latest("b"), 1);
  EXPECT_LE(world_->most_alive(), 3);
}

// covers: serving: a server's models end in each state of their versions, in bounded time, with
//   requests, loads and frees that still run, and free everything
TEST_F(ModelVersionsTest, EndsWhileVersionsWaitFailAndServe) {
  ModelVersions::Options options = Options();
  options.plan.max_loads = 1;
  Start(std::move(options));
  const auto door = std::make_shared<Door>();
  world_->Set("failing/1", {.load = absl::DataLossError("cut off")});
  world_->Set("m/2", {.at_load = door});
  Write("failing", 1);
  EXPECT_OK(versions_->SetModels({Settings("failing")}));
  versions_->Poll();
  AwaitVersion("failing", 1, State::kWaiting);
  Write("good", 1);
  EXPECT_OK(versions_->SetModels({Settings("failing"), Settings("good")}));
  versions_->Poll();
  AwaitVersion("good", 1, State::kAvailable);
  Write("m", 1);
  Write("m", 2);
  EXPECT_OK(versions_->SetModels({Settings("failing"), Settings("good"), AllOf("m")}));
  versions_->Poll();
  door->AwaitVisitor();
  EXPECT_EQ(StatusOf("m", 1).state, State::kQueued);
  EXPECT_EQ(StatusOf("m", 2).state, State::kLoading);
  versions_.reset();
  EXPECT_EQ(world_->num_alive(), 0);
}

TEST_F(ModelVersionsTest, EndsWhileAVersionWarmsUp) {
  Start();
  const auto door = std::make_shared<Door>();
  world_->Set("m/1", {.at_warm_up = door});
  Write("m", 1);
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  versions_->Poll();
  door->AwaitVisitor();
  versions_.reset();
  EXPECT_EQ(world_->num_alive(), 0);
}

TEST_F(ModelVersionsTest, EndWaitsForARequest) {
  StartWithOne();
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin pin, versions_->Get("m"));
  Notification ended;
  std::thread end([&] {
    versions_.reset();
    ended.Notify();
  });
  EXPECT_FALSE(ended.HasBeenNotified());
  EXPECT_EQ(world_->num_alive(), 1);
  pin = ModelVersions::Pin();
  end.join();
  EXPECT_EQ(world_->num_alive(), 0);
  EXPECT_FALSE(world_->ThisThreadFreed());
}

TEST_F(ModelVersionsTest, EndWaitsForAFree) {
  StartWithOne();
  const auto door = std::make_shared<Door>();
  world_->Set("m/1", {.at_free = door});
  EXPECT_OK(versions_->SetModels({}));
  door->AwaitVisitor();
  EXPECT_EQ(StatusOf("m", 1).state, State::kUnloading);
  std::thread end([&] { versions_.reset(); });
  door->Open();
  end.join();
  EXPECT_EQ(world_->num_alive(), 0);
}

TEST_F(ModelVersionsTest, PinMayOutliveTheEnd) {
  ModelVersions::Options options = Options();
  options.patience = absl::ZeroDuration();
  StartWithOne(std::move(options));
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin pin, versions_->Get("m"));
  versions_.reset();
  EXPECT_EQ(static_cast<FakeServable*>(pin.servable())->key(), "m/1");
  EXPECT_EQ(world_->num_alive(), 1);
  pin = ModelVersions::Pin();
  // A thread that was left behind may have the last pointer for a moment.
  while (world_->num_alive() > 0) std::this_thread::yield();
}

TEST_F(ModelVersionsTest, LoadThatDoesNotEndIsLeftBehind) {
  // Gone when the last thread has let go of the loader.
  const auto left = std::make_shared<Notification>();
  std::shared_ptr<void> last(nullptr, [left](void*) { left->Notify(); });
  const auto door = std::make_shared<Door>();
  Script script;
  script.at_load = door;
  script.heeds_cancellation = false;
  world_->Set("m/1", script);
  Write("m", 1);
  {
    ModelVersions::Options options = Options();
    options.patience = absl::ZeroDuration();
    // What is left behind looks at the clock.
    options.source.clock = Clock::Real();
    options.source.trust_new_versions = true;
    options.loader = [last = std::move(last), load = LoaderOf(world_)](
                         const VersionToLoad& version, CancellationManager* cancellation) {
      return load(version, cancellation);
    };
    Start(std::move(options));
  }
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  versions_->Poll();
  door->AwaitVisitor();
  versions_.reset();
  EXPECT_FALSE(left->HasBeenNotified());
  door->Open();
  left->Wait();
  EXPECT_EQ(world_->num_alive(), 0);
}

}  // namespace
}  // namespace millrace
