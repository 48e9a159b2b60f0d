// SPDX-License-Identifier: Apache-2.0
#include "run/run_directory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: of many chiefs that start at once one owns the run, each with its own epoch; a
//   chief stopped before a file operation undoes nothing of its successor

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
  // A new session of the same process has the same owner.
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

// Files may exist without being seen.
class UnseenFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    if (!listing.ok()) return listing;
    return FaultyFileSystem::GetChildren(directory);
  }
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    if (!reading.ok()) return reading;
    return FaultyFileSystem::NewRandomAccessFile(path);
  }
  Status listing, reading;
};

TEST_F(RunDirectoryTest, WhatCannotBeSeenPassesALookAndRefusesACommit) {
  UnseenFiles files(fs_, dir_);
  RunDirectory directory(&files, &clock_, "Test", dir_, "run");
  EXPECT_OK(directory.MayCommit());
  ASSERT_OK(directory.TakeOver("grpc://a:1").status());
  EXPECT_OK(directory.MayCommit());
  for (Status* const broken : {&files.listing, &files.reading}) {
    *broken = absl::UnknownError("input/output error");
    EXPECT_OK(directory.Check());
    EXPECT_STATUS(directory.MayCommit(), absl::StatusCode::kUnavailable,
                  "must say whose it is before it is changed, got ");
    *broken = absl::OkStatus();
  }
  EXPECT_OK(directory.MayCommit());
  RunDirectory second = Open();
  ASSERT_OK(second.TakeOver("grpc://b:2").status());
  EXPECT_TRUE(IsFenced(directory.MayCommit())) << directory.MayCommit();
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

TEST_F(RunDirectoryTest, AMalformedFileIsReplacedByANewRun) {
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

// --- Several at once -----------------------------------------------------------------------------

TEST_F(RunDirectoryTest, OfManyChiefsThatBeginAtOnceEachHasItsEpochAndOneTheRun) {
  constexpr int kChiefs = 16, kRounds = 20;
  int64_t epoch_before = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<RunDirectory>> chiefs;
    std::vector<int64_t> epochs(kChiefs, -1);
    std::vector<std::thread> threads;
    Notification go;
    for (int i = 0; i < kChiefs; ++i) {
      chiefs.push_back(std::make_unique<RunDirectory>(fs_, &clock_, "Test", dir_, "run"));
    }
    for (int i = 0; i < kChiefs; ++i) {
      threads.emplace_back([&, i] {
        go.Wait();
        const auto run = chiefs[static_cast<size_t>(i)]->TakeOver(absl::StrCat("chief ", i));
        if (run.ok()) {
          epochs[static_cast<size_t>(i)] = run->epoch;
        } else {
          EXPECT_TRUE(IsFenced(run.status())) << run.status();
        }
      });
    }
    go.Notify();
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(fs_, dir_));
    ASSERT_TRUE(file.has_value());
    // Exactly one chief has the run; the others are fenced.
    int owners = 0;
    std::set<int64_t> different;
    for (int i = 0; i < kChiefs; ++i) {
      const int64_t epoch = epochs[static_cast<size_t>(i)];
      if (epoch >= 0) {
        EXPECT_TRUE(different.insert(epoch).second) << "two chiefs have epoch " << epoch;
      }
      const Status look = chiefs[static_cast<size_t>(i)]->Check();
      if (epoch >= 0 && look.ok()) {
        ++owners;
        EXPECT_EQ(epoch, file->epoch);
      } else if (epoch >= 0) {
        EXPECT_TRUE(IsFenced(look)) << look;
      }
    }
    EXPECT_EQ(owners, 1);
    EXPECT_GT(file->epoch, epoch_before);
    EXPECT_LE(file->epoch, epoch_before + kChiefs);
    epoch_before = file->epoch;
  }
}

