// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/process.h"

#include <signal.h>
#include <stdlib.h>

#include <set>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

ProcessOptions Shell(const std::string& script) {
  return {.name = "sh", .program = "/bin/sh", .args = {"-c", script}};
}

TEST(ProcessTest, LinesOfBothStreamsAreFoundInOrder) {
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(Shell("echo one; echo two >&2; echo one "
                                                                "again; printf three; exit 7")));
  size_t from = 0;
  ASSERT_OK_AND_ASSIGN(std::string line, process->WaitForLine("one", absl::Seconds(20), &from));
  EXPECT_EQ(line, "one");
  ASSERT_OK_AND_ASSIGN(line, process->WaitForLine("one", absl::Seconds(20), &from));
  EXPECT_EQ(line, "one again");
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(absl::Seconds(20)));
  EXPECT_EQ(code, 7);
  EXPECT_EQ(process->output(), "one\ntwo\none again\nthree");
  EXPECT_FALSE(process->left_processes());
  EXPECT_STATUS(process->Signal(SIGTERM), absl::StatusCode::kNotFound, "exit code 7");
}

TEST(ProcessTest, EnvironmentIsAddedToTheTestsOwn) {
  ProcessOptions options = Shell("echo $MILLRACE_A-$MILLRACE_B-${PATH:+path}");
  ASSERT_EQ(setenv("MILLRACE_B", "old", 1), 0);
  options.env = {{"MILLRACE_A", "x"}, {"MILLRACE_B", "new"}};
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(options));
  EXPECT_OK(process->WaitForLine("x-new-path", absl::Seconds(20)));
}

TEST(ProcessTest, AMissingLineSaysWhatWasPrintedInstead) {
  ASSERT_OK_AND_ASSIGN(const auto ended, Process::Start(Shell("echo something")));
  EXPECT_STATUS(ended->WaitForLine("else", absl::Seconds(20)), absl::StatusCode::kOutOfRange,
                "something");
  ASSERT_OK_AND_ASSIGN(const auto running, Process::Start(Shell("echo up; exec sleep 1000")));
  EXPECT_OK(running->WaitForLine("up", absl::Seconds(20)));
  EXPECT_STATUS(running->WaitForLine("else", absl::Milliseconds(1)),
                absl::StatusCode::kDeadlineExceeded, "up");
}

TEST(ProcessTest, ASignalIsAnExitCodeAbove128) {
  ASSERT_OK_AND_ASSIGN(const auto process, Process::Start(Shell("echo up; exec sleep 1000")));
  ASSERT_OK(process->WaitForLine("up", absl::Seconds(20)));
  EXPECT_STATUS(process->WaitForExit(absl::Milliseconds(1)), absl::StatusCode::kDeadlineExceeded,
                "sh: must end within");
  ASSERT_OK(process->Signal(SIGKILL));
  ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(absl::Seconds(20)));
  EXPECT_EQ(code, 137);
}

TEST(ProcessTest, ChildrenDoNotOutliveTheirGroup) {
  ASSERT_OK_AND_ASSIGN(const auto process,
                       Process::Start(Shell("sleep 1000 & echo $!; wait $!; true")));
  ASSERT_OK_AND_ASSIGN(const std::string child, process->WaitForLine("", absl::Seconds(20)));
  ASSERT_OK(process->Signal(SIGKILL));
  ASSERT_OK(process->WaitForExit(absl::Seconds(20)).status());
  EXPECT_TRUE(process->left_processes());
}

TEST(ProcessTest, AMissingProgramIsAnError) {
  EXPECT_STATUS(Process::Start({.program = "no/such/program"}), absl::StatusCode::kUnknown,
                "no/such/program");
}

TEST(ProcessTest, TfConfigNamesEveryTask) {
  const ClusterPorts ports = {.ps = {1}, .master = {2}, .worker = {3, 4}};
  EXPECT_EQ(TfConfig(ports, "worker", 1),
            "{\"cluster\": {\"ps\": [\"localhost:1\"], \"master\": [\"localhost:2\"], \"worker\": "
            "[\"localhost:3\", \"localhost:4\"]}, \"task\": {\"type\": \"worker\", \"index\": 1}}");
  EXPECT_EQ(ClusterSpecJson({.ps = {}, .master = {}, .worker = {5}}),
            "{\"worker\": [\"localhost:5\"]}");
}

TEST(ProcessTest, FreePortsDiffer) {
  const ClusterPorts ports = FreeClusterPorts(2, 1, 2);
  std::set<int> all;
  for (const auto* tasks : {&ports.ps, &ports.master, &ports.worker}) {
    for (const int port : *tasks) {
      EXPECT_GE(port, 1024);
      EXPECT_LT(port, 32768);
      all.insert(port);
    }
  }
  EXPECT_EQ(all.size(), 5u);
}

}  // namespace
}  // namespace millrace
