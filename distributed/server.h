// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_SERVER_H_
#define MILLRACE_DISTRIBUTED_SERVER_H_

// Server: one task of a cluster: master and worker service on one gRPC port.
//
//   MR_ASSIGN_OR_RETURN(auto server, Server::Start(cluster));
//   if (cluster.job() == "ps") return server->Join();
//   ... NewSession({.target = server->target()}) ...
//
// Binds the host of its own entry in the cluster; a port in use is an error at once.
// Devices, resources and registered graphs live as long as the server.
//
// Without a cluster (no TF_CONFIG) there is no port: target() is "", sessions run in this process,
// and the text of a program is the same for one process and for many.
//
// Thread-safety: all methods, from any thread.
// Failure of Start: FailedPrecondition "... port is in use", InvalidArgument for a bad config, or a
// bad MILLRACE_WIRE, MILLRACE_UNIX_LINKS or MILLRACE_LINK_SHARED_BYTES; what net/security.h says of
// its files.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/cluster/server_limits.h"
#include "net/security.h"
#include "runtime/session_config.h"

namespace millrace {

struct ServerOptions {
  // Of this task (threads, devices), and where sessions say nothing.
  SessionConfig config = {};
  // How long a session that this server's master has on another task lives when that task does not
  // hear of the master, and how often it does: at least three times in that time.
  absl::Duration lease = absl::Seconds(60);
  absl::Duration lease_period = absl::Seconds(20);
  // How long a training run without sessions keeps its variables here while others are trained, and
  // those who are not members may clear no variables after the last session has ended.
  absl::Duration run_linger = absl::Minutes(10);
  // How long Stop leaves alone, before it cancels what is left: steps that run, and tensors of
  // steps that other tasks have still to receive.
  absl::Duration stop_grace = absl::Seconds(1);
  // How long it waits, then, for each of: steps of sessions, steps of the worker, handlers of
  // calls. What has not ended (a kernel that does not return) is named in the log and left behind
  // with all that it uses.
  absl::Duration stop_bound = absl::Seconds(10);
  // What this task shows and asks for; nullopt: what the process does (net/security.h).
  std::optional<SecurityOptions> security = std::nullopt;
  // What callers may take.
  ServerLimits limits = {};
  // Whether links to tasks of the same host and user go over Unix sockets; nullopt: unless the
  // environment variable MILLRACE_UNIX_LINKS is "0" or MILLRACE_WIRE is "grpc" (else it is "links",
  // "unix" or not set). Two tasks do when both want it.
  std::optional<bool> unix_links = std::nullopt;
  // The directories in which graphs may read and write files, of this whole process
  // (formats/graph_files.h). None: those of the environment variable MILLRACE_FILE_ROOTS, separated
  // by colons; without it, everywhere.
  std::vector<std::string> file_roots = {};
};

struct JoinOptions {
  // After a signal: how long open sessions whose masters live are served further, so that a chief
  // that was told to end at the same moment can save. 0: not at all. Cluster managers kill after
  // 30 s.
  absl::Duration signal_grace = absl::Seconds(25);
  // Leave, with OK, when the training run that was claimed last here has ended and no session of
  // another one, or of none, is open: as soon as its sessions have closed, and after `grace` at
  // most. Sessions that are still open in the middle of that time end with RunEndedError, and the
  // rest of it is for their owners to hear so.
  bool exit_when_done = false;
  // Where the run says that it has ended, too (run/run_file.h): to a server that came up again
  // after the end, and which nobody tells. What stands there from the start counts only after
  // `stale_grace`. While another chief than the one that ended owns the directory, and has not
  // ended itself, the server stays. "": nowhere.
  std::string logdir = "";
  // Trainers that wait for the run ask once a second: in this time they hear that it has ended.
  absl::Duration grace = absl::Seconds(10);
  // All tasks of a run that is trained further start at once, and the chief's may be the last to
  // come, from another machine: in this time it takes the run over, or its directory.
  absl::Duration stale_grace = absl::Seconds(60);
};

class Server {
 public:
  static StatusOr<std::unique_ptr<Server>> Start(const ClusterConfig& cluster,
                                                 const ServerOptions& options = {});
  virtual ~Server() = default;

  // "grpc://host:port" of this server; sessions on it run their master here, without a network hop.
  // "" without a cluster.
  virtual std::string target() const = 0;
  // 0 without a cluster.
  virtual int port() const = 0;
  // Blocks until SIGTERM, SIGINT or Stop(), or until what the options say. OK then, so that a
  // parameter server exits 0. After a signal it opens no session any more and leaves when those
  // that are open have closed (leave_watch.h: every 10 s the log says which clients it stays for),
  // or the grace is over; a second signal ends the process at once. The signals are handled
  // (core/termination.h) only meanwhile. A run file that cannot be read is in the log, once;
  // storage that hangs delays neither signals nor Stop(). With exit_when_done the log says what it
  // waits for (run_watch.h).
  virtual Status Join(const JoinOptions& options) = 0;
  Status Join() { return Join({}); }
  // Refuses new sessions and steps (Unavailable, "... is stopping"); lets running ones end, and
  // other tasks receive what was sent to them, for the grace; cancels the rest, closes the port.
  // Bounded. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_SERVER_H_
