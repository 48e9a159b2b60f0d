// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("dir_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
  }
  ~RunDirectoryTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }
  RunDirectory Open(const std::string& name = "run") {
    return RunDirectory(fs_, &clock_, "Test", dir_, name);
  }

  FileSystem* const fs_ = FileSystem::Posix();
  FakeClock clock_;
  const std::string dir_;
};

TEST_F(RunDirectoryTest, TheIdStaysAndEachOwnerIsAnother) {
  RunDirectory first = Open();
  EXPECT_OK(first.Check());
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, first.TakeOver("grpc://a:1"));
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.id.size(), 32u);
  EXPECT_TRUE(run.is_chief);
  EXPECT_TRUE(absl::StrContains(run.chief, absl::StrCat(", process ", ::getpid()))) << run.chief;
  EXPECT_OK(CheckRun(run));
  // A new session of the same process is no new owner.
  ASSERT_OK_AND_ASSIGN(const TrainingRun again, first.TakeOver("grpc://a:1"));
  EXPECT_EQ(again.chief, run.chief);
  EXPECT_EQ(again.epoch, run.epoch);

  RunDirectory second = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun restarted, second.TakeOver("grpc://a:1"));
  EXPECT_EQ(restarted.id, run.id);
  EXPECT_NE(restarted.chief, run.chief);
  EXPECT_GT(restarted.epoch, run.epoch);
}

TEST_F(RunDirectoryTest, TheOlderOwnerIsFencedByName) {
  RunDirectory first = Open(), second = Open();
  ASSERT_OK(first.TakeOver("grpc://a:1").status());
  EXPECT_OK(first.Check());
  ASSERT_OK(second.TakeOver("grpc://b:2").status());
  EXPECT_OK(second.Check());
  for (const Status& status :
       {first.Check(), first.TakeOver("grpc://a:1").status(), first.End({.global_step = 3}, 0)}) {
    EXPECT_TRUE(IsFenced(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "fenced by grpc://b:2 on ")) << status;
  }
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(end.has_value());
}

TEST_F(RunDirectoryTest, AnEndIsReadUntilSomebodyGoesOn) {
  RunDirectory first = Open();
  ASSERT_OK(first.TakeOver("").status());
  ASSERT_OK(first.End({.global_step = 30, .checkpoint = dir_ + "/m-30", .reason = "done"}, 30));
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->global_step, 30);
  EXPECT_EQ(end->goal, 30);
  EXPECT_EQ(end->checkpoint, dir_ + "/m-30");
  EXPECT_EQ(end->reason, "done");
  RunDirectory second = Open();
  ASSERT_OK(second.TakeOver("").status());
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(none.has_value());
}

TEST_F(RunDirectoryTest, ADirectoryUnderAnotherNameIsAnotherRun) {
  RunDirectory first = Open("run"), copy = Open("copy");
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, first.TakeOver(""));
  ASSERT_OK_AND_ASSIGN(const TrainingRun other, copy.TakeOver(""));
  EXPECT_NE(other.id, run.id);
  EXPECT_EQ(other.name, "copy");
}

TEST_F(RunDirectoryTest, AFileThatIsNoneIsReplacedByAnotherRun) {
  ASSERT_OK(WriteFileAtomically(fs_, RunFilePath(dir_), "{half"));
  RunDirectory directory = Open();
  ::testing::internal::CaptureStderr();
  const auto run = directory.TakeOver("");
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(run.status());
  EXPECT_TRUE(absl::StrContains(log, "run.json': must be a JSON object")) << log;
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->id, run->id);
}

TEST_F(RunDirectoryTest, ADirectoryThatWasClearedIsStillOurs) {
  RunDirectory directory = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, directory.TakeOver(""));
  ASSERT_OK(fs_->DeleteFile(RunFilePath(dir_)));
  EXPECT_OK(directory.Check());
  ASSERT_OK(directory.End({.global_step = 3}, 0));
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->id, run.id);
}

}  // namespace
}  // namespace millrace
