// SPDX-License-Identifier: Apache-2.0
#include "core/testing/faulty_file_system.h"

#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

using Tree = std::map<std::string, std::string>;  // files by name

class FaultyFileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = JoinPath(testing::TempDir(), "faulty_" + name);
    cut_ = root_ + "_cut";
    for (const std::string& path : {root_, cut_}) {
      if (posix_->FileExists(path)) {
        ASSERT_EQ(posix_->RecursivelyDelete(path), absl::OkStatus());
      }
    }
  }
  std::string Path(absl::string_view name) const { return JoinPath(root_, name); }

  Tree TreeOf(const std::string& directory) {
    Tree tree;
    const auto children = posix_->GetChildren(directory);
    EXPECT_EQ(children.status(), absl::OkStatus());
    for (const std::string& child : *children) {
      const std::string path = JoinPath(directory, child);
      if (*posix_->IsDirectory(path)) {
        for (auto& [name, bytes] : TreeOf(path)) tree[child + "/" + name] = bytes;
      } else {
        tree[child] = *ReadFileToString(posix_, path);
      }
    }
    return tree;
  }
  Tree Cut(FaultyFileSystem* fs, int64_t operations, Loss loss, uint64_t seed = 0) {
    EXPECT_EQ(fs->RestoreCut(operations, loss, seed, cut_), absl::OkStatus());
    return TreeOf(cut_);
  }

  FileSystem* const posix_ = FileSystem::Posix();
  std::string root_, cut_;
};

TEST_F(FaultyFileSystemTest, TheKthOperationFailsAndAnAppendIsTorn) {
  FaultyFileSystem fs(posix_, root_);
  fs.FailOperation(2, absl::ResourceExhaustedError("disk full"));
  auto file = fs.NewWritableFile(Path("f"));
  ASSERT_EQ(file.status(), absl::OkStatus());
  EXPECT_EQ((*file)->Append("0123456789"), absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ((*file)->Append("more").code(), absl::StatusCode::kResourceExhausted);
  file->reset();
  EXPECT_EQ(*ReadFileToString(posix_, Path("f")), "01234");
  EXPECT_EQ(fs.OperationText(2), "append " + Path("f") + " 10");
  EXPECT_EQ(fs.DeleteFile(Path("f")), absl::OkStatus()) << "only one fails";
}

TEST_F(FaultyFileSystemTest, StickyFailureStays) {
  FaultyFileSystem fs(posix_, root_);
  fs.FailOperation(2, absl::UnknownError("gone"), /*sticky=*/true);
  EXPECT_EQ(fs.CreateDirectory(Path("a")), absl::OkStatus());
  EXPECT_FALSE(fs.CreateDirectory(Path("b")).ok());
  EXPECT_FALSE(fs.CreateDirectory(Path("c")).ok());
  EXPECT_EQ(*posix_->GetChildren(root_), std::vector<std::string>{"a"});
}

TEST_F(FaultyFileSystemTest, UnsyncedBytesAndNamesAreForgotten) {
  ASSERT_EQ(posix_->RecursivelyCreateDirectory(root_), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(posix_, Path("before"), "was there"), absl::OkStatus());
  FaultyFileSystem fs(posix_, root_);
  auto file = fs.NewWritableFile(Path("f"));
  ASSERT_EQ((*file)->Append("synced"), absl::OkStatus());
  ASSERT_EQ((*file)->Sync(), absl::OkStatus());
  ASSERT_EQ(fs.SyncDirectory(root_), absl::OkStatus());
  ASSERT_EQ((*file)->Append(" and not"), absl::OkStatus());
  ASSERT_EQ((*file)->Close(), absl::OkStatus());
  ASSERT_EQ(fs.RenameFile(Path("f"), Path("g")), absl::OkStatus());
  ASSERT_EQ(fs.DeleteFile(Path("before")), absl::OkStatus());
  const int64_t all = fs.num_operations();
  EXPECT_EQ(Cut(&fs, all, Loss::kEverythingUnsynced),
            (Tree{{"before", "was there"}, {"f", "synced"}}));
  EXPECT_EQ(Cut(&fs, all, Loss::kUnsyncedData), (Tree{{"g", "synced"}}));
  EXPECT_EQ(Cut(&fs, all, Loss::kUnsyncedNames),
            (Tree{{"before", "was there"}, {"f", "synced and not"}}));
  EXPECT_EQ(Cut(&fs, 0, Loss::kUnsyncedNames), (Tree{{"before", "was there"}}));
  EXPECT_EQ(Cut(&fs, 3, Loss::kUnsyncedData), (Tree{{"before", "was there"}, {"f", "synced"}}));
  EXPECT_EQ(Cut(&fs, 3, Loss::kEverythingUnsynced), (Tree{{"before", "was there"}}));
}

TEST_F(FaultyFileSystemTest, RandomLossReachesManyStatesAndRepeatsWithItsSeed) {
  FaultyFileSystem fs(posix_, root_);
  auto file = fs.NewWritableFile(Path("f"));
  ASSERT_EQ((*file)->Append("0123456789"), absl::OkStatus());
  ASSERT_EQ(fs.CreateDirectory(Path("d")), absl::OkStatus());
  ASSERT_EQ(fs.RenameFile(Path("f"), Path("d/f")), absl::OkStatus());
  std::set<Tree> states;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Tree tree = Cut(&fs, fs.num_operations(), Loss::kRandom, seed);
    EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kRandom, seed), tree);
    for (const auto& [name, bytes] : tree) {
      EXPECT_TRUE(name == "f" || name == "d/f") << name;
      EXPECT_EQ(bytes, std::string("0123456789").substr(0, bytes.size()));
    }
    states.insert(tree);
  }
  EXPECT_GT(states.size(), 5u);
}

