// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_TESTING_MODEL_VERSIONS_TESTING_H_
#define MILLRACE_SERVING_TESTING_MODEL_VERSIONS_TESTING_H_

// ModelVersionsTest: the models of a ModelVersions whose loads, warm-ups and frees do what a test
// says, over a directory of its own and a clock that the test moves.
//
//   world_->Set("m/2", {.at_load = door});   // the load of m's version 2 waits at the door
//   Write("m", 2);
//   versions_->Poll();
//   door->AwaitVisitor();
//
// Thread-safety: Door and World, from any thread; the rest is of the test's thread.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "serving/model_versions.h"
#include "serving/servable.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {

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
inline Status PassDoor(const std::shared_ptr<Door>& door, bool heeds,
                       CancellationManager* cancellation) {
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

inline std::string KeyOf(const std::string& directory) {
  return absl::StrCat(Basename(Dirname(directory)), "/", Basename(directory));
}

inline ModelVersions::Loader LoaderOf(std::shared_ptr<World> world) {
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

inline ModelVersions::WarmUp WarmUpOf(std::shared_ptr<World> world) {
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
  using State = VersionState;

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

  bool AwaitVersion(
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
    AwaitVersion("m", 1, State::kAvailable);
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

}  // namespace millrace

#endif  // MILLRACE_SERVING_TESTING_MODEL_VERSIONS_TESTING_H_
