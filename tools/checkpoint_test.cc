// SPDX-License-Identifier: Apache-2.0
//
// The program checkpoint, as a user calls it.
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "saver/tensor_bundle.h"

// covers: programs: `checkpoint` lists, compares, renames, casts, averages checkpoints and converts
//   them from TensorFlow's first format and from and to numpy's files; a mistake names the tensor
//   and leaves nothing behind

namespace millrace {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int code = 0;
  std::string text;
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("ckpt_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
    Write("a", {{"dense/bias", Tensor::Of<float>({1, 2})},
                {"dense/kernel", Tensor::Of<float>({{0.5f, -1.0f}, {2.0f, NAN}})},
                {"global_step", Tensor::Scalar<int64_t>(10)},
                {"names", Tensor::Of<std::string>({"x", "y"})}});
    Write("b", {{"dense/bias", Tensor::Of<float>({3, 2})},
                {"dense/kernel", Tensor::Of<float>({{0.5f, -1.0f}, {2.0f, NAN}})},
                {"global_step", Tensor::Scalar<int64_t>(20)},
                {"names", Tensor::Of<std::string>({"x", "z"})}});
  }
  ~CheckpointTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  void Write(const std::string& name, const std::vector<std::pair<std::string, Tensor>>& tensors) {
    auto writer = BundleWriter::Open(fs_, Path(name));
    ASSERT_OK(writer);
    for (const auto& [tensor, value] : tensors) ASSERT_OK((*writer)->Add(tensor, value));
    ASSERT_OK((*writer)->Finish());
  }
  Tensor Read(const std::string& name, const std::string& tensor) {
    auto reader = BundleReader::Open(fs_, Path(name));
    EXPECT_OK(reader);
    if (!reader.ok()) return {};
    auto value = (*reader)->Read(tensor);
    EXPECT_OK(value);
    return value.value_or(Tensor());
  }
  // Names in `arguments` that begin with "@" are of this directory.
  Ended Run(std::string arguments) {
    for (size_t at; (at = arguments.find('@')) != std::string::npos;) {
      arguments.replace(at, 1, dir_ + "/");
    }
    FILE* const pipe = popen(absl::StrCat("tools/checkpoint ", arguments, " 2>&1").c_str(), "r");
    Ended ended;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      ended.text.append(buffer, n);
    }
    ended.code = WEXITSTATUS(pclose(pipe));
    return ended;
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
};

TEST_F(CheckpointTest, ListsAndCompares) {
  const Ended listed = Run("list @a");
  EXPECT_EQ(listed.code, 0);
  EXPECT_EQ(listed.text,
            "dense/bias    float     [2]\n"
            "dense/kernel  float     [2,2]\n"
            "global_step   int64     []\n"
            "names         string    [2]\n");
  EXPECT_EQ(Run("diff @a @a").code, 0);
  const Ended differs = Run("diff @a @b");
  EXPECT_EQ(differs.code, 1);
  EXPECT_EQ(differs.text,
            "dense/bias: 1 of 2 values differ, by at most 2\n"
            "global_step: 1 of 1 values differ\n"
            "names: 1 of 2 values differ\n");
  EXPECT_EQ(Run("diff --tolerance=2 @a @b").text,
            "global_step: 1 of 1 values differ\nnames: 1 of 2 values differ\n");
  Write("c", {{"dense/bias", Tensor::Of<float>({1, 2, 3})},
              {"global_step", Tensor::Scalar<int32_t>(10)},
              {"other", Tensor::Scalar<float>(0)}});
  EXPECT_THAT(
      Run("diff @a @c").text,
      ::testing::AllOf(HasSubstr("dense/kernel float [2,2]\n"), HasSubstr("other float []\n"),
                       HasSubstr("dense/bias: shape [2] and [3]\n"),
                       HasSubstr("global_step: dtype int64 and int32\n")));
}