TEST_F(FaultyFileSystemTest, ATruncatedFileKeepsItsOldBytesUntilSynced) {
  ASSERT_EQ(posix_->RecursivelyCreateDirectory(root_), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(posix_, Path("f"), "old"), absl::OkStatus());
  FaultyFileSystem fs(posix_, root_);
  auto file = fs.NewWritableFile(Path("f"));
  ASSERT_EQ((*file)->Append("new"), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, 2, Loss::kEverythingUnsynced), (Tree{{"f", "old"}}));
  EXPECT_EQ(Cut(&fs, 1, Loss::kUnsyncedNames), (Tree{{"f", ""}}));
  ASSERT_EQ((*file)->Sync(), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, 3, Loss::kEverythingUnsynced), (Tree{{"f", "new"}}));
}

TEST_F(FaultyFileSystemTest, DirectoriesMoveWithWhatIsInThem) {
  FaultyFileSystem fs(posix_, root_);
  ASSERT_EQ(fs.RecursivelyCreateDirectory(Path("a/b")), absl::OkStatus());
  auto file = fs.NewWritableFile(Path("a/b/f"));
  ASSERT_EQ((*file)->Append("x"), absl::OkStatus());
  ASSERT_EQ((*file)->Sync(), absl::OkStatus());
  ASSERT_EQ(fs.SyncDirectory(Path("a/b")), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kEverythingUnsynced), Tree())
      << "the name is durable, its parents are not";
  ASSERT_EQ(fs.SyncDirectory(Path("a")), absl::OkStatus());
  ASSERT_EQ(fs.SyncDirectory(root_), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kEverythingUnsynced), (Tree{{"a/b/f", "x"}}));
  ASSERT_EQ(fs.RenameFile(Path("a"), Path("c")), absl::OkStatus());
  ASSERT_EQ(fs.SyncDirectory(root_), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kEverythingUnsynced), (Tree{{"c/b/f", "x"}}));
  ASSERT_EQ(fs.RecursivelyDelete(Path("c")), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kUnsyncedData), Tree());
}

// The promise of file_system.h: the old file or the new one, never anything between.
TEST_F(FaultyFileSystemTest, AtomicWriteSurvivesEveryCutAndEveryFailure) {
  ASSERT_EQ(posix_->RecursivelyCreateDirectory(root_), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(posix_, Path("state"), "old"), absl::OkStatus());
  FaultyFileSystem fs(posix_, root_);
  ASSERT_EQ(WriteFileAtomically(&fs, Path("state"), "new"), absl::OkStatus());
  const int64_t all = fs.num_operations();
  EXPECT_EQ(all, 6) << "create, append, sync, close, rename, sync of the directory";
  for (int64_t cut = 0; cut <= all; ++cut) {
    for (const Loss loss :
         {Loss::kEverythingUnsynced, Loss::kUnsyncedData, Loss::kUnsyncedNames, Loss::kRandom}) {
      for (uint64_t seed = 0; seed < (loss == Loss::kRandom ? 20 : 1); ++seed) {
        Tree tree = Cut(&fs, cut, loss, seed);
        const std::string state = tree["state"];
        EXPECT_TRUE(state == "new" || (state == "old" && cut < all))
            << "'" << state << "' after " << fs.OperationText(cut);
      }
    }
  }
  for (int64_t k = 1; k <= all; ++k) {
    ASSERT_EQ(WriteFileAtomically(posix_, Path("state"), "old"), absl::OkStatus());
    FaultyFileSystem failing(posix_, root_);
    failing.FailOperation(k, absl::ResourceExhaustedError("disk full"));
    EXPECT_EQ(WriteFileAtomically(&failing, Path("state"), "new").code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(TreeOf(root_), (Tree{{"state", k < all ? "old" : "new"}})) << "no temporary is left";
  }
}

// A writer that forgets the sync is caught: the harness itself is tested.
TEST_F(FaultyFileSystemTest, ARenameWithoutSyncIsSeenToLoseBytes) {
  FaultyFileSystem fs(posix_, root_);
  auto file = fs.NewWritableFile(Path("tmp"));
  ASSERT_EQ((*file)->Append("new"), absl::OkStatus());
  ASSERT_EQ((*file)->Close(), absl::OkStatus());
  ASSERT_EQ(fs.RenameFile(Path("tmp"), Path("state")), absl::OkStatus());
  ASSERT_EQ(fs.SyncDirectory(root_), absl::OkStatus());
  EXPECT_EQ(Cut(&fs, fs.num_operations(), Loss::kUnsyncedData), (Tree{{"state", ""}}));
}

}  // namespace
}  // namespace millrace
