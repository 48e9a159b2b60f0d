// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TASK_STATUS_H_
#define MILLRACE_DISTRIBUTED_TASK_STATUS_H_

// Task status: what the running tasks of a cluster say of themselves to a caller that is none of
// them.
//
//   state        what answers at the address
//   answers      the task that is asked for
//   other        another task, or one that says nothing of itself
//   refuses      something that will not answer us: only another configuration, here or there,
//                helps (net/peer_probe.h)
//   absent       nothing, yet: nobody listens, the host is not known, it takes connections and is
//                silent, it does not answer in time
//
//   TaskAsker asker({{"/job:ps/task:0", "10.0.0.1:2222"}});
//   for (const TaskAnswer& status : asker.Ask(absl::Seconds(5))) ...
//
// Asking opens no session and changes nothing in a task.
//
// Thread-safety: Ask, from one thread at a time.
// Lifetime: calls that end after Ask has returned use nothing of the asker.
// Failure: none; why a task does not answer is in its status.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "distributed/transport/peer_counts.h"

namespace millrace {

class RpcChannel;

struct AskedTask {
  std::string task = "";  // "/job:ps/task:0"; "": whichever is there
  std::string address;    // "host:port"
};

struct TaskAnswer {
  enum class State { kAnswers, kOther, kRefuses, kAbsent };
  struct Device {
    std::string name;  // "/job:ps/replica:0/task:0/device:CPU:0"
    std::string type;
    uint64_t incarnation = 0;
    int64_t memory_limit = 0;  // bytes
  };
  // Sessions that are open in the task.
  struct Sessions {
    std::string master;  // the task whose master opened them; "": it did not say
    int64_t open = 0;
    int64_t running_steps = 0;
  };

  AskedTask asked;
  State state = State::kAbsent;
  std::string reason;  // "" for one that answers

  // What it says, of one that answers and of another one; names are without replica 0.
  std::string task;
  std::string job;
  int index = -1;
  uint64_t incarnation = 0;  // of its first device: another one after each start
  std::vector<Device> devices;
  // nullopt: it does not say, being of another program or release.
  std::optional<std::vector<Sessions>> sessions;
  std::optional<std::map<std::string, PeerCounts>> peers;  // by the other task
};

// "answers", ...
absl::string_view TaskStateName(TaskAnswer::State state);

class TaskAsker {
 public:
  // What it shows them is ClusterCredentials() (net/security.h).
  explicit TaskAsker(std::vector<AskedTask> tasks);
  ~TaskAsker();
  TaskAsker(const TaskAsker&) = delete;
  TaskAsker& operator=(const TaskAsker&) = delete;

  // Asks all at once and waits for `timeout`; in addition for a few seconds at most, while the
  // reasons of those that cannot be called are looked for. In the order of the tasks.
  std::vector<TaskAnswer> Ask(absl::Duration timeout);

 private:
  const std::vector<AskedTask> tasks_;
  std::vector<std::shared_ptr<RpcChannel>> channels_;  // one for each
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TASK_STATUS_H_
