// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

const std::vector<FlagSpec> kFlags = {{"dir", true, true}, {"all", false},  {"tag_set"},
                                      {"signature_def"},   {"input_exprs"}, {"input_examples"}};

TEST(CommandLineTest, ValuesComeAsNextWordOrAfterEquals) {
  ASSERT_OK_AND_ASSIGN(const CommandLine flags,
                       CommandLine::Parse(kFlags, {"--dir", "a", "--tag_set=b,c", "--all"}));
  EXPECT_EQ(flags.value("dir"), "a");
  EXPECT_EQ(flags.value("tag_set"), "b,c");
  EXPECT_TRUE(flags.has("all"));
  EXPECT_FALSE(flags.has("signature_def"));
  EXPECT_EQ(flags.value("signature_def"), "");
}

TEST(CommandLineTest, AValueMayHoldEqualsAndBeEmptyAndTheLastWins) {
  ASSERT_OK_AND_ASSIGN(const CommandLine flags,
                       CommandLine::Parse(kFlags, {"--dir=", "--input_exprs=x=[1]", "--tag_set",
                                                   "-a", "--tag_set=b"}));
  EXPECT_TRUE(flags.has("dir"));
  EXPECT_EQ(flags.value("dir"), "");
  EXPECT_EQ(flags.value("input_exprs"), "x=[1]");
  EXPECT_EQ(flags.value("tag_set"), "b");
}

TEST(CommandLineTest, ANameMayBeCutShortWhileItIsUnambiguous) {
  ASSERT_OK_AND_ASSIGN(const CommandLine flags,
                       CommandLine::Parse(kFlags, {"--dir=a", "--tag", "serve", "--sig=k"}));
  EXPECT_EQ(flags.value("tag_set"), "serve");
  EXPECT_EQ(flags.value("signature_def"), "k");
}

TEST(CommandLineTest, WrongFlagsAreToldInArgparsesWords) {
  struct Case {
    std::vector<std::string> args;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{}, "the following arguments are required: --dir"},
      {{"--dir=a", "--bogus"}, "unrecognized arguments: --bogus"},
      {{"--dir=a", "word", "--x=1"}, "unrecognized arguments: word --x=1"},
      {{"--dir"}, "argument --dir: expected one argument"},
      {{"--dir", "--all"}, "argument --dir: expected one argument"},
      {{"--dir=a", "--all=1"}, "argument --all: ignored explicit argument '1'"},
      {{"--dir=a", "--input=x"},
       "ambiguous option: --input=x could match --input_exprs, --input_examples"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(CommandLine::Parse(kFlags, c.args), absl::StatusCode::kInvalidArgument,
                  c.message);
  }
}

TEST(CommandLineTest, TheRestBeginsAfterTwoDashesOrAtTheFirstWord) {
  std::vector<std::string> rest;
  ASSERT_OK(CommandLine::Parse(kFlags, {"--dir=a", "--", "prog", "--dir", "--x"}, &rest));
  EXPECT_EQ(rest, std::vector<std::string>({"prog", "--dir", "--x"}));
  ASSERT_OK(CommandLine::Parse(kFlags, {"--dir=a", "prog", "--bogus"}, &rest));
  EXPECT_EQ(rest, std::vector<std::string>({"prog", "--bogus"}));
}

TEST(CommandLineTest, IntegersAreBounded) {
  const std::vector<FlagSpec> specs = {{"n"}};
  ASSERT_OK_AND_ASSIGN(CommandLine flags, CommandLine::Parse(specs, {"--n=5"}));
  ASSERT_OK_AND_ASSIGN(const int five, flags.IntValue("n", 1, 0, 9));
  EXPECT_EQ(five, 5);
  ASSERT_OK_AND_ASSIGN(const int fallback, CommandLine().IntValue("n", 1, 0, 9));
  EXPECT_EQ(fallback, 1);
  for (const char* bad : {"--n=10", "--n=-1", "--n=x", "--n=", "--n=1.5"}) {
    ASSERT_OK_AND_ASSIGN(flags, CommandLine::Parse(specs, {bad}));
    EXPECT_STATUS(flags.IntValue("n", 1, 0, 9), absl::StatusCode::kInvalidArgument,
                  "argument --n: must be an integer in [0, 9], got '");
  }
}

}  // namespace
}  // namespace millrace
