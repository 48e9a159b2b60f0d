// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_PROCESS_H_
#define MILLRACE_TESTS_CLUSTER_PROCESS_H_

// Process: a program that a test starts, watches, signals and surely ends.
//
//   ASSERT_OK_AND_ASSIGN(auto ps, Process::Start({.name = "ps-0", .program = "...", .env =
//   {...}})); ASSERT_OK(ps->WaitForLine("listens at", absl::Seconds(20))); ASSERT_OK_AND_ASSIGN(int
//   code, ps->WaitForExit(absl::Seconds(20)));
//
// stdout and stderr come through one pipe, so their lines are in the order of writing; one thread
// per process reads it, so a process never blocks on a test that looks elsewhere.
//
// Invariants: the process leads a process group of its own; when it has ended, what is left of the
// group is killed; the destructor ends the process. When the test itself dies, the kernel kills the
// process (the thread that called Start must live as long as the Process).
//
// Thread-safety: all methods, from any thread.
// Failure: DeadlineExceeded with the last lines of the output; OutOfRange when the output ended
// without the line.

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

struct ProcessOptions {
  std::string name = "";  // for messages; the program otherwise
  std::string program;    // a path; relative to the working directory
  std::vector<std::string> args = {};
  // Added to the environment of the test, over what it has.
  std::map<std::string, std::string> env = {};
  // "" = none.
  std::string log_path = "";
};

class Process {
 public:
  static StatusOr<std::unique_ptr<Process>> Start(const ProcessOptions& options);
  ~Process();

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }

  // The first line that contains `text`, from line number `*from` on (0 when null). `*from` is
  // set to the number of the line after it, so that calls find one line after the other.
  StatusOr<std::string> WaitForLine(absl::string_view text, absl::Duration timeout,
                                    size_t* from = nullptr);
  // Lines so far, the last one perhaps not complete.
  std::vector<std::string> lines() const;
  std::string output() const;
  // The last line that contains `text`.
  std::optional<std::string> FindLastLine(absl::string_view text) const;

  // To the process alone. NotFound when it has ended.
  Status Signal(int signal);
  // The exit code, 128 + N for one ended by signal N. The output is complete then.
  StatusOr<int> WaitForExit(absl::Duration timeout);
  // Set when the process has ended.
  std::optional<int> exit_code();
  // Had the process children that outlived it? (They are killed.)
  bool left_processes();

 private:
  Process(std::string name, pid_t pid, int pid_fd, int pipe_fd, std::string log_path);
  void Read(int log_fd);
  std::string Tail() const;
  // Reaps; true when the process has ended.
  bool Poll(absl::Duration timeout);

  const std::string name_;
  const pid_t pid_;
  const int pid_fd_;   // readable when the process has ended
  const int pipe_fd_;  // read by the thread alone
  int stop_fds_[2];    // a byte in it ends the thread

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  bool line_open_ ABSL_GUARDED_BY(mu_) = false;  // the last line has no end yet
  bool eof_ ABSL_GUARDED_BY(mu_) = false;

  Mutex wait_mu_;  // one thread reaps
  std::optional<int> exit_code_ ABSL_GUARDED_BY(wait_mu_);
  bool left_processes_ ABSL_GUARDED_BY(wait_mu_) = false;
  std::thread reader_;
};

// The tasks of a cluster with their addresses on this host.
struct ClusterPorts {
  std::vector<int> ps = {}, master = {}, worker = {}, chief = {};
  // "127.0.0.1" for servers in the test's own process: the system's resolver library leaks names,
  // which LeakSanitizer reports.
  std::string host = "localhost";
};
// Free ports; `masters` is 0 or 1.
ClusterPorts FreeClusterPorts(int ps, int masters, int workers);
// {"ps": ["<host>:1", ...], "master": [...], "chief": [...], "worker": [...]}; jobs without tasks
// left out.
std::string ClusterSpecJson(const ClusterPorts& ports);
// The value of TF_CONFIG for one task.
std::string TfConfig(const ClusterPorts& ports, absl::string_view job, int task);

// Did the process end because somebody else has its port?
bool EndedBecausePortIsInUse(Process* process);

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_PROCESS_H_
