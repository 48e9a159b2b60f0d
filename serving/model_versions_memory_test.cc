// SPDX-License-Identifier: Apache-2.0
//
// ModelVersions whose allocations fail, one after the other: no list is taken in part, no version
// is lost, and nothing hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "serving/model_versions.h"
#include "serving/servable.h"

namespace millrace {
namespace {

using ::millrace::testing::Allocations;
using ::millrace::testing::FailAllocation;

class Nothing : public Servable {
 public:
  int64_t num_bytes() const override { return 1; }
};

class ModelVersionsMemoryTest : public ::testing::Test {
 protected:
  // The files are an hour old.
  ModelVersionsMemoryTest()
      : base_(JoinPath(::testing::TempDir(), "no_memory_" + RandomHexName())),
        clock_(absl::Now() + absl::Hours(1)) {
    for (const char* model : {"a", "b"}) {
      const std::string directory = JoinPath(base_, absl::StrCat(model, "/1"));
      EXPECT_OK(fs_->RecursivelyCreateDirectory(directory));
      EXPECT_OK(WriteFileAtomically(fs_, JoinPath(directory, "saved_model.pb"), "model"));
    }
  }
  ~ModelVersionsMemoryTest() override { fs_->RecursivelyDelete(base_).IgnoreError(); }

  ModelVersions::Options Options() {
    ModelVersions::Options options;
    options.loader = [this](const VersionToLoad&,
                            CancellationManager*) -> StatusOr<std::shared_ptr<Servable>> {
      auto loaded = std::make_shared<Nothing>();
      if (const int64_t k = fail_after_load_.exchange(0); k > 0) FailAllocation(k);
      return loaded;
    };
    options.source.clock = &clock_;
    options.poll_period = absl::InfiniteDuration();
    options.plan.max_loads = 1;
    options.plan.max_left_behind = 0;
    options.plan.max_load_time = absl::InfiniteDuration();
    return options;
  }
  std::vector<ModelSettings> Both() const {
    return {{.name = "a", .base_path = JoinPath(base_, "a")},
            {.name = "b", .base_path = JoinPath(base_, "b")}};
  }
  // What has failed is tried again as time passes.
  void ExpectServing(const ModelVersions& versions, const std::string& model) {
    const absl::Time hang = absl::Now() + absl::Seconds(60);
    while (!versions.Get(model).ok()) {
      ASSERT_LT(absl::Now(), hang) << model;
      clock_.Advance(absl::Seconds(1));
      std::this_thread::yield();
    }
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string base_;
  FakeClock clock_;
  std::atomic<int64_t> fail_after_load_{0};  // which allocation of the load thread, once
};

// covers: serving: without memory a list of models is taken whole or not at all, a load fails or
//   serves, and a start that fails ends
TEST_F(ModelVersionsMemoryTest, AListIsTakenWholeOrNotAtAll) {
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(k);
    ASSERT_OK_AND_ASSIGN(const auto versions, ModelVersions::Create(Options()));
    std::vector<ModelSettings> list = Both();
    const int64_t before = Allocations();
    FailAllocation(k);
    const Status set = versions->SetModels(std::move(list));
    const bool has_failed = Allocations() - before >= k;
    FailAllocation(0);
    if (set.ok()) {
      EXPECT_EQ(versions->models().size(), 2u);
    } else {
      EXPECT_EQ(set.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(versions->models().size(), 0u);
      EXPECT_OK(versions->SetModels(Both()));
    }
    versions->Poll();
    for (const char* model : {"a", "b"}) ExpectServing(*versions, model);
    if (!has_failed || HasFailure()) break;
  }
}

TEST_F(ModelVersionsMemoryTest, AReloadIsTakenWholeOrNotAtAll) {
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(k);
    ASSERT_OK_AND_ASSIGN(const auto versions, ModelVersions::Create(Options()));
    EXPECT_OK(versions->SetModels({Both()[0]}));
    versions->Poll();
    ExpectServing(*versions, "a");
    std::vector<ModelSettings> list = Both();
    // A version that is not found, for want of memory, is not waited for.
    const absl::Time deadline = clock_.Now();
    const int64_t before = Allocations();
    FailAllocation(k);
    const Status set = versions->Reload(std::move(list), deadline);
    const bool has_failed = Allocations() - before >= k;
    FailAllocation(0);
    EXPECT_EQ(versions->models().size(), set.ok() ? 2u : 1u) << set;
    EXPECT_OK(versions->Get("a").status());
    EXPECT_OK(versions->SetModels(Both()));
    versions->Poll();
    for (const char* model : {"a", "b"}) ExpectServing(*versions, model);
    if (!has_failed || HasFailure()) break;
  }
}

TEST_F(ModelVersionsMemoryTest, APollThatFailsChangesNothingForGood) {
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(k);
    ASSERT_OK_AND_ASSIGN(const auto versions, ModelVersions::Create(Options()));
    EXPECT_OK(versions->SetModels(Both()));
    const int64_t before = Allocations();
    FailAllocation(k);
    versions->Poll();
    const bool has_failed = Allocations() - before >= k;
    FailAllocation(0);
    versions->Poll();
    for (const char* model : {"a", "b"}) ExpectServing(*versions, model);
    if (!has_failed || HasFailure()) break;
  }
}

TEST_F(ModelVersionsMemoryTest, ALoadFailsOrServes) {
  // More than a load needs after its loader.
  constexpr int64_t kMost = 100;
  for (int64_t k = 1; k <= kMost && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    ASSERT_OK_AND_ASSIGN(const auto versions, ModelVersions::Create(Options()));
    fail_after_load_ = k;
    EXPECT_OK(versions->SetModels(Both()));
    versions->Poll();
    for (const char* model : {"a", "b"}) ExpectServing(*versions, model);
    EXPECT_EQ(fail_after_load_, 0) << "it was to fail once";
  }
}

TEST_F(ModelVersionsMemoryTest, AStartThatFailsEnds) {
  // Threads of the process start with the first one.
  ASSERT_OK(ModelVersions::Create(Options()).status());
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(k);
    ModelVersions::Options options = Options();
    const int64_t before = Allocations();
    FailAllocation(k);
    StatusOr<std::unique_ptr<ModelVersions>> versions = ModelVersions::Create(std::move(options));
    const bool has_failed = Allocations() - before >= k;
    FailAllocation(0);
    if (!versions.ok()) {
      EXPECT_EQ(versions.status().code(), absl::StatusCode::kResourceExhausted);
    }
    if (!has_failed || HasFailure()) break;
  }
}

}  // namespace
}  // namespace millrace