TEST_F(RunDirectoryTest, OfManyProcessesThatBeginAtOnceOneHasTheRun) {
  constexpr int kChiefs = 12;
  int ready[2], go[2], said[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  ASSERT_EQ(::pipe(said), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kChiefs; ++i) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::close(go[1]);
      RunDirectory chief = Open();
      char byte = 'r';
      bool well = ::write(ready[1], &byte, 1) == 1;
      well = ::read(go[0], &byte, 1) == 0 && well;  // all processes start when the pipe closes
      const auto run = chief.TakeOver(absl::StrCat("chief ", i));
      const int64_t epoch = run.ok() ? run->epoch : IsFenced(run.status()) ? 0 : -1;
      well = ::write(said[1], &epoch, sizeof(epoch)) == sizeof(epoch) && well;
      ::_exit(well ? 0 : 1);
    }
    children.push_back(pid);
  }
  ::close(go[0]);
  char byte;
  for (int i = 0; i < kChiefs; ++i) ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(go[1]);
  std::set<int64_t> different;
  int64_t newest = 0;
  for (int i = 0; i < kChiefs; ++i) {
    int64_t epoch = -1;
    ASSERT_EQ(::read(said[0], &epoch, sizeof(epoch)), static_cast<ssize_t>(sizeof(epoch)));
    EXPECT_GE(epoch, 0);
    if (epoch > 0) {
      EXPECT_TRUE(different.insert(epoch).second) << "two chiefs have epoch " << epoch;
    }
    newest = std::max(newest, epoch);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  for (const int fd : {ready[0], ready[1], said[0], said[1]}) ::close(fd);
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->epoch, newest);
  EXPECT_LE(newest, kChiefs);
  // The next chief takes an epoch that no chief has had.
  RunDirectory next = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, next.TakeOver(""));
  EXPECT_EQ(run.epoch, newest + 1);
  EXPECT_EQ(run.id, file->id);
}

// Real files; `action` runs right before operation number `at`, as if the process were paused there
// and continued later.
class StoppedFileSystem : public FaultyFileSystem {
 public:
  StoppedFileSystem(const std::string& root, int at, std::function<void()> action)
      : FaultyFileSystem(FileSystem::Posix(), root), at_(at), action_(std::move(action)) {}

  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    Count();
    return FaultyFileSystem::NewExclusiveFile(path);
  }
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    Count();
    return FaultyFileSystem::NewRandomAccessFile(path);
  }
  bool FileExists(const std::string& path) override {
    Count();
    return FaultyFileSystem::FileExists(path);
  }
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    Count();
    return FaultyFileSystem::GetChildren(directory);
  }
  Status DeleteFile(const std::string& path) override {
    Count();
    return FaultyFileSystem::DeleteFile(path);
  }
  Status RenameFile(const std::string& source, const std::string& target) override {
    Count();
    return FaultyFileSystem::RenameFile(source, target);
  }
  int operations() const { return operations_; }

 private:
  void Count() {
    if (++operations_ == at_) action_();
  }
  const int at_;
  const std::function<void()> action_;
  int operations_ = 0;
};

TEST_F(RunDirectoryTest, WhereverAChiefIsStoppedTheOneThatCameMeanwhileHasTheRunAndItsEnd) {
  bool was_before = true;
  int stops = 0;
  for (int at = 1; was_before; ++at) {
    SCOPED_TRACE(absl::StrCat("stopped before operation ", at));
    ASSERT_OK(fs_->RecursivelyDelete(dir_));
    ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_));
    {
      RunDirectory first = Open();
      ASSERT_OK(first.TakeOver("first").status());
    }
    RunDirectory newer = Open();
    std::optional<TrainingRun> its;
    StoppedFileSystem stopped(dir_, at, [&] {
      const auto run = newer.TakeOver("newer");
      ASSERT_OK(run.status());
      its = *run;
      EXPECT_OK(newer.End({.global_step = 30, .reason = "newer's"}, 30));
    });
    RunDirectory older(&stopped, &clock_, "Test", dir_, "run");
    const StatusOr<TrainingRun> run = older.TakeOver("older");
    Status ended = run.status();
    if (run.ok()) ended = older.End({.global_step = 20, .reason = "older's"}, 20);
    was_before = its.has_value();
    if (!was_before) {
      EXPECT_OK(ended);
      break;
    }
    ++stops;
    ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(fs_, dir_));
    ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(end.has_value());
    if (ended.ok()) {
      // It held nothing when the other chief came and went, so it is the newer of the two.
      ASSERT_OK(run.status());
      EXPECT_GT(run->epoch, its->epoch);
      EXPECT_TRUE(IsFenced(newer.Check())) << newer.Check();
      EXPECT_EQ(file->epoch, run->epoch);
      EXPECT_EQ(end->reason, "older's");
    } else {
      EXPECT_TRUE(IsFenced(ended)) << ended;
      EXPECT_TRUE(absl::StrContains(ended.message(), "fenced by newer")) << ended;
      EXPECT_OK(newer.Check());
      EXPECT_EQ(file->epoch, its->epoch);
      EXPECT_EQ(end->reason, "newer's");
    }
  }
  EXPECT_GT(stops, 20);
}

