// SPDX-License-Identifier: Apache-2.0
#include "core/program.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// covers: programs: help and version exit with 0; unknown flags name the nearest; relative paths
//   start at the user's folder under `bazel run`

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HelpTest, UsageHasRequiredFlagsFirstAndTheHelpHasAll) {
  const ProgramHelp help = {
      .name = "tool show",
      .about = "Shows what there is.",
      .flags = {{.name = "all", .help = "everything"},
                {.name = "dir", .value = "DIR", .help = "the directory", .required = true},
                {.name = "clear", .help = "removes devices", .boolean = true}},
      .rest = "[-- WORD...]"};
  const std::string usage =
      "usage: tool show --dir DIR [--all] [--clear[=false]] [-h] [--version] [-- WORD...]\n";
  EXPECT_EQ(UsageText(help), usage);
  EXPECT_EQ(HelpText(help), usage +
                                "\n"
                                "Shows what there is.\n"
                                "\n"
                                "  --all             everything\n"
                                "  --dir DIR         the directory\n"
                                "  --clear[=false]   removes devices\n"
                                "  -h, --help        shows this text\n"
                                "  --version         shows the version\n");
}

TEST(HelpTest, LongLinesAreBrokenBetweenWords) {
  ProgramHelp help = {.name = "tool", .about = "Does."};
  for (int i = 0; i < 12; ++i) {
    help.flags.push_back({.name = absl::StrCat("a_long_flag_", i),
                          .value = "VALUE",
                          .help =
                              "does one thing and then another one, which takes more words than "
                              "a line has room for, and then more"});
  }
  help.flags.push_back({.name = "a_flag_with_a_name_beyond_all_measure", .help = "is short"});
  size_t begin = 0;
  const std::string text = HelpText(help);
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
  }
  EXPECT_THAT(text, HasSubstr("\n  --a_flag_with_a_name_beyond_all_measure\n"
                              "                            is short\n"));
  EXPECT_THAT(text, HasSubstr("\n            [--a_long_flag_"));
}

struct Ended {
  int code;
  std::string out, err;
};

std::string TempPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "program_test_", getpid(), "_", name);
}

std::string Contents(const std::string& path) {
  std::string text;
  FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

// The program with a shell's words after it.
Ended RunProgram(const std::string& arguments, const std::string& before = "") {
  char* const directory = getcwd(nullptr, 0);
  const std::string program = absl::StrCat(directory, "/core/testing/flags_program");
  std::free(directory);
  const std::string out = TempPath("out"), err = TempPath("err");
  const int status = std::system(
      absl::StrCat(before, " ", program, " ", arguments, " >'", out, "' 2>'", err, "'").c_str());
  return {WEXITSTATUS(status), Contents(out), Contents(err)};
}

TEST(ProgramFlagsTest, HelpAndVersionExitWithZero) {
  for (const char* flag : {"--help", "-h", "-help", "--max_steps=5 --help"}) {
    const Ended ended = RunProgram(flag);
    EXPECT_EQ(ended.code, 0) << flag;
    EXPECT_EQ(ended.err, "");
    EXPECT_THAT(ended.out, StartsWith("usage: flags_program ["));
    EXPECT_THAT(ended.out, HasSubstr("\n\nPrints its flags.\n\n"));
    EXPECT_THAT(ended.out, HasSubstr("  --fast[=false]   does less (false)\n"));
    EXPECT_THAT(ended.out, HasSubstr("  --log_dir TEXT   directory of checkpoints; empty: none\n"));
    EXPECT_THAT(ended.out, HasSubstr("  --max_steps N    steps of all workers together (1000)\n"));
    EXPECT_THAT(ended.out, HasSubstr("  --rate X         of gradient descent (0.5)\n"));
    EXPECT_FALSE(absl::StrContains(ended.out, "flagfile")) << ended.out;
  }
  const Ended version = RunProgram("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, absl::StrCat("flags_program (Millrace) ", kVersion, "\n"));
}

TEST(ProgramFlagsTest, FlagsAreReadAsAbseilReadsThem) {
  const Ended ended = RunProgram("--max_steps 7 -rate=2 --log_dir --version --fast");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, StartsWith("max_steps=7 rate=2 log_dir=--version fast=1 in "));
  EXPECT_THAT(RunProgram("--nofast").out, HasSubstr("fast=0"));
}

TEST(ProgramFlagsTest, WrongFlagsExitWithOneAndOneLine) {
  struct Case {
    const char* arguments;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"--max_step=5",
       "flags_program: unknown flag '--max_step'; did you mean 'max_steps'?; see --help\n"},
      {"--bogus", "flags_program: unknown flag '--bogus'; see --help\n"},
      {"--nolog_dir", "flags_program: unknown flag '--nolog_dir'"},
      {"train", "flags_program: unknown argument 'train'; see --help\n"},
      {"--fast true", "flags_program: unknown argument 'true'; see --help\n"},
      {"-- --fast", "flags_program: unknown argument '--'"},
      {"''", "flags_program: unknown argument ''"},
      {"--max_steps=many", "Illegal value 'many' specified for flag 'max_steps'"},
  };
  for (const Case& c : cases) {
    const Ended ended = RunProgram(c.arguments);
    EXPECT_EQ(ended.code, 1) << c.arguments;
    EXPECT_THAT(ended.err, HasSubstr(c.text));
    EXPECT_EQ(ended.out, "");
  }
}

TEST(ProgramFlagsTest, UnderBazelRunTheDirectoryIsTheUsers) {
  const std::string user = TempPath("user"), bazel = TempPath("p.runfiles");
  ASSERT_EQ(mkdir(user.c_str(), 0700), 0);
  ASSERT_EQ(mkdir(bazel.c_str(), 0700), 0);
  ASSERT_EQ(mkdir((bazel + "/main").c_str(), 0700), 0);
  const std::string set = absl::StrCat("BUILD_WORKING_DIRECTORY='", user, "'");
  EXPECT_THAT(RunProgram("", absl::StrCat("cd '", bazel, "/main' && ", set)).out,
              HasSubstr(absl::StrCat(" in ", user, "\n")));
  // What a script that Bazel runs has gone to stays.
  EXPECT_THAT(RunProgram("", absl::StrCat("cd '", user, "' && BUILD_WORKING_DIRECTORY=/")).out,
              HasSubstr(absl::StrCat(" in ", user, "\n")));
}

}  // namespace
}  // namespace millrace