TEST_F(CheckpointTest, EditsNamesDtypesAndWhatIsThere) {
  const Ended edited = Run(
      "edit --rename=global_step=step '--replace=^dense/=model/dense/' --drop=names --cast=half @a "
      "@out/e");
  EXPECT_EQ(edited.code, 0) << edited.text;
  EXPECT_THAT(edited.text, HasSubstr("out/e: 3 tensors\n"));
  const Tensor bias = Read("out/e", "model/dense/bias");
  ASSERT_EQ(bias.dtype(), DT_HALF);
  EXPECT_EQ(ToFloat(bias.flat<Half>()[1]), 2);
  EXPECT_TRUE(std::isnan(ToFloat(Read("out/e", "model/dense/kernel").flat<Half>()[3])));
  EXPECT_EQ(Read("out/e", "step").scalar<int64_t>(), 10);
  EXPECT_EQ(Run("edit '--keep=dense/.*' @a @kept").code, 0);
  EXPECT_EQ(Run("list @kept").text, "dense/bias    float     [2]\ndense/kernel  float     [2,2]\n");
}

TEST_F(CheckpointTest, AveragesFloatsAndTakesTheRestOfTheLastOne) {
  ASSERT_EQ(Run("average @m @a @b").code, 0);
  EXPECT_EQ(Read("m", "dense/bias").flat<float>()[0], 2);
  EXPECT_EQ(Read("m", "global_step").scalar<int64_t>(), 20);
  EXPECT_EQ(Read("m", "names").flat<std::string>()[1], "z");
  Write("c", {{"dense/bias", Tensor::Of<float>({1, 2})}});
  const Ended refused = Run("average @n @a @c");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, HasSubstr("must have the tensors of"));
}

TEST_F(CheckpointTest, GoesToNumpyAndBack) {
  ASSERT_EQ(Run("to_npz @a @a.npz").code, 0);
  ASSERT_EQ(Run("from_npz @a.npz @back").code, 0);
  EXPECT_EQ(Run("diff @a @back").text, "");
}

TEST_F(CheckpointTest, ConvertsTensorFlowsFirstFormat) {
  const std::string folder = SharedDataPath("session_bundle");
  if (folder.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle";
  const std::string v1 = JoinPath(folder, "half_plus_two/export");
  ASSERT_EQ(Run(absl::StrCat("edit ", v1, " @v2")).code, 0);
  EXPECT_EQ(Run(absl::StrCat("diff ", v1, " @v2")).text, "");
}

TEST_F(CheckpointTest, MistakesAreNamedAndLeaveNothingBehind) {
  const std::pair<const char*, const char*> cases[] = {
      {"edit --rename=dense/bas=x @a @out", "got 'dense/bas'; did you mean 'dense/bias'?"},
      {"edit --rename=dense/bias=names @a @out", "which 'dense/bias' has"},
      {"edit --rename=dense/bias= @a @out", "must get a name of its own, got ''"},
      {"edit '--replace=(=x' @a @out", "Expression '(': missing"},
      {"edit '--replace=a=\\9' @a @out", "Replacement '\\9' of 'a'"},
      {"edit --cast=int32 @a @out", "must be half, bfloat16, float or double, got int32"},
      {"edit --cast=flot @a @out", "--cast"},
      {"edit --rename=x @a @out", "--rename: must be OLD=NEW, got 'x'"},
      {"edit @a @b", "must not be there, got one"},
      {"diff --tolerance=-1 @a @b", "--tolerance: must be a number >= 0, got '-1'"},
      {"list @none", "got neither"},
      {"from_npz @none.npz @out", "none.npz"},
  };
  for (const auto& [arguments, text] : cases) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 1) << arguments << ": " << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(text)) << arguments;
    EXPECT_FALSE(fs_->FileExists(Path("out.index"))) << arguments;
  }
  for (const char* const arguments : {"", "shrink @a", "edit @a", "list", "diff @a", "--frob"}) {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << ": " << ended.text;
    EXPECT_THAT(ended.text, HasSubstr("usage: checkpoint")) << arguments;
  }
  EXPECT_EQ(Run("--help").code, 0);
  EXPECT_THAT(Run("edit --help").text, HasSubstr("REGEX=REWRITE"));
}

}  // namespace
}  // namespace millrace
