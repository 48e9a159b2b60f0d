// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TESTING_PEAK_MEMORY_H_
#define MILLRACE_CORE_TESTING_PEAK_MEMORY_H_

// PeakMemoryOf: runs a program by the shell and says how much memory it took.
//
// The figure is never below what the calling process has at that moment: a fork begins with its
// pages. (A process that popen starts has its caller's peak.) Keep nothing large.
//
// Thread-safety: of a process with one thread. Failure: fails the test when the program does.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {

// In MiB.
inline int64_t PeakMemoryOf(const std::string& command) {
  const std::string script = absl::StrCat("exec ", command, " >/dev/null");
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", script.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  rusage usage = {};
  EXPECT_EQ(wait4(pid, &status, 0, &usage), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
  return usage.ru_maxrss / 1024;
}

}  // namespace millrace

#endif  // MILLRACE_CORE_TESTING_PEAK_MEMORY_H_
