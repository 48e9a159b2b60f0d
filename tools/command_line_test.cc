// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: programs: command lines take values in every form; unknown flags are named

// covers: programs: command lines take values in every form; unknown flags are named

namespace millrace {
namespace {

const std::vector<FlagSpec> kFlags = {{.name = "dir", .value = "DIR", .required = true},
                                      {.name = "all"},
                                      {.name = "tag_set", .value = "TAGS"},
                                      {.name = "signature_def", .value = "KEY"},
                                      {.name = "input_exprs", .value = "TEXT"},
                                      {.name = "input_examples", .value = "TEXT"},
                                      {.name = "clear", .boolean = true}};

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

TEST(CommandLineTest, AllValuesOfAFlagAreThereInTheirOrder) {
  ASSERT_OK_AND_ASSIGN(
      const CommandLine flags,
      CommandLine::Parse(kFlags, {"--dir=a", "--tag_set", "c", "--all", "--tag_set=b", "--tag=c"}));
  EXPECT_EQ(flags.values("tag_set"), (std::vector<std::string>{"c", "b", "c"}));
  EXPECT_EQ(flags.value("tag_set"), "c");
  EXPECT_EQ(flags.values("dir"), std::vector<std::string>{"a"});
  EXPECT_TRUE(flags.values("signature_def").empty());
  EXPECT_TRUE(flags.values("all").empty());
}

TEST(CommandLineTest, ANameMayBeCutShortWhileItIsUnambiguous) {
  ASSERT_OK_AND_ASSIGN(const CommandLine flags,
                       CommandLine::Parse(kFlags, {"--dir=a", "--tag", "serve", "--sig=k"}));
  EXPECT_EQ(flags.value("tag_set"), "serve");
  EXPECT_EQ(flags.value("signature_def"), "k");
}

TEST(CommandLineTest, ABooleanAloneIsTrueAndTakesNoNextWord) {
  struct Case {
    std::vector<std::string> args;
    bool value;
  };
  const std::vector<Case> cases = {{{"--clear"}, true},        {{"--clear=true"}, true},
                                   {{"--clear=True"}, true},   {{"--clear=false"}, false},
                                   {{"--clear=False"}, false}, {{"--clear", "--clear=0"}, false}};
  for (const Case& c : cases) {
    std::vector<std::string> args = c.args;
    args.push_back("--dir=a");
    ASSERT_OK_AND_ASSIGN(const CommandLine flags, CommandLine::Parse(kFlags, args));
    EXPECT_EQ(flags.BoolValue("clear", !c.value), c.value);
  }
  ASSERT_OK_AND_ASSIGN(const CommandLine flags, CommandLine::Parse(kFlags, {"--dir=a"}));
  EXPECT_TRUE(flags.BoolValue("clear", true));
  EXPECT_FALSE(CommandLine::Parse(kFlags, {"--dir=a", "--clear", "true"}).ok());
}

TEST(CommandLineTest, HelpComesBeforeWhatIsWrong) {
  std::vector<FlagSpec> specs = kFlags;
  specs.push_back({.name = "help"});
  for (const char* flag : {"--help", "-h", "--hel"}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine flags, CommandLine::Parse(specs, {flag, "--bogus"}));
    EXPECT_TRUE(flags.has("help"));
  }
  std::vector<std::string> rest;
  ASSERT_OK_AND_ASSIGN(const CommandLine flags,
                       CommandLine::Parse(specs, {"--dir=a", "prog", "--help"}, &rest));
  EXPECT_FALSE(flags.has("help"));
}

TEST(CommandLineTest, WrongFlagsAreToldInArgparsesWords) {
  struct Case {
    std::vector<std::string> args;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{}, "the following arguments are required: --dir"},
      {{"--dri=a"},
       "the following arguments are required: --dir; unrecognized arguments: --dri=a; did you mean "
       "'dir'?"},
      {{"--dir=a", "--bogus"}, "unrecognized arguments: --bogus"},
      {{"--dir=a", "--signatur_def=k", "--x"},
       "unrecognized arguments: --signatur_def=k --x; did you mean 'signature_def'?"},
      {{"--dir=a", "--clear=maybe"}, "argument --clear: must be true or false, got 'maybe'"},
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
  const std::vector<FlagSpec> specs = {{.name = "n", .value = "N"}};
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
