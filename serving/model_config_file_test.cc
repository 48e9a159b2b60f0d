// SPDX-License-Identifier: Apache-2.0
#include "serving/model_config_file.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "serving/model_versions.h"

// covers: serving: a configuration file that has changed becomes the list of models, whole or not
//   at all

namespace millrace {
namespace {

std::string ConfigOf(const std::string& name) {
  return absl::StrCat("model_config_list { config { name: '", name,
                      "' base_path: '/m' model_platform: 'tensorflow' } }");
}

class ModelConfigFileTest : public ::testing::Test {
 protected:
  ~ModelConfigFileTest() override { FileSystem::Posix()->DeleteFile(path_).IgnoreError(); }
  void Write(const std::string& content) {
    ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path_, content));
  }
  ModelConfigFile::Apply Taken() {
    return [this](std::vector<ModelSettings> models) {
      MutexLock lock(&mu_);
      taken_.push_back(models.empty() ? "" : models[0].name);
      changed_.SignalAll();
      return answer_;
    };
  }

  const std::string path_ =
      JoinPath(::testing::TempDir(), absl::StrCat("models_", RandomHexName()));
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> taken_ ABSL_GUARDED_BY(mu_);
  Status answer_;
};

TEST_F(ModelConfigFileTest, EachNewContentIsTriedOnce) {
  Write(ConfigOf("a"));
  ASSERT_OK_AND_ASSIGN(const auto file,
                       ModelConfigFile::Create({.path = path_, .period = absl::InfiniteDuration()},
                                               ConfigOf("a"), Taken()));
  EXPECT_OK(file->Look());
  EXPECT_TRUE(taken_.empty()) << "it is the list already";
  Write(ConfigOf("b"));
  EXPECT_OK(file->Look());
  EXPECT_OK(file->Look());
  EXPECT_EQ(taken_, std::vector<std::string>{"b"});
  // What cannot be read, and what is refused, are not tried again.
  Write("model_config_list {");
  EXPECT_FALSE(file->Look().ok());
  EXPECT_OK(file->Look());
  answer_ = absl::FailedPreconditionError("no such version");
  Write(ConfigOf("c"));
  EXPECT_STATUS(file->Look(), absl::StatusCode::kFailedPrecondition, "no such version");
  EXPECT_OK(file->Look());
  EXPECT_EQ(taken_, (std::vector<std::string>{"b", "c"}));
  // A file that is away for a while is no change.
  ASSERT_OK(FileSystem::Posix()->DeleteFile(path_));
  EXPECT_FALSE(file->Look().ok());
  Write(ConfigOf("c"));
  EXPECT_OK(file->Look());
  EXPECT_EQ(taken_.size(), 2u);
}

TEST_F(ModelConfigFileTest, IsLookedAtInItsPeriodUntilItEnds) {
  Write(ConfigOf("b"));
  FakeClock clock;
  ASSERT_OK_AND_ASSIGN(auto file, ModelConfigFile::Create(
                                      {.path = path_, .period = absl::Seconds(5), .clock = &clock},
                                      ConfigOf("a"), Taken()));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(5));
  {
    MutexLock lock(&mu_);
    while (taken_.empty()) changed_.Wait(&mu_);
    EXPECT_EQ(taken_[0], "b");
  }
  clock.AwaitWaiters(1);  // for the next look
  file.reset();           // ends while it waits for its time
}

}  // namespace
}  // namespace millrace
