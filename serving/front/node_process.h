// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_NODE_PROCESS_H_
#define MILLRACE_SERVING_FRONT_NODE_PROCESS_H_

// NodeProcess: a server process that the front has started.
//
// Its output comes through one pipe, which its owner reads when poll says so; its input is empty.
// It leads a process group of its own, which is killed when it has ended. The kernel kills it when
// the thread that started it ends, so with the front, however that ends.
//
// Thread-safety: thread-compatible; Start on a thread that outlives the process.
// Lifetime: the destructor kills what runs, and waits for its end.
// Failure: Internal when the system refuses a process. A program that cannot be run ends with 127
// and says why in its output.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

class NodeProcess {
 public:
  static StatusOr<std::unique_ptr<NodeProcess>> Start(std::vector<std::string> command);
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  pid_t pid() const { return pid_; }
  int end_fd() const { return end_fd_.get(); }        // readable when it has ended
  int output_fd() const { return output_fd_.get(); }  // readable: ReadOutput; -1: it has ended

  // `line` for each line that is there, without its end; at most a bounded number of bytes.
  void ReadOutput(const std::function<void(absl::string_view line)>& line);
  // To the process alone; nothing when it has ended.
  void Signal(int signal);
  // None while it runs; 128 + N for one ended by signal N.
  std::optional<int> exit_code();

 private:
  NodeProcess(pid_t pid, OwnedFd end_fd, OwnedFd output_fd)
      : pid_(pid), end_fd_(std::move(end_fd)), output_fd_(std::move(output_fd)) {}
  void Reap(bool wait);

  const pid_t pid_;
  OwnedFd end_fd_, output_fd_;
  std::string partial_line_;
  std::optional<int> exit_code_;
};

// Ends processes of this user that have `argument_part` in an argument: those of a front that was
// killed and whose kernel has not killed them. Returns how many there were; waits until they are
// gone, for a bounded time.
int KillProcessesWith(absl::string_view argument_part);

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_NODE_PROCESS_H_
