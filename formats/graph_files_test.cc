// SPDX-License-Identifier: Apache-2.0
#include "formats/graph_files.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: graphs use files of the server's roots only, also through `..` and links

namespace millrace {
namespace {

class GraphFilesTest : public ::testing::Test {
 protected:
  GraphFilesTest() {
    FileSystem* const fs = FileSystem::Posix();
    for (const std::string& directory : {base_, root_, outside_, Path("root/inner")}) {
      EXPECT_OK(fs->RecursivelyCreateDirectory(directory));
    }
    EXPECT_OK(WriteFileAtomically(fs, Path("root/inside"), "inside"));
    EXPECT_OK(WriteFileAtomically(fs, Path("root_but_longer"), "outside"));
    EXPECT_OK(WriteFileAtomically(fs, Path("outside/secret"), "secret"));
    Link("../outside/secret", "root/link");
    Link(outside_, "root/door");
    Link("../outside/not_there_yet", "root/dangling");
    Link("loop", "root/loop");
    Link("inside", "root/alias");
    Link(root_, "way_in");
    auto confined = ConfineFiles(fs, {root_});
    EXPECT_OK(confined);
    if (confined.ok()) files_ = *std::move(confined);
  }
  ~GraphFilesTest() override {
    EXPECT_OK(SetGraphFileRoots({}));
    EXPECT_OK(FileSystem::Posix()->RecursivelyDelete(base_));
  }
  std::string Path(absl::string_view name) const { return JoinPath(base_, name); }
  void Link(const std::string& target, absl::string_view name) {
    EXPECT_EQ(::symlink(target.c_str(), Path(name).c_str()), 0);
  }

  const std::string base_ = absl::StrCat(::testing::TempDir(), "/graph_files_", ::getpid());
  const std::string root_ = Path("root"), outside_ = Path("outside");
  std::unique_ptr<FileSystem> files_;
};

TEST_F(GraphFilesTest, WhatLiesInsideIsUsedByAnyPathThatLeadsThere) {
  for (const std::string& path :
       {Path("root/inside"), Path("root/inner/../inside"), Path("root/./inside"),
        Path("root//inside"), Path("outside/../root/inside"), Path("root/alias"),
        Path("way_in/inside")}) {
    const auto text = ReadFileToString(files_.get(), path);
    EXPECT_OK(text) << path;
    EXPECT_EQ(text.value_or(""), "inside") << path;
  }
  const std::string fresh = Path("root/inner/a/b");
  EXPECT_OK(files_->RecursivelyCreateDirectory(fresh));
  EXPECT_OK(WriteFileAtomically(files_.get(), JoinPath(fresh, "c"), "c"));
  EXPECT_OK(files_->RenameFile(JoinPath(fresh, "c"), JoinPath(root_, "d")));
  EXPECT_OK(files_->DeleteFile(JoinPath(root_, "d")));
  EXPECT_TRUE(files_->FileExists(root_));
  EXPECT_OK(files_->GetChildren(root_));
}

TEST_F(GraphFilesTest, WhatLiesOutsideIsRefusedInEachWay) {
  const std::vector<std::string> outside = {
      Path("outside/secret"),
      Path("root/../outside/secret"),
      Path("root/inner/../../outside/secret"),
      Path("root/not_there/../../outside/secret"),
      Path("root/link"),
      Path("root/door/secret"),
      Path("root/door/../outside/secret"),
      Path("root/dangling"),
      Path("root/loop"),
      Path("root_but_longer"),
      base_,
      "/etc/passwd",
      "/",
      "",
      "relative",
      "../../../../../../etc/passwd",
  };
  const auto refused = [](const Status& status) {
    EXPECT_STATUS(status, absl::StatusCode::kPermissionDenied, "of this server's roots only");
  };
  for (const std::string& path : outside) {
    SCOPED_TRACE(path);
    refused(files_->NewRandomAccessFile(path).status());
    refused(files_->NewWritableFile(path).status());
    refused(files_->NewAppendableFile(path).status());
    refused(files_->NewExclusiveFile(path).status());
    EXPECT_FALSE(files_->FileExists(path));
    refused(files_->IsDirectory(path).status());
    refused(files_->GetFileSize(path).status());
    refused(files_->GetModificationTime(path).status());
    refused(files_->GetChildren(path).status());
    refused(files_->CreateDirectory(path));
    refused(files_->RecursivelyCreateDirectory(path));
    refused(files_->DeleteFile(path));
    refused(files_->DeleteDirectory(path));
    refused(files_->RecursivelyDelete(path));
    refused(files_->RenameFile(path, Path("root/inside")));
    refused(files_->RenameFile(Path("root/inside"), path));
    refused(files_->SyncDirectory(path));
  }
  EXPECT_EQ(ReadFileToString(FileSystem::Posix(), Path("outside/secret")).value_or(""), "secret");
  EXPECT_FALSE(FileSystem::Posix()->FileExists(Path("outside/not_there_yet")));
}

TEST_F(GraphFilesTest, APathThatEndsEarlierForTheSystemIsRefused) {
  const std::string path =
      absl::StrCat(Path("outside/secret"), std::string(1, '\0'), "/../..", root_, "/inside");
  EXPECT_STATUS(files_->NewRandomAccessFile(path).status(), absl::StatusCode::kInvalidArgument,
                "must have no NUL");
}

TEST_F(GraphFilesTest, AProcessHasTheRootsThatItWasGivenLast) {
  EXPECT_EQ(GraphFiles(), FileSystem::Default());
  ASSERT_OK(SetGraphFileRoots({root_}));
  EXPECT_OK(ReadFileToString(GraphFiles(), Path("root/inside")));
  EXPECT_STATUS(ReadFileToString(GraphFiles(), Path("outside/secret")).status(),
                absl::StatusCode::kPermissionDenied, "");
  ASSERT_OK(SetGraphFileRoots({root_, outside_}));
  EXPECT_OK(ReadFileToString(GraphFiles(), Path("outside/secret")));
  for (const std::string& root : {std::string(), Path("absent"), Path("root/inside")}) {
    EXPECT_STATUS(SetGraphFileRoots({root}), absl::StatusCode::kFailedPrecondition,
                  "must be a directory that is there");
  }
  ASSERT_OK(SetGraphFileRoots({}));
  EXPECT_EQ(GraphFiles(), FileSystem::Default());
}

}  // namespace
}  // namespace millrace
