// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_LINKED_TASKS_H_
#define MILLRACE_DISTRIBUTED_TESTING_LINKED_TASKS_H_

// LinkedTasks: the links between workers and masters of tasks that live in one process, for tests
// of steps that travel on them.
//
// Links are of one kind: in process, or of bytes over a simulated way. The bytes move on a thread
// of its own, which behaves as a network's: it collects what a message made ready as a visit, and
// runs that corked once it has let go of the network. Delays are drawn, and pass at once.
//
// Threads: all methods, from any, but not within a call of a link. Lifetime: workers outlive it;
// they and masters use it until they are shut down. Failure: fails the test.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "distributed/link/link.h"
#include "distributed/link/peer_links.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/master/link_parts.h"
#include "distributed/worker/worker.h"

namespace millrace {

class LinkedTasks {
 public:
  enum class Kind { kInProcess, kBytes };
  // What came from one task at another one.
  struct Came {
    int64_t binds = 0, runs = 0, tensor_messages = 0, tensors = 0, ends = 0, cancels = 0;
    int64_t received = 0;  // tensors, by OnReceived
    int64_t messages() const { return binds + runs + tensor_messages + ends + cancels; }
  };

  explicit LinkedTasks(Kind kind);
  ~LinkedTasks();
  LinkedTasks(const LinkedTasks&) = delete;
  LinkedTasks& operator=(const LinkedTasks&) = delete;

  // Of the kind that the environment variable MILLRACE_LINK_KINDS says: "in_process", which is the
  // default, or "bytes". Links by bytes have the pools of a server by default.
  static std::unique_ptr<LinkedTasks> OfEnvironment();

  // For the options of a task's workers and masters.
  PeerLinks* of(const std::string& task);
  std::shared_ptr<LinkParts> parts(const std::string& task);
  // A life of the worker's task begins: others can reach it.
  void Begin(Worker* worker);
  // The life ends: both ends have heard so when this returns. Nothing when there is none.
  void Kill(const std::string& task);
  // Edges that come from there are lost without a word, while `muted`.
  void Mute(const std::string& task, bool muted);
  // An open link that `task` has to `peer`; dialled when there is none.
  std::shared_ptr<Link> LinkOf(const std::string& task, const std::string& peer);

  Came came(const std::string& from, const std::string& at) const;
  // Writes by `from` to `to` on the newest way. Of kBytes.
  int64_t num_writes(const std::string& from, const std::string& to);

 private:
  class Of;
  class End;
  class Network;
  using Pair = std::pair<std::string, std::string>;
  // One end of the link of a pair, or the attempt to open it.
  struct Side {
    bool is_opening = false;
    std::shared_ptr<Link> link;
    std::vector<PeerLinks::Got> waiting;
  };
  struct Way {
    std::shared_ptr<SimulatedWay> way;
    std::string dialler;
  };

  void Get(const std::string& task, const std::string& peer, PeerLinks::Got got);
  void Open(const std::string& task, const std::string& peer);
  std::shared_ptr<LinkEnd> MakeEnd(const std::string& task, const std::string& peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Opened(const Pair& side, std::shared_ptr<Link> link);
  void Lost(const Pair& side, const Status& status, const Link* link);
  void EndLost(const std::string& task);
  void Count(const Pair& way, const std::function<void(Came*)>& count);
  bool IsMuted(const std::string& task) const;

  const Kind kind_;
  std::unique_ptr<Network> network_;  // null in process
  mutable Mutex mu_;
  CondVar end_lost_;
  std::map<std::string, std::unique_ptr<Of>> of_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<LinkParts>> parts_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Worker*> lives_ ABSL_GUARDED_BY(mu_);
  std::map<Pair, Side> sides_ ABSL_GUARDED_BY(mu_);            // by own task and peer
  std::map<Pair, Way> ways_ ABSL_GUARDED_BY(mu_);              // the newest, by the names in order
  std::map<Pair, Came> came_ ABSL_GUARDED_BY(mu_);             // by sender and receiver
  std::map<std::string, int> live_ends_ ABSL_GUARDED_BY(mu_);  // by own task: not lost yet
  std::set<std::string> muted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_LINKED_TASKS_H_
