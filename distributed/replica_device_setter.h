// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_
#define MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_

// ReplicaDeviceSetter: the device function of between-graph replication: variables
// go to the parameter servers in turn, everything else to this worker.
//
// Every worker must make its variables in the same order, so that all agree where each one is.
// Source: TensorFlow's tf.train.replica_device_setter.

#include <functional>
#include <string>

#include "distributed/cluster/cluster.h"
#include "graph/scope.h"

namespace millrace {

// Chooses a ps task (0 <= task < num_tasks) for a variable's node.
using PsStrategy = std::function<int(const tensorflow::NodeDef&)>;
PsStrategy RoundRobinStrategy(int num_tasks);
// The task with the fewest bytes so far; ties to the lowest. Needs static shapes (attr "shape").
PsStrategy GreedyByteStrategy(int num_tasks);

struct ReplicaDeviceSetterOptions {
  std::string ps_device = "/job:ps";
  std::string worker_device = "";  // "" = the cluster config's own task
  bool merge_devices = true;
  PsStrategy strategy = {};  // empty = round robin
};

// Empty (no device function) when the cluster has no ps tasks.
DeviceFunction ReplicaDeviceSetter(const ClusterConfig& cluster,
                                   const ReplicaDeviceSetterOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_
