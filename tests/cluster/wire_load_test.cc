// SPDX-License-Identifier: Apache-2.0
//
// wire_load_benchmark makes each of its works and gives each figure; how large they are says a
// quiet machine. What it refuses.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"

// covers: clusters: the benchmark of steps under load gives the figures of each work, its tasks
//   being processes of their own

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/cluster/wire_load_benchmark";
constexpr absl::Duration kGuard = absl::Minutes(4);

StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& args) {
  ProcessOptions options;
  options.program = kProgram;
  options.args = args;
  return Process::Start(options);
}

// The number of a figure's line; -1 without one.
double FigureOf(const Process& process, absl::string_view variant) {
  const std::string name = absl::StrCat("\"variant\": \"", variant, "\"");
  const std::string line = process.FindLastLine(name).value_or("");
  const std::string before = "\"value\": ";
  const size_t at = line.find(before);
  double number = -1;
  if (at == std::string::npos) return number;
  const std::string value = line.substr(at + before.size());
  if (!absl::SimpleAtod(value.substr(0, value.find('}')), &number)) return -1;
  return number;
}

TEST(WireLoadTest, EachWorkHasItsFigures) {
  ASSERT_OK_AND_ASSIGN(const auto process, Start({"--smoke"}));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
  ASSERT_EQ(code, 0) << process->output();
  for (const char* variant :
       {"null step", "null_fetch step", "tensor_read 100K first", "tensor_read 100K tenth",
        "tensor_read 100K rate", "tensor_fill 100K p50", "tensor_fill_alone 100K p50",
        "params 1M rate", "rows 512x64 rate", "tables 26x32x64 rate", "sessions_open 9 p50",
        "sessions 9 p50", "sessions 9 p99_to_p50", "clients_open 9 p50", "clients 9 p99",
        "beside_nothing 8M p99", "beside_move_from_ps 8M p99_ratio",
        "beside_move_to_ps 8M p99_ratio", "beside_move_to_ps 8M moved"}) {
    EXPECT_GT(FigureOf(*process, variant), 0) << variant << " of\n" << process->output();
  }
  // The kernel may count time by its ticks: then a short section takes none.
  for (const char* variant : {"null ps_cpu", "null ps_switches", "null cpu", "null switches",
                              "params 1M ps_cpu", "sessions 9 ps_cpu"}) {
    EXPECT_GE(FigureOf(*process, variant), 0) << variant << " of\n" << process->output();
  }
  // A process may give memory back meanwhile.
  EXPECT_TRUE(process->FindLastLine("sessions 9 ps_memory").has_value()) << process->output();
}

TEST(WireLoadTest, RoundsGoInTurnsWithThePeerAndGiveTheirMedian) {
  ASSERT_OK_AND_ASSIGN(const auto process,
                       Start({"--work=null,tensor", "--bytes=6400", "--seconds=0.05", "--rounds=2",
                              "--peer=echo peer $((3 + 4))"}));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kGuard));
  ASSERT_EQ(code, 0) << process->output();
  for (const char* which : {"", " median", " worst"}) {
    EXPECT_GT(FigureOf(*process, absl::StrCat("null step", which)), 0) << process->output();
    EXPECT_GT(FigureOf(*process, absl::StrCat("tensor_fill 6400B rate", which)), 0);
  }
  // Of two values the median is the larger one, which is the worse time and the better rate.
  EXPECT_EQ(FigureOf(*process, "null step median"), FigureOf(*process, "null step worst"));
  EXPECT_GE(FigureOf(*process, "tensor_read 6400B rate median"),
            FigureOf(*process, "tensor_read 6400B rate worst"));
  std::vector<std::string> turns;
  for (const std::string& line : process->lines()) {
    if (line == "peer 7") turns.push_back("peer");
    if (absl::StartsWith(line, "null over ")) turns.push_back("null");
    if (absl::StartsWith(line, "tensor_read 6400B over ")) turns.push_back("tensor");
  }
  EXPECT_EQ(turns, (std::vector<std::string>{"peer", "null", "tensor", "peer", "null", "tensor"}));
}

TEST(WireLoadTest, WhatCannotWorkIsRefusedInOneLine) {
  struct Case {
    std::vector<std::string> args;
    const char* message;
  };
  const Case cases[] = {
      {{"--work=null,nothing"},
       "--work: must be all or some of null,tensor,params,rows,tables,sessions,clients,beside, got "
       "'nothing'"},
      {{"--bytes=100"}, "--bytes: must be a multiple of 64 from 0 to 8589934528, got 100"},
      {{"--bytes=-64"}, "--bytes: must be a multiple of 64 from 0 to 8589934528, got -64"},
      {{"--seconds=-1"}, "--seconds: must be in [0, 600], got -1"},
      {{"--sessions=0"}, "--sessions: must be in [1, 10000], got 0"},
      {{"--trainers=0"}, "--trainers: must be in [1, 100], got 0"},
      {{"--rounds=0"}, "--rounds: must be in [1, 1000], got 0"},
      {{"--role=master"}, "--role: must be ps or trainer, got 'master'"},
      {{"--peer=exit 3"}, "--peer: 'exit 3' must end with 0, got 3"},
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
