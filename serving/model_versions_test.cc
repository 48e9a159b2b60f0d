// SPDX-License-Identifier: Apache-2.0
#include "serving/model_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "serving/servable.h"
#include "serving/version_plan.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

using State = VersionState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Where a loader, a warm-up or a destructor waits until the test lets it go on.
class Door {
 public:
  void Open() {
    MutexLock lock(&mu_);
    is_open_ = true;
    changed_.SignalAll();
  }
  void Pass() {
    MutexLock lock(&mu_);
    has_visitor_ = true;
    changed_.SignalAll();
    while (!is_open_) changed_.Wait(&mu_);
  }
  void AwaitVisitor() {
    MutexLock lock(&mu_);
    while (!has_visitor_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  bool has_visitor_ ABSL_GUARDED_BY(mu_) = false;
};

// What happens to a version. A door that is null is open.
struct Script {
  Status load = {}, warm_up = {};
  std::shared_ptr<Door> at_load = nullptr, at_warm_up = nullptr, at_free = nullptr;
  bool heeds_cancellation = true;
  bool throws = false;
};

// The models behind the loader, by "name/directory". Lives as long as somebody may load or free.
class World {
 public:
  void Set(const std::string& key, Script script) {
    MutexLock lock(&mu_);
    scripts_[key] = std::move(script);
  }
  Script Begin(const std::string& key) {
    MutexLock lock(&mu_);
    ++num_loads_[key];
    return scripts_[key];
  }
  Script Get(const std::string& key) {
    MutexLock lock(&mu_);
    return scripts_[key];
  }
  int num_loads(const std::string& key) {
    MutexLock lock(&mu_);
    return num_loads_[key];
  }
  void Made() {
    MutexLock lock(&mu_);
    most_alive_ = std::max(most_alive_, ++num_alive_);
  }
  void Freed() {
    MutexLock lock(&mu_);
    --num_alive_;
    freed_by_.insert(std::this_thread::get_id());
  }
  int num_alive() {
    MutexLock lock(&mu_);
    return num_alive_;
  }
  int most_alive() {
    MutexLock lock(&mu_);
    return most_alive_;
  }
  bool ThisThreadFreed() {
    MutexLock lock(&mu_);
    return freed_by_.contains(std::this_thread::get_id());
  }

 private:
  Mutex mu_;
  std::map<std::string, Script> scripts_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> num_loads_ ABSL_GUARDED_BY(mu_);
  int num_alive_ ABSL_GUARDED_BY(mu_) = 0;
  int most_alive_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::thread::id> freed_by_ ABSL_GUARDED_BY(mu_);
};

class FakeServable : public Servable {
 public:
  FakeServable(std::shared_ptr<World> world, std::string key)
      : world_(std::move(world)), key_(std::move(key)) {
    world_->Made();
  }
  ~FakeServable() override {
    if (const std::shared_ptr<Door> door = world_->Get(key_).at_free) door->Pass();
    world_->Freed();
  }
  int64_t num_bytes() const override { return 100; }
  const std::string& key() const { return key_; }

 private:
  const std::shared_ptr<World> world_;
  const std::string key_;
};

// Waits at the door, unless it is to heed a cancellation, which opens it.
Status PassDoor(const std::shared_ptr<Door>& door, bool heeds, CancellationManager* cancellation) {
  if (door == nullptr) return absl::OkStatus();
  CancellationManager::Token token;
  if (heeds && !cancellation->Register(&token, [door] { door->Open(); })) {
    return absl::CancelledError("before the door");
  }
  door->Pass();
  if (!heeds) return absl::OkStatus();
  cancellation->Deregister(token);
  return cancellation->IsCancelled() ? absl::CancelledError("at the door") : absl::OkStatus();
}

std::string KeyOf(const std::string& directory) {
  return absl::StrCat(Basename(Dirname(directory)), "/", Basename(directory));
}

ModelVersions::Loader LoaderOf(std::shared_ptr<World> world) {
  return [world](const VersionToLoad& version,
                 CancellationManager* cancellation) -> StatusOr<std::shared_ptr<Servable>> {
    const std::string key = KeyOf(version.directory);
    EXPECT_EQ(key, absl::StrCat(version.model, "/", version.version));
    const Script script = world->Begin(key);
    MR_RETURN_IF_ERROR(PassDoor(script.at_load, script.heeds_cancellation, cancellation));
    if (script.throws) throw std::runtime_error("a loader that throws");
    MR_RETURN_IF_ERROR(script.load);
    return std::make_shared<FakeServable>(world, key);
  };
}

ModelVersions::WarmUp WarmUpOf(std::shared_ptr<World> world) {
  return [world](const VersionToLoad& version, Servable* servable,
                 CancellationManager* cancellation) -> Status {
    const std::string key = KeyOf(version.directory);
    const Script script = world->Get(key);
    EXPECT_EQ(static_cast<FakeServable*>(servable)->key(), key);
    MR_RETURN_IF_ERROR(PassDoor(script.at_warm_up, script.heeds_cancellation, cancellation));
    return script.warm_up;
  };
}

class ModelVersionsTest : public ::testing::Test {
 protected:
  // The files of the tests are an hour old.
  ModelVersionsTest()
      : base_(JoinPath(::testing::TempDir(), "models_" + RandomHexName())),
        clock_(absl::Now() + absl::Hours(1)) {
    EXPECT_OK(fs_->CreateDirectory(base_));
  }
  ~ModelVersionsTest() override {
    versions_.reset();
    fs_->RecursivelyDelete(base_).IgnoreError();
  }

  ModelVersions::Options Options() {
    ModelVersions::Options options;
    options.loader = LoaderOf(world_);
    options.warm_up = WarmUpOf(world_);
    options.source.clock = &clock_;
    options.poll_period = absl::InfiniteDuration();
    return options;
  }
  void Start(ModelVersions::Options options) {
    ASSERT_OK_AND_ASSIGN(versions_, ModelVersions::Create(std::move(options)));
  }
  void Start() { Start(Options()); }

  std::string BasePath(const std::string& model) { return JoinPath(base_, model); }
  void Write(const std::string& model, int64_t version, absl::string_view data = "model") {
    const std::string directory = JoinPath(BasePath(model), absl::StrCat(version));
    EXPECT_OK(fs_->RecursivelyCreateDirectory(directory));
    EXPECT_OK(WriteFileAtomically(fs_, JoinPath(directory, "saved_model.pb"), data));
  }
  void Delete(const std::string& model, int64_t version) {
    EXPECT_OK(fs_->RecursivelyDelete(JoinPath(BasePath(model), absl::StrCat(version))));
  }
  ModelSettings Settings(const std::string& model,
                         VersionPolicy::Kind kind = VersionPolicy::Kind::kLatest) {
    return {.name = model,
            .base_path = BasePath(model),
            .policy = {.kind = kind, .num_latest = 1, .specific = {}},
            .labels = {}};
  }
  ModelSettings AllOf(const std::string& model) {
    return Settings(model, VersionPolicy::Kind::kAll);
  }

  bool Await(
      const std::string& model, int64_t version, State state,
      const std::function<bool()>& also = [] { return true; }) {
    return versions_->WaitFor(
        model,
        [&](absl::Span<const VersionStatus> statuses) {
          return also() && std::any_of(statuses.begin(), statuses.end(), [&](const auto& status) {
                   return status.version == version && status.state == state;
                 });
        },
        absl::InfiniteFuture());
  }
  // One version of `m`, available.
  void StartWithOne(ModelVersions::Options options) {
    Write("m", 1);
    Start(std::move(options));
    ASSERT_NE(versions_, nullptr);
    EXPECT_OK(versions_->SetModels({Settings("m")}));
    versions_->Poll();
    Await("m", 1, State::kAvailable);
  }
  void StartWithOne() { StartWithOne(Options()); }

  // 0: none.
  int64_t Latest(const std::string& model) {
    const StatusOr<ModelVersions::Pin> pin = versions_->Get(model);
    return pin.ok() ? pin->version() : 0;
  }
  VersionStatus StatusOf(const std::string& model, int64_t version) {
    const auto statuses = versions_->GetStatus(model, version);
    EXPECT_OK(statuses.status());
    return statuses.ok() ? statuses->front() : VersionStatus();
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string base_;
  FakeClock clock_;
  const std::shared_ptr<World> world_ = std::make_shared<World>();
  std::unique_ptr<ModelVersions> versions_;
};

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
  Await("m", 1, State::kEnded);
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
    Await("m", 2, State::kWaiting, [&] { return world_->num_loads("m/2") == tries; });
    EXPECT_EQ(Latest("m"), 1);
    EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kDataLoss,
                  "Model 'm' version 2: saved_model.pb is cut off");
    clock_.Advance(PlanOptions().retry_interval);
  }
  Await("m", 2, State::kFailed, [&] { return world_->num_loads("m/2") == most_tries; });
  clock_.Advance(absl::Hours(1));
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 2).state, State::kFailed);
  EXPECT_EQ(world_->num_loads("m/2"), most_tries);
  EXPECT_EQ(Latest("m"), 1);

  // Other files: all tries again.
  Write("m", 2, "longer than before");
  versions_->Poll();
  Await("m", 2, State::kWaiting, [&] { return world_->num_loads("m/2") == most_tries + 1; });
  // While it waits for the next try, too; it is good now.
  world_->Set("m/2", {});
  Write("m", 2, "longer than before, and once more");
  versions_->Poll();
  Await("m", 2, State::kAvailable);
  Await("m", 1, State::kEnded);
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
  Await("m", 2, State::kFailed);
  Delete("m", 2);
  versions_->Poll();
  Await("m", 2, State::kEnded);
  world_->Set("m/2", {});
  Write("m", 2);
  versions_->Poll();
  Await("m", 2, State::kAvailable);
}