TEST_F(RunDirectoryTest, AnOlderChiefThatDiesAfterALateWriteIsPutRightByTheNewerOne) {
  RunDirectory older = Open(), newer = Open();
  ASSERT_OK(older.TakeOver("older").status());
  ASSERT_OK_AND_ASSIGN(const auto late, ReadRunFile(fs_, dir_));
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, newer.TakeOver("newer"));
  ASSERT_OK(WriteRunFile(fs_, dir_, *late));
  EXPECT_OK(newer.Check());
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(fs_, dir_));
  EXPECT_EQ(file->epoch, run.epoch);
}

TEST_F(RunDirectoryTest, AChiefThatDiedBeforeItWroteLeavesTheRunToTheNext) {
  RunDirectory first = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, first.TakeOver("first"));
  ASSERT_OK_AND_ASSIGN(auto file, ReadRunFile(fs_, dir_));
  file->epoch = 2;
  ASSERT_OK(ClaimRunEpoch(fs_, dir_, *file));
  EXPECT_STATUS(ClaimRunEpoch(fs_, dir_, *file), absl::StatusCode::kAlreadyExists, "run_owner-2");
  // A chief that died in the middle of a claim.
  ASSERT_OK(WriteFileAtomically(fs_, dir_ + "/run_owner-3", ""));
  RunDirectory next = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun its, next.TakeOver("next"));
  EXPECT_EQ(its.epoch, 4);
  EXPECT_EQ(its.id, run.id);
  EXPECT_TRUE(IsFenced(first.Check()));
  // Only the files of the last of three owners are left.
  ASSERT_OK_AND_ASSIGN(const auto names, fs_->GetChildren(dir_));
  EXPECT_EQ(names, (std::vector<std::string>{"run.json", "run_owner-4"}));
}

TEST_F(RunDirectoryTest, EpochsThatNoOwnerHadAreIgnored) {
  ASSERT_OK(WriteFileAtomically(fs_, dir_ + "/run_owner-9223372036854775807", ""));
  ASSERT_OK(WriteFileAtomically(fs_, dir_ + "/run_owner--3", ""));
  ASSERT_OK(WriteFileAtomically(fs_, dir_ + "/run_owner-", ""));
  ASSERT_OK(WriteFileAtomically(
      fs_, RunFilePath(dir_),
      R"({"id": "a1", "name": "run", "token": "t", "epoch": 9223372036854775807})"));
  RunDirectory directory = Open();
  ASSERT_OK_AND_ASSIGN(const TrainingRun run, directory.TakeOver(""));
  EXPECT_EQ(run.epoch, 1);
  EXPECT_EQ(run.id, "a1");
  EXPECT_OK(directory.Check());
}

// A newer run of the same name starts with small epochs again.
TEST_F(RunDirectoryTest, AChiefThatClearsTheDirectoryAndStartsAfreshHasIt) {
  RunDirectory first = Open(), second = Open(), third = Open();
  ASSERT_OK(first.TakeOver("first").status());
  ASSERT_OK(second.TakeOver("second").status());
  ASSERT_OK(fs_->RecursivelyDelete(dir_));
  ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_));
  ASSERT_OK(third.TakeOver("third").status());
  EXPECT_TRUE(IsFenced(second.Check()));
  EXPECT_OK(third.Check());
}

}  // namespace
}  // namespace millrace
