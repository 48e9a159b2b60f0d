// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/files.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "formats/graph_files.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "runtime/session.h"
#include "runtime/testing/op_test.h"

// covers: input: ReadFile and WriteFile: bytes come back as they are, a file is replaced at once,
//   each error names its file, a server's roots hold

namespace millrace {
namespace {

using Code = absl::StatusCode;

FileSystem* const kFiles = FileSystem::Posix();

OpCall Read(const std::string& path) { return OpCall("ReadFile").Input(Tensor::Scalar(path)); }
OpCall Write(const std::string& path, const std::string& contents) {
  return OpCall("WriteFile").Input(Tensor::Scalar(path)).Input(Tensor::Scalar(contents));
}

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() { EXPECT_OK(kFiles->RecursivelyCreateDirectory(base_)); }
  ~FilesTest() override { EXPECT_OK(kFiles->RecursivelyDelete(base_)); }
  std::string Path(absl::string_view name) const { return JoinPath(base_, name); }

  const std::string base_ = absl::StrCat(::testing::TempDir(), "/files_test_", ::getpid());
};

TEST_F(FilesTest, WhatIsWrittenIsReadAgain) {
  const std::string path = Path("file");
  for (const std::string& contents :
       {std::string("longer than the next"), std::string("a\n"), std::string(),
        std::string("\0\xff\r\n\0", 5), std::string(3'000'000, 'x')}) {
    EXPECT_OK(RunOp(Write(path, contents)));
    EXPECT_EQ(ReadFileToString(kFiles, path).value_or("no file"), contents);
    ExpectTensorEqual(RunOp1(Read(path)), Tensor::Scalar(contents));
  }
}

TEST_F(FilesTest, MissingDirectoriesAreMadeAndNothingElseIsLeft) {
  EXPECT_OK(RunOp(Write(Path("a/b/file"), "one")));
  EXPECT_OK(RunOp(Write(Path("a/b/file"), "two")));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, kFiles->GetChildren(Path("a/b")));
  EXPECT_EQ(names, std::vector<std::string>{"file"});
}

TEST_F(FilesTest, ErrorsNameTheFile) {
  const std::string missing = Path("missing"), directory = Path("directory"), file = Path("file");
  ASSERT_OK(kFiles->CreateDirectory(directory));
  ASSERT_OK(WriteFileAtomically(kFiles, file, "old"));
  ExpectOpError(Read(missing), Code::kNotFound, absl::StrCat("File '", missing, "': open"));
  ExpectOpError(Read(directory), Code::kFailedPrecondition,
                absl::StrCat("File '", directory, "': open: must be a regular file"));
  ExpectOpError(Write(directory, "new"), Code::kFailedPrecondition,
                absl::StrCat("'", directory, "'"));
  ExpectOpError(Write(JoinPath(file, "below"), "new"), Code::kFailedPrecondition,
                absl::StrCat("File '", file, "'"));
  EXPECT_EQ(ReadFileToString(kFiles, file).value_or("no file"), "old");
  EXPECT_FALSE(kFiles->FileExists(missing));
}

TEST_F(FilesTest, OnlyScalarsAreNamesAndContents) {
  const Tensor two = Tensor::Of({"a", "b"}), one = Tensor::Scalar<std::string>("a");
  ExpectOpError(OpCall("ReadFile").Input(two), Code::kInvalidArgument,
                "filename must have rank 0, got shape [2]");
  ExpectOpError(OpCall("WriteFile").Input(two).Input(one), Code::kInvalidArgument,
                "filename must have rank 0, got shape [2]");
  ExpectOpError(OpCall("WriteFile").Input(one).Input(two), Code::kInvalidArgument,
                "contents must have rank 0, got shape [2]");
  EXPECT_SHAPE("ReadFile", {}, {"<unknown>"}, "[]");
  EXPECT_SHAPE_ERROR("ReadFile", {}, {"[1]"}, "filename must have rank 0, got shape [1]");
  EXPECT_SHAPE_ERROR("WriteFile", {}, {"[]", "[1]"}, "contents must have rank 0, got shape [1]");
}

TEST_F(FilesTest, FilesOutsideOfTheRootsAreRefused) {
  const std::string outside = Path("outside");
  ASSERT_OK(WriteFileAtomically(kFiles, outside, "secret"));
  ASSERT_OK(kFiles->CreateDirectory(Path("root")));
  ASSERT_OK(SetGraphFileRoots({Path("root")}));
  EXPECT_OK(RunOp(Write(Path("root/inner/file"), "inside")));
  ExpectTensorEqual(RunOp1(Read(Path("root/inner/file"))), Tensor::Scalar<std::string>("inside"));
  for (const OpCall& call : {Read(outside), Read(Path("root/../outside")), Write(outside, "new"),
                             Write(Path("elsewhere/file"), "new")}) {
    ExpectOpError(call, Code::kPermissionDenied, "of this server's roots only");
  }
  EXPECT_OK(SetGraphFileRoots({}));
  EXPECT_EQ(ReadFileToString(kFiles, outside).value_or("no file"), "secret");
  EXPECT_FALSE(kFiles->FileExists(Path("elsewhere")));
}

TEST_F(FilesTest, ACancelledStepWritesNothing) {
  OpTestDevice device;
  device.cancellation()->StartCancel();
  ExpectOpError(Write(Path("file"), "new").On(&device), Code::kCancelled, "step was cancelled");
  EXPECT_FALSE(kFiles->FileExists(Path("file")));
}

// covers: graphs: a file is read in the step that asks for it, never when the graph is extended
TEST_F(FilesTest, EachStepReadsTheFileThatIsThereThen) {
  const std::string path = Path("file");
  Scope root;
  const Output text = Identity(root, ReadFile(root, Const(root, path)));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  EXPECT_STATUS(session->Run({}, {text}).status(), Code::kNotFound, path);
  for (const std::string& contents : {std::string("one"), std::string("two"), std::string()}) {
    ASSERT_OK(WriteFileAtomically(kFiles, path, contents));
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run({}, {text}));
    ExpectTensorEqual(out[0], Tensor::Scalar(contents));
  }
}

TEST_F(FilesTest, ReadsAndWritesOfAStepKeepTheirOrder) {
  const std::string path = Path("file");
  ASSERT_OK(WriteFileAtomically(kFiles, path, "old"));
  Scope root;
  const Output name = Const(root, path);
  const Output before = ReadFile(root, name);
  const Operation write =
      WriteFile(root.WithControlDependencies({before.op()}), name, Const(root, "new"));
  const Output after = ReadFile(root.WithControlDependencies({write}), name);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run({}, {before, after}));
  ExpectTensorEqual(out[0], Tensor::Scalar<std::string>("old"));
  ExpectTensorEqual(out[1], Tensor::Scalar<std::string>("new"));
}

}  // namespace
}  // namespace millrace
