// SPDX-License-Identifier: Apache-2.0
#include "saver/bundle_place.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "saver/bundle_paths.h"
#include "saver/tensor_bundle.h"

// covers: values: a wait for other users of a file prefix is bounded; a rename that reports an
//   error although it succeeded (NFS) breaks no checkpoint

namespace millrace {
namespace {

class PrefixHoldTest : public ::testing::Test {
 protected:
  PrefixHoldTest()
      : directory_(JoinPath(::testing::TempDir(), "place_" + RandomHexName())),
        prefix_(JoinPath(directory_, "m-1")) {
    EXPECT_OK(fs_->CreateDirectory(directory_));
  }
  ~PrefixHoldTest() override { fs_->RecursivelyDelete(directory_).IgnoreError(); }

  // What another process does: a lock belongs to whoever opened the file, not to the process.
  StatusOr<std::unique_ptr<FileLock>> LockElsewhere() {
    return fs_->TryLockFile(BundleLockPath(prefix_), "process 4711 on host7");
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string directory_;
  const std::string prefix_;
};

TEST_F(PrefixHoldTest, NobodyElseHasTheLockMeanwhileAndNothingIsLeftAfterwards) {
  {
    ASSERT_OK_AND_ASSIGN(const auto hold, PrefixHold::Take(fs_, prefix_));
    EXPECT_STATUS(LockElsewhere().status(), absl::StatusCode::kUnavailable,
                  absl::StrCat("process ", ::getpid(), " on "));
  }
  ASSERT_OK_AND_ASSIGN(const auto names, fs_->GetChildren(directory_));
  EXPECT_EQ(names, std::vector<std::string>());
  EXPECT_OK(LockElsewhere().status());
}

TEST_F(PrefixHoldTest, WhoWaitsTooLongHearsForWhom) {
  ASSERT_OK_AND_ASSIGN(const auto other, LockElsewhere());
  FakeClock clock;
  auto taken = std::async(std::launch::async,
                          [&] { return PrefixHold::Take(fs_, prefix_, &clock).status(); });
  clock.AwaitWaiters(1);
  clock.Advance(PrefixHold::kPatience - absl::Seconds(1));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(2));
  EXPECT_STATUS(taken.get(), absl::StatusCode::kDeadlineExceeded,
                "one save at a time must give files their names under this prefix, got another one "
                "at it for 2m: File '");
  FakeClock no_time;
  EXPECT_STATUS(
      PrefixHold::Take(fs_, prefix_, &no_time, /*patience=*/absl::ZeroDuration()).status(),
      absl::StatusCode::kDeadlineExceeded, "held by process 4711 on host7");
}

TEST_F(PrefixHoldTest, WaitsUntilTheOtherProcessIsDone) {
  ASSERT_OK_AND_ASSIGN(auto other, LockElsewhere());
  FakeClock clock;
  auto taken =
      std::async(std::launch::async, [&] { return PrefixHold::Take(fs_, prefix_, &clock); });
  clock.AwaitWaiters(1);
  other.reset();
  clock.Advance(absl::Seconds(1));
  ASSERT_OK_AND_ASSIGN(const auto hold, taken.get());
  EXPECT_STATUS(LockElsewhere().status(), absl::StatusCode::kUnavailable, "must be free");
}

TEST_F(PrefixHoldTest, ThreadsOfOneProcessTakeTurnsAndWaitNoLonger) {
  ASSERT_OK_AND_ASSIGN(auto hold, PrefixHold::Take(fs_, prefix_));
  FakeClock clock;
  auto other =
      std::async(std::launch::async, [&] { return PrefixHold::Take(fs_, prefix_, &clock); });
  clock.AwaitWaiters(1);
  hold.reset();
  ASSERT_OK(other.get().status());
  ASSERT_OK_AND_ASSIGN(hold, PrefixHold::Take(fs_, prefix_));
  EXPECT_STATUS(PrefixHold::Take(fs_, prefix_, &clock, absl::ZeroDuration()).status(),
                absl::StatusCode::kDeadlineExceeded, "another thread of this process");
}

// A step that was cancelled, or whose time is over, does not wait on for another process, nor for
// another thread.
TEST_F(PrefixHoldTest, WhoIsToStopWaitsNoLonger) {
  for (const bool is_process : {true, false}) {
    SCOPED_TRACE(is_process);
    FakeClock clock;
    std::unique_ptr<FileLock> elsewhere;
    std::unique_ptr<PrefixHold> here;
    if (is_process) {
      ASSERT_OK_AND_ASSIGN(elsewhere, LockElsewhere());
    } else {
      ASSERT_OK_AND_ASSIGN(here, PrefixHold::Take(fs_, prefix_));
    }
    std::atomic<bool> is_cancelled = false;
    auto taken = std::async(std::launch::async, [&] {
      return PrefixHold::Take(fs_, prefix_, &clock, PrefixHold::kPatience,
                              [&] {
                                return is_cancelled ? absl::CancelledError("the step was cancelled")
                                                    : absl::OkStatus();
                              })
          .status();
    });
    clock.AwaitWaiters(1);
    is_cancelled = true;
    clock.Advance(absl::Milliseconds(100));
    EXPECT_STATUS(taken.get(), absl::StatusCode::kCancelled, "the step was cancelled");
  }
}

TEST_F(PrefixHoldTest, ABundleThatIsToStopLeavesNothingAndWaitsForNobody) {
  ASSERT_OK_AND_ASSIGN(const auto other, LockElsewhere());
  const auto cancelled = [] { return absl::CancelledError("the step was cancelled"); };
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("w", Tensor::Scalar(1.f)));
    EXPECT_STATUS(writer->Finish(cancelled), absl::StatusCode::kCancelled, "cancelled");
  }
  const std::string part = JoinPath(directory_, "part");
  ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(fs_, part));
  ASSERT_OK(writer->Add("w", Tensor::Scalar(1.f)));
  ASSERT_OK(writer->Finish());
  EXPECT_STATUS(MergeBundles(fs_, {part}, prefix_, /*delete_parts=*/true, cancelled),
                absl::StatusCode::kCancelled, "cancelled");
  ASSERT_OK_AND_ASSIGN(std::vector<std::string> names, fs_->GetChildren(directory_));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{Basename(BundleLockPath(prefix_)),
                                             "part.data-00000-of-00001", "part.index"}));
}

