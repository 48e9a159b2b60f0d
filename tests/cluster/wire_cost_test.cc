// SPDX-License-Identifier: Apache-2.0
//
// wire_cost_benchmark gives each figure of each model, above zero; how large they are says a quiet
// machine. What it refuses.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"

// covers: clusters: the benchmark of a step's cost gives switches, CPU and wall time of each model,
//   its tasks being processes of their own

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/cluster/wire_cost_benchmark";
constexpr absl::Duration kGuard = absl::Minutes(4);
constexpr const char* kFigures[] = {"ps_switches",    "ps_cpu_us", "trainer_switches",
                                    "trainer_cpu_us", "switches",  "cpu_us",
                                    "wall_us"};

StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& args) {
  ProcessOptions options;
  options.program = kProgram;
  options.args = args;
  return Process::Start(options);
}

void ExpectFigures(const Process& process, const std::string& variant, const std::string& which) {
  for (const char* figure : kFigures) {
    const std::string name = absl::StrCat("\"variant\": \"", variant, " ", figure, which, "\"");
    const std::string line = process.FindLastLine(name).value_or("");
    const std::string before = "\"value\": ";
    const size_t at = line.find(before);
    ASSERT_NE(at, std::string::npos) << name << " is missing in\n" << process.output();
    std::string value = line.substr(at + before.size());
    value = value.substr(0, value.find('}'));
    double number = 0;
    // Not that it is positive: other work on the machine may cost more than the steps.
    EXPECT_TRUE(absl::SimpleAtod(value, &number)) << line;
    EXPECT_NE(number, 0) << line;
  }
}

TEST(WireCostTest, EachModelHasEachFigure) {
  ASSERT_OK_AND_ASSIGN(const auto process, Start({"--smoke"}));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
  ASSERT_EQ(code, 0) << process->output();
  for (const char* variant : {"linear b10 ps1", "census b40 ps1", "cnn b10 ps1"}) {
    ExpectFigures(*process, variant, "");
  }
}

TEST(WireCostTest, RoundsGoInTurnsWithTheOtherProgramAndGiveTheirMedian) {
  ASSERT_OK_AND_ASSIGN(const auto process,
                       Start({"--model=linear", "--batch=4", "--ps=2", "--steps=300", "--rounds=2",
                              "--pingpong=/bin/echo", "--pingpong_messages=7"}));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
  ASSERT_EQ(code, 0) << process->output();
  ExpectFigures(*process, "linear b4 ps2", "");
  ExpectFigures(*process, "linear b4 ps2", " median");
  ExpectFigures(*process, "linear b4 ps2", " worst");
  // What the program and the rounds have printed, in order.
  std::vector<std::string> turns;
  for (const std::string& line : process->lines()) {
    if (line == "7 1") turns.push_back("other");
    if (absl::StartsWith(line, "linear b4 ps2, per step:")) turns.push_back("step");
  }
  EXPECT_EQ(turns, (std::vector<std::string>{"other", "step", "other", "step"}));
}

TEST(WireCostTest, OneProcessHasNoServers) {
  ASSERT_OK_AND_ASSIGN(const auto process, Start({"--ps=0", "--steps=100000"}));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
  ASSERT_EQ(code, 0) << process->output();
  EXPECT_TRUE(process->FindLastLine("linear b10 ps0 wall_us").has_value()) << process->output();
  EXPECT_FALSE(process->FindLastLine("ps_switches").has_value()) << process->output();
}

TEST(WireCostTest, WhatCannotWorkIsRefusedInOneLine) {
  struct Case {
    std::vector<std::string> args;
    const char* message;
  };
  const Case cases[] = {
      {{"--model=mlp"}, "--model: must be linear, census, cnn or digits, got 'mlp'"},
      {{"--batch=-1"}, "--batch: must be >= 0, got -1"},
      {{"--ps=-1"}, "--ps: must be >= 0, got -1"},
      {{"--steps=-1"}, "--steps: must be >= 0, got -1"},
      {{"--rounds=0"}, "--rounds: must be >= 1, got 0"},
      {{"--pingpong_messages=0"}, "--pingpong_messages: must be >= 1, got 0"},
      {{"--role=master"}, "--role: must be ps or trainer, got 'master'"},
      {{"--pingpong=/bin/false"}, "--pingpong: /bin/false must end with 0, got 1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.args[0]);
    ASSERT_OK_AND_ASSIGN(const auto process, Start(c.args));
    ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
    EXPECT_EQ(code, 1) << process->output();
    EXPECT_TRUE(process->FindLastLine(c.message).has_value()) << process->output();
  }
}

}  // namespace
}  // namespace millrace
