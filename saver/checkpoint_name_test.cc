// SPDX-License-Identifier: Apache-2.0
#include "saver/checkpoint_name.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "saver/bundle_paths.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

// covers: values: a checkpoint is known by its name, each of its files, its directory and the state
//   file

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();

// run/ has model.ckpt-7 and model.ckpt-9, the latest, with a meta graph each, and a state file.
class CheckpointNameTest : public ::testing::Test {
 protected:
  CheckpointNameTest()
      : directory_(JoinPath(::testing::TempDir(), absl::StrCat("names_", RandomHexName()))) {}
  ~CheckpointNameTest() override { kFiles->RecursivelyDelete(directory_).IgnoreError(); }

  void SetUp() override {
    for (const char* name : {"run/model.ckpt-7", "run/model.ckpt-9"}) {
      Bundle(name);
      Write(absl::StrCat(name, ".meta"), "");
    }
    ASSERT_OK(WriteCheckpointState(kFiles, Path("run"),
                                   {.latest = Path("run/model.ckpt-9"),
                                    .all = {Path("run/model.ckpt-7"), Path("run/model.ckpt-9")}}));
  }

  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }
  void Write(const std::string& name, const std::string& bytes) const {
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(Dirname(Path(name))));
    ASSERT_OK(WriteFileAtomically(kFiles, Path(name), bytes));
  }
  void Bundle(const std::string& name) const {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(kFiles, Path(name)));
    ASSERT_OK(writer->Add("w", Tensor::Scalar<float>(1)));
    ASSERT_OK(writer->Finish());
  }

  const std::string directory_;
};

TEST_F(CheckpointNameTest, EachFileTheDirectoryAndTheStateFileNameACheckpoint) {
  Bundle("export/1/variables/variables");
  Write("export/1/saved_model.pb", "");
  Write("best/best_state", absl::StrCat("model_checkpoint_path: \"", Path("best/ckpt"), "\"\n"));
  Bundle("best/ckpt");
  Bundle("odd/ckpt.index");  // a checkpoint whose name looks like that of a file
  Bundle("alone/ckpt-3");
  // A directory that is named as a file is.
  Bundle("v1.meta/ckpt-2");
  Write("v1.meta/checkpoint", "model_checkpoint_path: \"ckpt-2\"\n");
  Write("first/old-00000-of-00002", "");
  Write("first/old-00001-of-00002", "");
  Write("first/one-00000-of-00001", "");
  struct Case {
    const char* name;
    const char* checkpoint;
  };
  const Case cases[] = {
      {"run/model.ckpt-7", "run/model.ckpt-7"},
      {"run/model.ckpt-7.index", "run/model.ckpt-7"},
      {"run/model.ckpt-7.meta", "run/model.ckpt-7"},
      {"run/model.ckpt-7.data-00000-of-00001", "run/model.ckpt-7"},
      {"run", "run/model.ckpt-9"},
      {"run/", "run/model.ckpt-9"},
      {"run/checkpoint", "run/model.ckpt-9"},
      {"v1.meta", "v1.meta/ckpt-2"},
      {"best/best_state", "best/ckpt"},
      {"alone", "alone/ckpt-3"},
      {"export/1", "export/1/variables/variables"},
      {"export/1/variables/variables", "export/1/variables/variables"},
      {"export/1/variables/variables.data-00000-of-00001", "export/1/variables/variables"},
      {"odd/ckpt.index", "odd/ckpt.index"},
      {"odd/ckpt.index.index", "odd/ckpt.index"},
      {"first/old", "first/old"},
      {"first/old-00001-of-00002", "first/old"},
      {"first/one-00000-of-00001", "first/one-00000-of-00001"},
      // What is not there: under the name that the error is to have.
      {"run/model.ckpt-8", "run/model.ckpt-8"},
      {"run/model.ckpt-8.index", "run/model.ckpt-8"},
      {"run/model.ckpt-8.data-00001-of-00002", "run/model.ckpt-8"},
      {"none/model.ckpt-8", "none/model.ckpt-8"},
      {"none/part-00000-of-00002", "none/part-00000-of-00002"},
  };
  for (const Case& one : cases) {
    ASSERT_OK_AND_ASSIGN(const std::string got, CheckpointNamed(kFiles, Path(one.name)));
    EXPECT_EQ(got, Path(one.checkpoint)) << one.name;
  }
  ASSERT_OK_AND_ASSIGN(const std::string empty, CheckpointNamed(kFiles, ""));
  EXPECT_EQ(empty, "");
}

TEST_F(CheckpointNameTest, ADirectoryWithoutAWholeCheckpointIsNamed) {
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(Path("empty")));
  EXPECT_STATUS(CheckpointNamed(kFiles, Path("empty")).status(), absl::StatusCode::kNotFound,
                absl::StrCat("Checkpoint '", Path("empty"),
                             "': a directory must have a whole checkpoint or a SavedModel"));
  Write("stale/checkpoint", "model_checkpoint_path: \"gone\"\n");
  EXPECT_STATUS(CheckpointNamed(kFiles, Path("stale/checkpoint")).status(),
                absl::StatusCode::kNotFound, "a state file, or its directory, must have a whole");
  // A directory that was copied without its checkpoints.
  Write("stale/checkpoint", "model_checkpoint_path: \"/nowhere/m-5\"\n");
  for (const char* name : {"stale", "stale/checkpoint"}) {
    EXPECT_STATUS(
        CheckpointNamed(kFiles, Path(name)).status(), absl::StatusCode::kNotFound,
        "; the state file names '/nowhere/m-5', and there is no whole checkpoint there or "
        "of that name in the directory");
  }
  // The latest is damaged: the one before it.
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(Path("run/model.ckpt-9"), 0, 1)));
  ASSERT_OK_AND_ASSIGN(const std::string got, CheckpointNamed(kFiles, Path("run")));
  EXPECT_EQ(got, Path("run/model.ckpt-7"));
}

TEST(CheckpointOfFile, OnlyWholeSuffixesAreCutOff) {
  struct Case {
    const char* path;
    const char* checkpoint;
  };
  const Case cases[] = {
      {"a/c-7.index", "a/c-7"},
      {"c-7.meta", "c-7"},
      {"c.data-00000-of-00001", "c"},
      {"c.data-100000-of-100001", "c"},
      {"c.index.meta", "c.index"},
      {"c", "c"},
      {"", ""},
      {"a/c.indexes", "a/c.indexes"},
      {"a/c.data-0-of-1", "a/c.data-0-of-1"},
      {"a/c.data-00000-of-00001.tmp", "a/c.data-00000-of-00001.tmp"},
      {"a/.index", "a/.index"},
      {".meta", ".meta"},
      {"a.index/c", "a.index/c"},
  };
  for (const Case& one : cases) EXPECT_EQ(CheckpointOfFile(one.path), one.checkpoint) << one.path;
}

}  // namespace
}  // namespace millrace
