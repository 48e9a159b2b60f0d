// SPDX-License-Identifier: Apache-2.0
#include "core/memory_files.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: values: named bytes are read as files are, with the same errors

namespace millrace {
namespace {

using absl::StatusCode;

std::shared_ptr<FileSystem> Some() {
  auto files = MemoryFiles("m", {{"a", "abc"}, {"v/x/deep", "12345"}, {"v/y", ""}});
  EXPECT_OK(files);
  return *std::move(files);
}

TEST(MemoryFilesTest, FilesAndTheirDirectoriesAreFound) {
  const std::shared_ptr<FileSystem> fs = Some();
  EXPECT_EQ(ReadFileToString(fs.get(), "m/a").value(), "abc");
  EXPECT_EQ(ReadFileToString(fs.get(), "m/v/x/deep").value(), "12345");
  EXPECT_EQ(ReadFileToString(fs.get(), "m/v/y").value(), "");
  EXPECT_EQ(fs->GetFileSize("m/v/x/deep").value(), 5u);
  EXPECT_EQ(fs->GetChildren("m").value(), (std::vector<std::string>{"a", "v"}));
  EXPECT_EQ(fs->GetChildren("m/v/").value(), (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(fs->IsDirectory("m/v").value());
  EXPECT_FALSE(fs->IsDirectory("m/a").value());
  EXPECT_TRUE(fs->FileExists("m/v/x"));
  EXPECT_FALSE(fs->FileExists("m/v/z"));
  EXPECT_FALSE(fs->FileExists("a"));
  EXPECT_STATUS(ReadFileToString(fs.get(), "m/b"), StatusCode::kNotFound, "File 'm/b'");
  EXPECT_STATUS(ReadFileToString(fs.get(), "m/v"), StatusCode::kFailedPrecondition, "directory");
  EXPECT_STATUS(fs->GetChildren("m/a"), StatusCode::kNotFound, "m/a");
}

TEST(MemoryFilesTest, ReadsStayWithinTheFile) {
  std::unique_ptr<RandomAccessFile> file;
  {
    auto opened = Some()->NewRandomAccessFile("m/v/x/deep");
    ASSERT_OK(opened);
    file = *std::move(opened);  // and outlives its file system
  }
  char out[8] = {};
  EXPECT_OK(file->Read(1, 3, out));
  EXPECT_EQ(std::string(out), "234");
  EXPECT_OK(file->Read(5, 0, out));
  for (const auto& [offset, n] :
       {std::pair<uint64_t, size_t>{3, 3}, {6, 0}, {1, SIZE_MAX}, {UINT64_MAX, 2}}) {
    EXPECT_STATUS(file->Read(offset, n, out), StatusCode::kOutOfRange, "a file of 5");
  }
}

TEST(MemoryFilesTest, NothingChangesThem) {
  const std::shared_ptr<FileSystem> fs = Some();
  const Status all[] = {fs->NewWritableFile("m/a").status(),
                        fs->NewAppendableFile("m/new").status(),
                        fs->NewExclusiveFile("m/new").status(),
                        fs->CreateDirectory("m/new"),
                        fs->RecursivelyCreateDirectory("m/new"),
                        fs->DeleteFile("m/a"),
                        fs->DeleteDirectory("m/v"),
                        fs->RecursivelyDelete("m"),
                        fs->RenameFile("m/a", "m/b"),
                        fs->SyncDirectory("m")};
  for (const Status& status : all) {
    EXPECT_STATUS(status, StatusCode::kPermissionDenied, "must stay as they are");
  }
  EXPECT_EQ(ReadFileToString(fs.get(), "m/a").value(), "abc");
}

TEST(MemoryFilesTest, NamesThatAreNoRelativePathsAreRefused) {
  for (const char* name : {"", "/a", "a/", "a//b", "../a", "a/./b", "a/.."}) {
    EXPECT_STATUS(MemoryFiles("m", {{name, "x"}}), StatusCode::kInvalidArgument,
                  "must be a relative path");
  }
  EXPECT_STATUS(MemoryFiles("m", {{"a", "x"}, {"a/b", "y"}}), StatusCode::kInvalidArgument,
                "'m/a' must be a file or a directory, got both");
  for (const char* root : {"", "/"}) {
    EXPECT_STATUS(MemoryFiles(root, {}), StatusCode::kInvalidArgument, "root must have a name");
  }
  ASSERT_OK_AND_ASSIGN(const auto directory, MemoryFiles("d/", {{"a", "x"}}));
  EXPECT_EQ(ReadFileToString(directory.get(), "d/a").value(), "x");
  EXPECT_EQ(directory->GetChildren("d/").value(), std::vector<std::string>{"a"});
  ASSERT_OK_AND_ASSIGN(const auto none, MemoryFiles("m", {}));
  EXPECT_TRUE(none->GetChildren("m").value().empty());
}

}  // namespace
}  // namespace millrace
