// SPDX-License-Identifier: Apache-2.0
#include "train/run_sweep.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "run/run_directory.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "saver/saver.h"

// covers: training: the next chief and the end of a run delete the checkpoints and temporary files
//   that killed saves left, and no file that a user may own

namespace millrace {
namespace {

class RunSweepTest : public ::testing::Test {
 protected:
  // A chief, as far as the directory knows it.
  struct Chief {
    std::unique_ptr<RunDirectory> directory;
    std::unique_ptr<RunSweep> sweep;
    TrainingRun run;
  };

  RunSweepTest()
      : fs_(FileSystem::Posix()),
        dir_(JoinPath(::testing::TempDir(), absl::StrCat("sweep_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
  }
  ~RunSweepTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  Chief NewChief(const std::string& run = "run") {
    Chief chief;
    chief.directory = std::make_unique<RunDirectory>(fs_, Clock::Real(), "Test", dir_, run);
    const auto taken = chief.directory->TakeOver("chief");
    EXPECT_OK(taken.status());
    if (taken.ok()) chief.run = *taken;
    chief.sweep = std::make_unique<RunSweep>(fs_, "Test", dir_);
    chief.sweep->TookOver(chief.run);
    return chief;
  }
  void Write(const std::string& name) const {
    EXPECT_OK(WriteFileAtomically(fs_, Path(name), "x"));
  }
  // From an hour ago.
  void WriteOld(const std::string& name) const {
    Write(name);
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(Path(name), now - std::chrono::hours(1));
  }
  void WriteCheckpoint(const std::string& name) const {
    for (const char* suffix : {".data-00000-of-00001", ".index", ".meta"}) Write(name + suffix);
  }
  void WriteState(const std::vector<std::string>& names) const {
    CheckpointState state;
    for (const std::string& name : names) state.all.push_back(Path(name));
    state.latest = state.all.back();
    EXPECT_OK(WriteCheckpointState(fs_, dir_, state));
  }
  bool Has(const std::string& name) const { return fs_->FileExists(Path(name)); }
  bool HasCheckpoint(const std::string& name) const {
    const bool has = Has(name + ".index");
    EXPECT_EQ(Has(name + ".data-00000-of-00001"), has) << name;
    EXPECT_EQ(Has(name + ".meta"), has) << name;
    return has;
  }
  std::vector<std::string> Paths(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(Path(name));
    return paths;
  }
  // m-1 to m-5 are there and listed, and a save of m-6 begins.
  Chief KilledChief(const RunSweep::Retention& retention = {}, const std::string& run = "run") {
    const std::vector<std::string> kept = {"m-1", "m-2", "m-3", "m-4", "m-5"};
    for (const std::string& name : kept) WriteCheckpoint(name);
    WriteState(kept);
    Chief chief = NewChief(run);
    chief.sweep->SaveBegins(Path("m-6"), Paths(kept), retention);
    WriteCheckpoint("m-6");
    return chief;
  }

  FileSystem* const fs_;
  const std::string dir_;
};

// --- Checkpoints ---------------------------------------------------------------------------------

TEST_F(RunSweepTest, ASaveThatWasKilledBeforeItsCommitIsDeletedByTheNextChief) {
  KilledChief();
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-5"));
  EXPECT_FALSE(HasCheckpoint("m-6"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5"}) EXPECT_TRUE(HasCheckpoint(name));
}

TEST_F(RunSweepTest, ASaveThatWasKilledBeforeItDeletedTheOldestIsMadeUpFor) {
  KilledChief();
  WriteState({"m-2", "m-3", "m-4", "m-5", "m-6"});
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-6"));
  EXPECT_FALSE(HasCheckpoint("m-1"));
  for (const char* name : {"m-2", "m-3", "m-4", "m-5", "m-6"}) EXPECT_TRUE(HasCheckpoint(name));
}

// A parameter server may finish what its chief has given up.
TEST_F(RunSweepTest, ASaveThatFailedAndIsFinishedByATaskLaterIsDeletedAtTheEndOfTheRun) {
  Chief chief = KilledChief();
  chief.sweep->SaveEnded(Path("m-6"), absl::UnavailableError("ps is gone"));
  chief.sweep->SaveBegins(Path("m-7"), Paths({"m-1", "m-2", "m-3", "m-4", "m-5"}), {});
  WriteCheckpoint("m-7");
  WriteState({"m-2", "m-3", "m-4", "m-5", "m-7"});
  EXPECT_OK(DeleteCheckpoint(fs_, Path("m-1")));
  chief.sweep->SaveEnded(Path("m-7"), absl::OkStatus());
  chief.sweep->Sweep(Path("m-7"));
  EXPECT_FALSE(HasCheckpoint("m-6"));
  for (const char* name : {"m-2", "m-3", "m-4", "m-5", "m-7"}) EXPECT_TRUE(HasCheckpoint(name));
}

TEST_F(RunSweepTest, ASaveThatComesTrueAfterTheNextChiefHasBegunIsDeletedAtTheEnd) {
  KilledChief();
  ASSERT_OK(DeleteCheckpoint(fs_, Path("m-6")));
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-5"));
  WriteCheckpoint("m-6");
  next.sweep->Sweep(Path("m-5"));
  EXPECT_FALSE(HasCheckpoint("m-6"));
}

// Killed before there was a list.
TEST_F(RunSweepTest, WhatWasRestoredWithoutAListStaysUntilThereIsOne) {
  {
    const Chief first = NewChief();
    first.sweep->SaveBegins(Path("m-1"), {}, {});
    WriteCheckpoint("m-1");
  }
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-1"));
  EXPECT_TRUE(HasCheckpoint("m-1"));
  next.sweep->SaveBegins(Path("m-2"), {}, {});
  WriteCheckpoint("m-2");
  WriteState({"m-2"});
  next.sweep->SaveEnded(Path("m-2"), absl::OkStatus());
  next.sweep->Sweep(Path("m-2"));
  EXPECT_FALSE(HasCheckpoint("m-1"));
  EXPECT_TRUE(HasCheckpoint("m-2"));
}

TEST_F(RunSweepTest, NothingIsDeletedWhileASaveRuns) {
  const Chief chief = KilledChief();
  chief.sweep->Sweep(Path("m-5"));
  EXPECT_TRUE(HasCheckpoint("m-6"));
}

// Does something right before a lock of m-6 is taken.
class WatchedFileSystem : public FaultyFileSystem {
 public:
  explicit WatchedFileSystem(const std::string& root)
      : FaultyFileSystem(FileSystem::Posix(), root) {}
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    if (before_lock && Basename(path) == "m-6.lock") std::exchange(before_lock, nullptr)();
    return FaultyFileSystem::TryLockFile(path, holder);
  }
  std::function<void()> before_lock;
};

TEST_F(RunSweepTest, WhatASaveListsOrWritesWhileTheSweepLooksStays) {
  for (const bool ends : {true, false}) {
    SCOPED_TRACE(ends);
    KilledChief();
    const Chief next = NewChief();
    WatchedFileSystem fs(dir_);
    RunSweep sweep(&fs, "Test", dir_);
    sweep.TookOver(next.run);
    bool was_asked = false;
    fs.before_lock = [&] {
      was_asked = true;
      sweep.SaveBegins(Path("m-6"), Paths({"m-1", "m-2", "m-3", "m-4", "m-5"}), {});
      if (!ends) return;
      WriteState({"m-2", "m-3", "m-4", "m-5", "m-6"});
      sweep.SaveEnded(Path("m-6"), absl::OkStatus());
    };
    sweep.Sweep(Path("m-5"));
    EXPECT_TRUE(was_asked);
    EXPECT_TRUE(HasCheckpoint("m-6"));
  }
}

// --- What a user may own -------------------------------------------------------------------------

TEST_F(RunSweepTest, CheckpointsThatNoRecordNamesStay) {
  KilledChief();
  const std::vector<std::string> own = {"m-3-copy", "best-6", "m", "m-0", "m-60", "old-m-6"};
  for (const std::string& name : own) WriteCheckpoint(name);
  ASSERT_OK(fs_->RecursivelyCreateDirectory(Path("kept")));
  WriteCheckpoint("kept/m-6");
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-5"));
  EXPECT_FALSE(HasCheckpoint("m-6"));
  for (const std::string& name : own) EXPECT_TRUE(HasCheckpoint(name)) << name;
  EXPECT_TRUE(HasCheckpoint("kept/m-6"));
}

TEST_F(RunSweepTest, NothingIsDeletedWhereSomebodyHasChosenAnotherCheckpointByHand) {
  KilledChief();
  ASSERT_OK(WriteFileAtomically(fs_, Path("checkpoint"), "model_checkpoint_path: \"m-3\"\n"));
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-3"));
  // Training goes on from there, and writes a list of its own.
  next.sweep->SaveBegins(Path("m-4"), Paths({"m-3"}), {});
  WriteState({"m-3", "m-4"});
  next.sweep->SaveEnded(Path("m-4"), absl::OkStatus());
  next.sweep->Sweep(Path("m-4"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5", "m-6"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
}

TEST_F(RunSweepTest, NothingIsDeletedWhereTheOneInUseIsNotListed) {
  KilledChief();
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-6"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5", "m-6"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
}

TEST_F(RunSweepTest, WhatIsKeptForEverStays) {
  // The state file lists the last one alone.
  KilledChief({.max_to_keep = 0});
  EXPECT_FALSE(Has("run_saves.json"));
  WriteState({"m-6"});
  NewChief().sweep->Sweep(Path("m-6"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5", "m-6"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
  // One of every so many hours has left the list.
  KilledChief({.max_to_keep = 2, .keeps_some_forever = true});
  WriteState({"m-5", "m-6"});
  NewChief().sweep->Sweep(Path("m-6"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5", "m-6"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
}

// The former chief deleted what it did not list, the next one keeps some for ever.
TEST_F(RunSweepTest, WhatTheNextChiefHasTakenOverIsItsOwnToKeep) {
  Chief former = KilledChief();
  WriteState({"m-2", "m-3", "m-4", "m-5", "m-6"});
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-6"));
  next.sweep->SaveBegins(Path("m-7"), Paths({"m-2", "m-3", "m-4", "m-5", "m-6"}),
                         {.keeps_some_forever = true});
  WriteCheckpoint("m-7");
  WriteState({"m-3", "m-4", "m-5", "m-6", "m-7"});
  next.sweep->SaveEnded(Path("m-7"), absl::OkStatus());
  next.sweep->Sweep(Path("m-7"));
  for (const char* name : {"m-2", "m-3", "m-4", "m-5", "m-6", "m-7"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
}

// The last save had deleted it; a copy of it comes back by hand when the run is over.
TEST_F(RunSweepTest, WhatAUserPutsBackAfterTheEndStays) {
  Chief chief = KilledChief();
  WriteState({"m-2", "m-3", "m-4", "m-5", "m-6"});
  ASSERT_OK(DeleteCheckpoint(fs_, Path("m-1")));
  chief.sweep->SaveEnded(Path("m-6"), absl::OkStatus());
  chief.sweep->Sweep(Path("m-6"));
  WriteCheckpoint("m-1");
  const Chief next = NewChief();
  next.sweep->Sweep(Path("m-6"));
  for (const char* name : {"m-1", "m-2", "m-3", "m-4", "m-5", "m-6"}) {
    EXPECT_TRUE(HasCheckpoint(name)) << name;
  }
}

TEST_F(RunSweepTest, TheRecordOfAnotherRunSaysNothing) {
  KilledChief();
  // The directory was copied, or moved.
  const Chief other = NewChief("copy");
  other.sweep->Sweep(Path("m-5"));
  EXPECT_TRUE(HasCheckpoint("m-6"));
}

TEST_F(RunSweepTest, ADamagedRecordSaysNothing) {
  for (const char* text : {"", "{", "[]", "{\"checkpoints\": [\"m-6\"]}", "{\"id\": 7}"}) {
    SCOPED_TRACE(text);
    KilledChief();
    ASSERT_OK(WriteFileAtomically(fs_, Path("run_saves.json"), text));
    NewChief().sweep->Sweep(Path("m-5"));
    EXPECT_TRUE(HasCheckpoint("m-6"));
  }
  // Nor does one that names what is not in the directory.
  const Chief chief = NewChief();
  ASSERT_OK(fs_->RecursivelyCreateDirectory(Path("sub")));
  WriteCheckpoint("sub/m-6");
  ASSERT_OK(WriteRunSaves(fs_, dir_, {.id = chief.run.id, .checkpoints = {"sub/m-6", "..", ""}}));
  NewChief().sweep->Sweep(Path("m-5"));
  EXPECT_TRUE(HasCheckpoint("sub/m-6"));
}

// --- Temporary files -----------------------------------------------------------------------------

TEST_F(RunSweepTest, TemporaryFilesOlderThanTheChiefGoAndEveryOtherFileStays) {
  const std::string hex = "0123456789abcdef";
  KilledChief();
  const std::vector<std::string> nobodys = {
      "graph.pbtxt.tmp" + hex,
      "run.json.tmp" + hex,
      "run_end.json.tmp" + hex,
      "run_end-89abcdef.json.tmp" + hex,
      "run_saves.json.tmp" + hex,
      "checkpoint.tmp" + hex,
      "evaluation_done.tmp" + hex,
      ".writable_" + hex,
      "m-6.meta.tmp" + hex,
      "m-6.index.tempstate" + hex,
      "m-5.data-00000-of-00001.tempstate" + hex,
  };
  const std::vector<std::string> somebodys = {
      "graph.pbtxt",
      "graph.pbtxt.tmp",
      "graph.pbtxt.tmp0123",
      "graph.pbtxt.tmp0123456789ABCDEF",
      "graph.pbtxt.tmp" + hex + ".bak",
      "my_graph.pbtxt.tmp" + hex,
      "notes.tmp" + hex,
      "run_end-89abcdef.txt.tmp" + hex,
      "events.out.tfevents.1.host.tmp" + hex,
      "best-6.index.tempstate" + hex,
      "m-60.index.tempstate" + hex,
      "m-6.tempstate" + hex,
      "m-60.meta.tmp" + hex,
      "x.writable_" + hex,
      "tempstate" + hex,
  };
  for (const std::string& name : nobodys) WriteOld(name);
  for (const std::string& name : somebodys) WriteOld(name);
  ASSERT_OK(fs_->RecursivelyCreateDirectory(Path("run.json.tmpfedcba9876543210")));
  const Chief next = NewChief();
  // Of this chief's time.
  const std::string young = "graph.pbtxt.tmp0000000000000000";
  Write(young);
  next.sweep->Sweep(Path("m-5"));
  for (const std::string& name : nobodys) EXPECT_FALSE(Has(name)) << name;
  for (const std::string& name : somebodys) EXPECT_TRUE(Has(name)) << name;
  EXPECT_TRUE(Has(young));
  EXPECT_TRUE(Has("run.json.tmpfedcba9876543210")) << "a directory";
}

// The chief after it may save only once more, or not at all.
TEST_F(RunSweepTest, HalvesOfASaveThatWasKilledGoAndWhatAnybodyMayBeWritingStays) {
  const std::vector<std::string> kept = {"m-1", "m-2", "m-3", "m-4", "m-5"};
  for (const std::string& name : kept) WriteCheckpoint(name);
  WriteState(kept);
  const std::string hex = "0123456789abcdef0123456789abcdef";
  const auto write_parts = [&](const std::string& directory, const std::string& file) {
    ASSERT_OK(fs_->RecursivelyCreateDirectory(Path(directory)));
    WriteOld(JoinPath(directory, file));
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(Path(directory), now - std::chrono::hours(1));
  };
  const std::string part = "part-00000-of-00002.index";
  {
    const Chief killed = NewChief();
    killed.sweep->SaveBegins(Path("m-6"), Paths(kept), {});
    WriteOld("m-6.data-00000-of-00002");
    WriteOld("m-6.meta");
    ASSERT_NO_FATAL_FAILURE(write_parts("m-6_temp_" + hex, part));
    // One that was finished, before its parts were deleted.
    ASSERT_NO_FATAL_FAILURE(write_parts("m-5_temp_" + hex, part));
  }
  const std::string notes = "m-6_temp_" + std::string(32, 'a');
  ASSERT_NO_FATAL_FAILURE(write_parts(notes, "notes.txt"));
  const std::string foreign = "m-60_temp_" + hex, other = "m-60.data-00000-of-00001";
  ASSERT_NO_FATAL_FAILURE(write_parts(foreign, part));
  WriteOld(other);
  const Chief next = NewChief();
  // A parameter server is at it still.
  const std::string young = "m-6_temp_" + std::string(32, 'b');
  ASSERT_NO_FATAL_FAILURE(write_parts(young, part));
  Write(JoinPath(young, "part-00001-of-00002.index"));
  next.sweep->Sweep(Path("m-5"));
  for (const char* name : {"m-6.data-00000-of-00002", "m-6.meta"}) EXPECT_FALSE(Has(name)) << name;
  EXPECT_FALSE(Has("m-6_temp_" + hex));
  EXPECT_FALSE(Has("m-5_temp_" + hex));
  for (const std::string& name : {notes, foreign, other, young}) EXPECT_TRUE(Has(name)) << name;
  for (const std::string& name : kept) EXPECT_TRUE(HasCheckpoint(name)) << name;
}

TEST_F(RunSweepTest, DataThatSomebodyWritesOrListsStaysWithoutItsIndex) {
  const std::vector<std::string> kept = {"m-4", "m-5"};
  for (const std::string& name : kept) WriteCheckpoint(name);
  WriteState(kept);
  {
    const Chief killed = NewChief();
    killed.sweep->SaveBegins(Path("m-6"), Paths(kept), {});
  }
  WriteOld("m-4.data-00000-of-00001");
  WriteOld("m-4.meta");
  ASSERT_OK(fs_->DeleteFile(Path("m-4.index")));  // listed, and damaged
  const Chief next = NewChief();
  WriteOld("m-6.meta");
  next.sweep->Sweep(Path("m-5"));
  EXPECT_TRUE(Has("m-6.meta")) << "by itself it may be somebody's";
  Write("m-6.data-00000-of-00001");
  next.sweep->Sweep(Path("m-5"));
  for (const char* name :
       {"m-6.data-00000-of-00001", "m-6.meta", "m-4.data-00000-of-00001", "m-4.meta"}) {
    EXPECT_TRUE(Has(name)) << name;
  }
}

TEST_F(RunSweepTest, WhatAnEvaluatorMayBeWritingStaysForAMinute) {
  const std::string name = "evaluation_done.tmp0123456789abcdef";
  Write(name);
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(Path(name), now - std::chrono::seconds(30));
  NewChief().sweep->Sweep("");
  EXPECT_TRUE(Has(name));
}

TEST_F(RunSweepTest, WithoutADirectoryOfItsOwnItDoesNothing) {
  RunSweep sweep(fs_, "Test", dir_);
  WriteOld("graph.pbtxt.tmp0123456789abcdef");
  sweep.SaveBegins(Path("m-1"), {}, {});
  sweep.SaveEnded(Path("m-1"), absl::OkStatus());
  sweep.Sweep("");
  EXPECT_TRUE(Has("graph.pbtxt.tmp0123456789abcdef"));
  EXPECT_FALSE(Has("run_saves.json"));
}

}  // namespace
}  // namespace millrace