TEST_F(ModelVersionsTest, FailedWarmUpAndThrownExceptionFailTheVersion) {
  ModelVersions::Options options = Options();
  options.plan.max_retries = 0;
  StartWithOne(std::move(options));
  world_->Set("m/2", {.warm_up = absl::InvalidArgumentError("record 3")});
  Write("m", 2);
  versions_->Poll();
  Await("m", 2, State::kFailed);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kInvalidArgument,
                "Model 'm' version 2: warm-up: record 3");
  EXPECT_EQ(world_->num_alive(), 1);

  Script script;
  script.throws = true;
  world_->Set("m/3", script);
  Write("m", 3);
  versions_->Poll();
  Await("m", 3, State::kFailed);
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
  Await("m", 1, State::kDraining);
  EXPECT_EQ(Latest("m"), 2);
  EXPECT_STATUS(versions_->Get("m", 1).status(), absl::StatusCode::kNotFound, "Specific(m, 1)");
  first = ModelVersions::Pin();
  EXPECT_EQ(StatusOf("m", 1).state, State::kDraining);
  EXPECT_EQ(static_cast<FakeServable*>(second.servable())->key(), "m/1");
  EXPECT_EQ(world_->num_alive(), 2);
  second = ModelVersions::Pin();
  Await("m", 1, State::kEnded);
  EXPECT_EQ(world_->num_alive(), 1);
  EXPECT_FALSE(world_->ThisThreadFreed());
}