TEST_F(PrefixHoldTest, AKilledProcessLeavesNoLock) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto hold = PrefixHold::Take(fs_, prefix_);
    (void)!::write(ready[1], hold.ok() ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  FakeClock clock;
  EXPECT_STATUS(PrefixHold::Take(fs_, prefix_, &clock, absl::ZeroDuration()).status(),
                absl::StatusCode::kDeadlineExceeded,
                absl::StrCat("held by process ", child, " on "));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs_->FileExists(BundleLockPath(prefix_)));
  EXPECT_OK(PrefixHold::Take(fs_, prefix_, &clock).status());
  EXPECT_FALSE(fs_->FileExists(BundleLockPath(prefix_)));
  ::close(ready[0]);
  ::close(ready[1]);
}

// Where files cannot be locked.
class LocklessFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    return FileSystem::TryLockFile(path, holder);
  }
};

TEST_F(PrefixHoldTest, WhereFilesCannotBeLockedThreadsTakeTurnsAllTheSame) {
  LocklessFiles files(fs_, directory_);
  FakeClock clock;
  ASSERT_OK_AND_ASSIGN(const auto hold, PrefixHold::Take(&files, prefix_));
  EXPECT_STATUS(PrefixHold::Take(&files, prefix_, &clock, absl::ZeroDuration()).status(),
                absl::StatusCode::kDeadlineExceeded, "another thread of this process");
  FaultyFileSystem full(fs_, directory_);
  full.FailOperation(1, absl::ResourceExhaustedError("disk full"));
  EXPECT_STATUS(PrefixHold::Take(&full, JoinPath(directory_, "m-2")).status(),
                absl::StatusCode::kResourceExhausted, "m-2': disk full");
}

// NFS may lose the answer to a rename that was done, and remember the old name for a while.
class ForgetfulFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  Status RenameFile(const std::string& source, const std::string& target) override {
    if (!absl::EndsWith(target, ".index")) return FaultyFileSystem::RenameFile(source, target);
    if (renames) MR_RETURN_IF_ERROR(FaultyFileSystem::RenameFile(source, target));
    still_seen = source;
    return absl::UnknownError("Stale file handle");
  }
  bool FileExists(const std::string& path) override {
    return path == still_seen || FaultyFileSystem::FileExists(path);
  }
  bool renames = true;
  std::string still_seen;
};

TEST_F(PrefixHoldTest, AnIndexThatHasItsNameAfterAllKeepsItsData) {
  ForgetfulFiles files(fs_, directory_);
  for (const bool renames : {false, true}) {
    files.renames = renames;
    ASSERT_OK_AND_ASSIGN(const auto writer, BundleWriter::Open(&files, prefix_));
    ASSERT_OK(writer->Add("w", Tensor::Scalar(1.f)));
    const Status finished = writer->Finish();
    EXPECT_EQ(finished.ok(), renames) << finished;
    EXPECT_EQ(fs_->FileExists(BundleDataPath(prefix_, 0, 1)), renames);
  }
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(fs_, prefix_));
  ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
  EXPECT_EQ(w.scalar<float>(), 1);
}

}  // namespace
}  // namespace millrace
