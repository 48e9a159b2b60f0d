// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_OPTIONS_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_OPTIONS_H_

// MasterOptions: what a master and its sessions know of the server they live in.
//
// Plain data, fixed once the master is made.
// Threads: `peer` is called from any thread, until Shutdown of the master has returned.

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "distributed/cluster/cluster.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/master/link_parts.h"
#include "distributed/transport/local_part.h"
#include "distributed/transport/worker_control.h"
#include "net/timers.h"
#include "proto/config.pb.h"

namespace millrace {

struct MasterOptions {
  std::string task;  // "/job:worker/replica:0/task:0"
  ClusterSpec cluster;
  // Used where a session says nothing.
  tensorflow::ConfigProto default_config;
  // The way to a task; null for one that is not in the cluster.
  std::function<std::shared_ptr<WorkerControl>(absl::string_view task)> peer;
  // Runs the own task's parts of steps; its sessions and graphs are reached by `peer`.
  std::shared_ptr<LocalPart> local_part;
  // By which other tasks run their parts of steps. Null: this task has no links, and runs steps of
  // its own alone.
  std::shared_ptr<LinkParts> links;
  Clock* clock = Clock::Real();     // of waits and leases
  Timers* timers = Timers::Real();  // of calls and steps
  // By which the log says every 10 s what steps wait for.
  Clock* log_clock = Clock::Real();
  // How long the end of sessions waits for their steps.
  absl::Duration close_bound = absl::Seconds(10);
  ServerLimits limits = {};
  // How long sessions on other tasks live when this master is not heard of, and how often it is.
  absl::Duration lease = absl::Seconds(60);
  absl::Duration lease_period = absl::Seconds(20);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_OPTIONS_H_