// covers: serving: a version that is wanted again waits until its old instance is gone
TEST_F(ModelVersionsTest, VersionThatIsWantedAgainWaitsUntilItIsGone) {
  StartWithOne();
  ASSERT_OK_AND_ASSIGN(ModelVersions::Pin pin, versions_->Get("m"));
  Write("m", 2);
  versions_->Poll();
  Await("m", 1, State::kDraining);
  // Back to version 1: version 2 stands in meanwhile.
  Delete("m", 2);
  versions_->Poll();
  EXPECT_EQ(StatusOf("m", 1).state, State::kDraining);
  EXPECT_EQ(Latest("m"), 2);
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  pin = ModelVersions::Pin();
  Await("m", 1, State::kAvailable);
  Await("m", 2, State::kEnded);
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
  Await("m", 2, State::kAvailable);
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
  Await("m", 1, State::kEnded);
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

// covers: serving: a new list of models is taken as a whole or not at all
TEST_F(ModelVersionsTest, ListOfModelsIsTakenAsAWholeOrNotAtAll) {
  StartWithOne();
  Write("n", 5);
  ModelSettings relative = Settings("n");
  relative.base_path = "models/n";
  ModelSettings labelled = Settings("n");
  labelled.labels = {{"stable", 5}};
  const struct {
    std::vector<ModelSettings> list;
    absl::StatusCode code;
    std::string text;
  } rows[] = {
      {{Settings("n"), Settings("n")},
       absl::StatusCode::kInvalidArgument,
       "Illegal to list model n multiple times in config list"},
      {{Settings("n"), relative},
       absl::StatusCode::kInvalidArgument,
       "Illegal to list model n multiple times in config list"},
      {{relative},
       absl::StatusCode::kInvalidArgument,
       "Expected model n to have an absolute path or URI; got base_path()=models/n"},
      {{Settings("o"), labelled},
       absl::StatusCode::kFailedPrecondition,
       "Request to assign label to version 5 of model n, which is not currently available for "
       "inference"},
      {{Settings("n"), Settings("")}, absl::StatusCode::kInvalidArgument, ""},
  };
  for (const auto& row : rows) {
    const Status status = versions_->SetModels(row.list);
    EXPECT_EQ(status.code(), row.code);
    if (!row.text.empty()) {
      EXPECT_EQ(status.message(), row.text);
    }
    versions_->Poll();
    ASSERT_EQ(versions_->models().size(), 1u);
    EXPECT_EQ(versions_->models()[0].name, "m");
    EXPECT_EQ(Latest("m"), 1);
    EXPECT_EQ(versions_->GetStatuses().size(), 1u);
  }
  EXPECT_EQ(world_->num_loads("n/5"), 0);

  EXPECT_OK(versions_->SetModels({Settings("n")}));
  Await("m", 1, State::kEnded);
  EXPECT_EQ(Latest("m"), 0);
  versions_->Poll();
  Await("n", 5, State::kAvailable);
  // What ended is still in the status.
  EXPECT_EQ(StatusOf("m", 1).state, State::kEnded);
  ASSERT_EQ(versions_->GetStatuses().size(), 2u);
  EXPECT_FALSE(versions_->GetStatuses()[0].is_listed);
  EXPECT_TRUE(versions_->GetStatuses()[1].is_listed);
}

// covers: serving: labels name available versions; a label moves only to one
TEST_F(ModelVersionsTest, LabelsNameAvailableVersions) {
  Write("m", 1);
  Write("m", 2);
  Start();
  ModelSettings settings = AllOf("m");
  EXPECT_OK(versions_->SetModels({settings}));
  versions_->Poll();
  Await("m", 1, State::kAvailable);
  Await("m", 2, State::kAvailable);
  const auto labelled = [&](absl::string_view label) -> int64_t {
    const StatusOr<ModelVersions::Pin> pin = versions_->GetLabelled("m", label);
    return pin.ok() ? pin->version() : 0;
  };
  settings.labels = {{"stable", 1}, {"canary", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_EQ(labelled("stable"), 1);
  EXPECT_EQ(labelled("canary"), 2);

  settings.labels = {{"stable", 2}, {"canary", 3}};
  EXPECT_STATUS(versions_->SetModels({settings}), absl::StatusCode::kFailedPrecondition,
                "Request to assign label to version 3 of model m");
  EXPECT_EQ(labelled("stable"), 1);
  EXPECT_EQ(labelled("canary"), 2);

  settings.labels = {{"stable", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_EQ(labelled("stable"), 2);
  EXPECT_STATUS(versions_->GetLabelled("m", "canary").status(), absl::StatusCode::kInvalidArgument,
                "Unrecognized servable version label: canary");
  // Both versions are still the ones that were loaded first.
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  EXPECT_EQ(world_->num_loads("m/2"), 1);
}

// covers: serving: a reload is one operation: labelled versions of the old list serve until those
// of
//   the new one do, and after an error the old list is as before
TEST_F(ModelVersionsTest, ReloadKeepsLabelledVersionsUntilTheNewOnesServe) {
  StartWithOne();
  const auto label = [&]() -> int64_t {
    const StatusOr<ModelVersions::Pin> pin = versions_->GetLabelled("m", "stable");
    return pin.ok() ? pin->version() : 0;
  };
  ModelSettings before = Settings("m");
  before.labels = {{"stable", 1}};
  EXPECT_OK(versions_->SetModels({before}));
  const auto door = std::make_shared<Door>();
  world_->Set("m/3", {.at_load = door});
  Write("m", 3);
  ModelSettings after = Settings("m", VersionPolicy::Kind::kSpecific);
  after.policy.specific = {3};
  after.labels = {{"stable", 3}};
  Status reloaded = absl::UnknownError("");
  std::thread reload([&] {
    reloaded = versions_->Reload({after, Settings("n")}, absl::InfiniteFuture());
  });
  door->AwaitVisitor();
  EXPECT_EQ(label(), 1);
  // The old list until then; nothing else changes it.
  ASSERT_EQ(versions_->models().size(), 1u);
  EXPECT_EQ(versions_->models()[0].policy.kind, VersionPolicy::Kind::kLatest);
  EXPECT_STATUS(versions_->Reload({}, absl::InfiniteFuture()), absl::StatusCode::kUnavailable,
                "is being reloaded");
  EXPECT_STATUS(versions_->SetModels({}), absl::StatusCode::kUnavailable, "is being reloaded");
  door->Open();
  reload.join();
  // That "n" has no base path is no error of the list.
  EXPECT_OK(reloaded);
  EXPECT_EQ(label(), 3);
  EXPECT_EQ(versions_->models().size(), 2u);
  Await("m", 1, State::kEnded);
}

TEST_F(ModelVersionsTest, RefusedReloadLeavesEverythingAsItWas) {
  StartWithOne();
  ModelSettings before = Settings("m");
  before.labels = {{"stable", 1}};
  EXPECT_OK(versions_->SetModels({before}));
  Write("n", 7);
  ModelSettings other = Settings("m", VersionPolicy::Kind::kSpecific);
  other.policy.specific = {2};
  ModelSettings labelled = Settings("n");
  labelled.labels = {{"stable", 9}};
  EXPECT_STATUS(versions_->Reload({other, labelled}, absl::InfiniteFuture()),
                absl::StatusCode::kFailedPrecondition,
                "Request to assign label to version 9 of model n, which is not currently");
  EXPECT_STATUS(versions_->Reload({other, other}, absl::InfiniteFuture()),
                absl::StatusCode::kInvalidArgument, "multiple times");
  // What it brought goes; what was there never went.
  Await("n", 7, State::kEnded);
  EXPECT_EQ(world_->num_loads("n/7"), 1);
  EXPECT_EQ(world_->num_loads("m/1"), 1);
  ASSERT_OK_AND_ASSIGN(const ModelVersions::Pin pin, versions_->GetLabelled("m", "stable"));
  EXPECT_EQ(pin.version(), 1);
  ASSERT_EQ(versions_->models().size(), 1u);
  EXPECT_EQ(versions_->models()[0].policy.kind, VersionPolicy::Kind::kLatest);

  // At the deadline the labels must be right.
  const auto door = std::make_shared<Door>();
  world_->Set("n/7", {.at_load = door});
  labelled.labels = {{"stable", 7}};
  EXPECT_STATUS(versions_->Reload({other, labelled}, clock_.Now()),
                absl::StatusCode::kFailedPrecondition, "version 7 of model n");
  Await("n", 7, State::kEnded);
  EXPECT_EQ(Latest("m"), 1);
}

TEST_F(ModelVersionsTest, NewLabelsMayNameVersionsThatAreNotAvailableWhereAllowed) {
  ModelVersions::Options options = Options();
  options.allow_labels_of_unavailable = true;
  StartWithOne(std::move(options));
  ModelSettings settings = Settings("m");
  settings.labels = {{"next", 2}};
  EXPECT_OK(versions_->SetModels({settings}));
  EXPECT_STATUS(versions_->GetLabelled("m", "next").status(), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 2)");
  settings.labels = {{"next", 3}};
  EXPECT_STATUS(versions_->SetModels({settings}), absl::StatusCode::kFailedPrecondition,
                "version 3 of model m");
  Write("m", 2);
  versions_->Poll();
  Await("m", 2, State::kAvailable);
  ASSERT_OK_AND_ASSIGN(const ModelVersions::Pin pin, versions_->GetLabelled("m", "next"));
  EXPECT_EQ(pin.version(), 2);
}

// covers: serving: the status remembers a bounded number of ended versions and counts the others
TEST_F(ModelVersionsTest, StatusForgetsTheOldestEndedVersions) {
  ModelVersions::Options options = Options();
  options.most_ended = 2;
  StartWithOne(std::move(options));
  for (int64_t version = 2; version <= 5; ++version) {
    Write("m", version);
    versions_->Poll();
    Await("m", version, State::kAvailable);
    Await("m", version - 1, State::kEnded);
  }
  ASSERT_EQ(versions_->GetStatuses().size(), 1u);
  const ModelStatus status = versions_->GetStatuses()[0];
  std::vector<int64_t> numbers;
  for (const VersionStatus& v : status.versions) numbers.push_back(v.version);
  // The available one and two that have ended; versions 1 and 2 are forgotten.
  EXPECT_THAT(numbers, ElementsAre(5, 4, 3));
  EXPECT_EQ(status.num_forgotten, 2);
}

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
  Await("m", 2, State::kEnded);
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
  Await("m", 2, State::kFailed);
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
    Await(i == 0 ? "a" : "b", 1, State::kFailed);
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
  Await("c", 1, State::kAvailable);
  // The load of long ago failed an hour ago.
  Await("a", 1, State::kAvailable);
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
  Await("m", 2, State::kWaiting);
  EXPECT_STATUS(StatusOf("m", 2).status, absl::StatusCode::kUnavailable,
                "Model 'm' version 2: its files must stay as they are, and changed while");
  EXPECT_EQ(Latest("m"), 1);
  EXPECT_EQ(world_->num_alive(), 1);
  versions_->Poll();
  Await("m", 2, State::kAvailable);
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

// covers: serving: until something serves, models load with the priority of the process; then with
//   a lower one
TEST_F(ModelVersionsTest, OnlyLoadsBesideRequestsHaveALowPriority) {
  constexpr int kLowest = 19;
  const int own = ::getpriority(PRIO_PROCESS, 0);
  if (own == kLowest) GTEST_SKIP() << "this process has the lowest";
  Mutex mu;
  std::map<std::string, int> seen;  // by version
  ModelVersions::Options options = Options();
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
  Await("m", 2, State::kAvailable);
  MutexLock lock(&mu);
  EXPECT_EQ(seen["m/1"], own);
  EXPECT_EQ(seen["m/2"], kLowest);
}

// covers: serving: a loader that computes makes no thread of low priority that requests then need
TEST_F(ModelVersionsTest, ThreadsOfTheArenaKeepThePriorityOfTheProcess) {
  constexpr int kLowest = 19;
  if (::getpriority(PRIO_PROCESS, 0) == kLowest) GTEST_SKIP() << "this process has the lowest";
  ModelVersions::Options options = Options();
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
  Await("b", 1, State::kEnded);
  EXPECT_EQ(StatusOf("a", 1).state, State::kAvailable);
  EXPECT_EQ(world_->num_alive(), 2);
  EXPECT_STATUS(versions_->Get("large").status(), absl::StatusCode::kResourceExhausted,
                "it must fit into the memory limit of 250 bytes, got 251");
  EXPECT_EQ(world_->num_loads("large/1"), 0);
  EXPECT_EQ(world_->num_alive(), 2);
  EXPECT_EQ(Latest("b"), 1);
  EXPECT_LE(world_->most_alive(), 3);
}

TEST_F(ModelVersionsTest, ThreadPollsEachPeriod) {
  Write("m", 1);
  ModelVersions::Options options = Options();
  options.poll_period = absl::Seconds(7);
  Start(std::move(options));
  EXPECT_OK(versions_->SetModels({Settings("m")}));
  Await("m", 1, State::kAvailable);
  // The thread that polls and the one that waits for times.
  clock_.AwaitWaiters(2);
  Write("m", 2);
  clock_.Advance(absl::Seconds(7));
  Await("m", 2, State::kAvailable);
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
  Await("failing", 1, State::kWaiting);
  Write("good", 1);
  EXPECT_OK(versions_->SetModels({Settings("failing"), Settings("good")}));
  versions_->Poll();
  Await("good", 1, State::kAvailable);
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
