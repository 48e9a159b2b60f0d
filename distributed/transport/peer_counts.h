// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_PEER_COUNTS_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_PEER_COUNTS_H_

// PeerCounts: what one task has exchanged with each other task of its cluster over links, which
// move the tensors of steps.
//
//   bytes, messages    with tensors; of bytes, those of the elements that travelled: not of tensors
//                      that their receiver has kept
//   tensors            in these messages
//   queued             how long messages waited before they were given to the network, in all: each
//                      from its first tensor on
//
// Not counted: what stays in this process, calls, and what steps of foreign masters ask for
// (RecvTensor).
//
// A sender finds its PeerCounter once, when its step begins, and adds to it once for each message:
// no lock, no allocation, nothing per tensor.
//
// Threads: all methods, from any thread. A read while messages travel may miss the last of them,
// and its figures need not be of one moment.
// Lifetime: senders share a counter, and may outlive the table.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

struct PeerCounts {
  int64_t bytes_sent = 0;
  int64_t messages_sent = 0;
  int64_t tensors_sent = 0;
  int64_t queued_ns = 0;  // of the messages sent
  int64_t bytes_received = 0;
  int64_t messages_received = 0;
  int64_t tensors_received = 0;
};

// Of one other task.
class PeerCounter {
 public:
  // Of one message.
  void AddSent(int64_t bytes, int64_t tensors, int64_t queued_ns);
  void AddReceived(int64_t bytes, int64_t tensors);
  PeerCounts Read() const;

 private:
  // Relaxed: sums, which order nothing.
  std::atomic<int64_t> bytes_sent_{0}, messages_sent_{0}, tensors_sent_{0}, queued_ns_{0};
  std::atomic<int64_t> bytes_received_{0}, messages_received_{0}, tensors_received_{0};
};

class PeerCounters {
 public:
  // How all tasks are called that are none of `tasks`.
  static constexpr char kOthers[] = "other tasks";

  // Of "/job:ps/replica:0/task:0", ...: fixed, so that names which callers make up take no memory.
  explicit PeerCounters(const std::vector<std::string>& tasks);

  // Never null.
  std::shared_ptr<PeerCounter> Find(absl::string_view task) const;
  // By task; those with which a message was exchanged.
  std::map<std::string, PeerCounts> Read() const;
  // For the log: "" when there was none.
  std::string ToString() const;

 private:
  std::map<std::string, std::shared_ptr<PeerCounter>, std::less<>> counters_;  // fixed
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_PEER_COUNTS_H_
