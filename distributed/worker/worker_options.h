// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_OPTIONS_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_OPTIONS_H_

// What a worker is made with, and its steps use. Plain data.

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/io_pool.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/peer_links.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/transport/tensor_source.h"
#include "net/timers.h"

namespace millrace {

struct WorkerOptions {
  std::string task;  // "/job:ps/replica:0/task:0"
  int num_cpu_devices = 1;
  // Null: Arena::Default(). Steps keep it, too: a kernel that one leaves behind may compute when
  // the worker is gone.
  std::shared_ptr<Arena> own_arena;
  IoPool* io_pool = nullptr;        // outlives the worker and such kernels
  Clock* clock = Clock::Real();     // of leases
  Timers* timers = Timers::Real();  // of steps
  // How long a run without sessions keeps its resources while others are trained here.
  absl::Duration run_linger = absl::Minutes(10);
  // How long Shutdown waits for steps that it has cancelled.
  absl::Duration shutdown_bound = absl::Seconds(10);
  ServerLimits limits = {};
  // Another task, of which the steps of foreign masters ask tensors; null for one that is not in
  // the cluster. Null: this task takes no part in such steps with others.
  std::function<std::shared_ptr<TensorSource>(absl::string_view task)> source;
  // The links to other tasks, on which steps exchange tensors; outlives the worker. Null: this task
  // has none, and takes part only in steps of its own and of foreign masters.
  PeerLinks* links = nullptr;
  // Null: what is exchanged with other tasks is not counted.
  std::shared_ptr<const PeerCounters> peer_counters;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_OPTIONS_H_
