// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_NODE_FLEET_H_
#define MILLRACE_SERVING_FRONT_NODE_FLEET_H_

// NodeFleet: the nodes of all versions, and the requests on their way to them.
//
//   request -> waits -> sent to a node -> answered        (node_plan.h decides; here it is done)
//                 ^          |
//                 +----------+  only when not a byte of it went out
//
// A node is a model_server with one version on a unix socket in `socket_dir`; it is ready when the
// socket takes connections. One thread, the keeper, starts, watches and ends all of them: they die
// with it. A version has threads of its own to carry requests, so that no version waits for
// another.
//
// Answers that no node gave are {"error": "..."}: 404 for a version that is gone, 429 when too many
// wait, 503 when no node came in time or nodes fail to start, 502 when a node ended or broke off
// while it had the request, 504 when it took too long.
//
// Thread-safety: all methods, from any thread; Stop once.
// Lifetime: the destructor stops, see Stop.
// Failure: of Start ResourceExhausted without a descriptor to wake the keeper.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "net/http/http_server.h"
#include "serving/front/node_client.h"
#include "serving/front/node_plan.h"
#include "serving/front/node_process.h"

namespace millrace {

struct FleetVersion {
  int64_t id = 0;
  std::string model;      // a plain name: letters, digits, underscores
  std::string label;      // in logs and messages: "census/v1"
  std::string directory;  // of the SavedModel, absolute
  int min_nodes = 0, max_nodes = 1, target = 1;
  absl::Duration idle_time = absl::Minutes(5);
};

struct FleetStatus {
  struct Node {
    FrontNodeState state;
    pid_t pid;
    int running;
  };
  std::vector<Node> nodes = {};
  size_t num_waiting = 0;
  bool is_failing = false;  // no node is there, and several in a row did not start
  std::string last_error = "";
  absl::Time last_use = absl::InfinitePast();
};

class NodeFleet {
 public:
  struct Options {
    std::string model_server;             // the program
    std::vector<std::string> node_flags;  // of it, after ours
    std::string socket_dir;               // exists, is ours alone, at most kMaxSocketDirBytes
    NodePlanOptions plan = {};
    absl::Duration hold_time = absl::Seconds(30);     // until a request is sent
    absl::Duration request_time = absl::Seconds(60);  // from then to its reply
  };
  static constexpr size_t kMaxSocketDirBytes = 80;
  // Of one version, at a time.
  static constexpr int kMostSenders = 256;
  static constexpr int kMostTries = 3;  // of a request that is not taken

  static StatusOr<std::unique_ptr<NodeFleet>> Start(Options options);
  ~NodeFleet();
  NodeFleet(const NodeFleet&) = delete;
  NodeFleet& operator=(const NodeFleet&) = delete;

  // All that there are from now on; versions of other ids drain and end.
  void SetVersions(const std::vector<FleetVersion>& versions);
  // Answers the request, at some point, from any thread: a prediction, or the model's metadata for
  // a GET.
  void Predict(int64_t id, std::unique_ptr<HttpRequest> request);
  FleetStatus StatusOf(int64_t id) const;

  // Refuses requests that wait, drains and ends all nodes, and waits for that.
  void Stop();

 private:
  struct Node {
    int64_t id = 0;
    PlannedNode plan;
    bool asked = false;  // to end
    bool was_ready = false;
    absl::Time ready_at = absl::InfiniteFuture();
    std::string last_line;
    pid_t pid = 0;
    std::unique_ptr<NodeClient> client;
    std::string socket_path;
    // The keeper's.
    std::unique_ptr<NodeProcess> process;
  };
  struct Waiting {
    std::unique_ptr<HttpRequest> request;
    absl::Time deadline;
    int tries = 0;
  };
  struct Version {
    FleetVersion settings;
    bool wanted = true;
    std::vector<std::shared_ptr<Node>> nodes;
    std::list<Waiting> waiting;
    int failures = 0;
    absl::Time failed_at = absl::InfinitePast();
    std::string last_error;
    absl::Time last_use = absl::InfinitePast();
    int num_sending = 0;  // tasks that may use this
    std::unique_ptr<IoPool> senders;
  };
  struct Refused {
    std::unique_ptr<HttpRequest> request;
    Status why;
  };
  struct Sent {
    Version* version;  // stays while num_sending > 0
    std::shared_ptr<Node> node;
    Waiting waiting;
  };
  // What is to be done without the lock.
  struct Deeds {
    std::vector<Refused> refused;
    std::vector<Sent> sent;
    std::vector<std::string> lines;  // of nodes, for the log
  };

  explicit NodeFleet(Options options, OwnedFd wake)
      : options_(std::move(options)), wake_(std::move(wake)) {}

  // Plans for a version until there is nothing more to do here. Only the keeper starts and ends
  // nodes; others wake it. Returns when time changes the plan.
  absl::Time Turn(Version* version, bool is_keeper, Deeds* deeds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Done by this caller?
  bool Apply(Version* version, const NodePlan& plan, bool is_keeper, Deeds* deeds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartNode(Version* version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(Version* version, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status RefusalOf(const Version& version, NodeAction action) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Deeds deeds);
  void Send(Version* version, const std::shared_ptr<Node>& node, Waiting waiting);
  void Wake();

  void Keep();
  // After something may have happened to nodes.
  void Look(Version* version, Deeds* deeds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ended(Version* version, Node* node, int exit_code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string BaseDirectory(const Version& version) const;

  const Options options_;
  const OwnedFd wake_;  // an eventfd

  mutable Mutex mu_;
  std::map<int64_t, std::unique_ptr<Version>> versions_ ABSL_GUARDED_BY(mu_);
  int64_t next_node_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // When the keeper plans again at the latest.
  absl::Time keeper_next_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::thread keeper_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_NODE_FLEET_H_
