// SPDX-License-Identifier: Apache-2.0
//
// What every program answers in the same way: --help, --version, an unknown flag, and a CPU that it
// was not built for.

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/program.h"
#include "core/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// covers: programs: help and version of every program exit with 0; unknown flags name the nearest

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Ended {
  int code;
  std::string out, err;
};

std::string ReadAll(FILE* file) {
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  return text;
}

Ended RunProgram(const std::string& command) {
  const std::string err = absl::StrCat(::testing::TempDir(), "/program_help_test_err");
  FILE* const pipe = popen(absl::StrCat(command, " 2>'", err, "'").c_str(), "r");
  Ended ended;
  ended.out = ReadAll(pipe);
  ended.code = WEXITSTATUS(pclose(pipe));
  FILE* const file = std::fopen(err.c_str(), "r");
  ended.err = ReadAll(file);
  std::fclose(file);
  return ended;
}

class ProgramHelpTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ProgramHelpTest, HelpAndVersionExitWithZero) {
  const std::string program = GetParam(), name = ProgramName(program);
  for (const char* flag : {"--help", "-h"}) {
    const Ended help = RunProgram(absl::StrCat(program, " ", flag));
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, StartsWith(absl::StrCat("usage: ", name, " ")));
    EXPECT_THAT(help.out, HasSubstr("\n  --version "));
    for (absl::string_view line : absl::StrSplit(help.out, '\n')) EXPECT_LE(line.size(), 100u);
  }
  const Ended version = RunProgram(absl::StrCat(program, " --version"));
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.err, "");
  EXPECT_EQ(version.out, absl::StrCat(name, " (Millrace) ", kVersion, "\n"));
}

TEST_P(ProgramHelpTest, AnUnknownFlagIsNamed) {
  const std::string program = GetParam();
  const Ended ended = RunProgram(absl::StrCat(program, " --bogus_flag=1"));
  EXPECT_EQ(ended.code, absl::StartsWith(program, "tools/") ? 2 : 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr(absl::StrCat(ProgramName(program), ": ")));
  EXPECT_THAT(ended.err, HasSubstr("--bogus_flag"));
}

TEST_P(ProgramHelpTest, AnOldCpuGetsOneLine) {
  const std::string program = GetParam();
  const Ended ended = RunProgram(absl::StrCat("MILLRACE_PRETEND_CPU=x86-64 ", program, " --help"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, StartsWith(absl::StrCat(ProgramName(program),
                                                 ": the CPU must have the instructions")));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Programs, ProgramHelpTest,
    ::testing::Values("examples/embedding/embedding_train", "examples/linear/linear_train",
                      "examples/housing/housing", "examples/mlp/mlp_predict",
                      "examples/mlp/mlp_train", "examples/linreg/linreg",
                      "examples/linreg/linreg_dist", "examples/linreg/linreg_predict",
                      "examples/mnist/mnist_dist", "examples/mnist/mnist_monitored",
                      "examples/mnist/mnist_predict", "examples/mnist/mnist_predict_meta",
                      "examples/mnist/mnist_train", "examples/wide_deep/wide_deep_train",
                      "tools/cluster_status", "tools/freeze_graph", "tools/launch",
                      "tools/list_ops", "tools/local_predict", "tools/run_graph",
                      "tools/saved_model_cli"));

}  // namespace
}  // namespace millrace
