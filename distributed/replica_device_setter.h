// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_
#define MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_

// ReplicaDeviceSetter: the device function of between-graph replication: variables go to the
// parameter servers, everything else to this worker. By itself it places variables in turn, as
// TensorFlow's does; with a strategy, or as BalancedDeviceSetter, by their bytes.
//
//   root.WithDevice(ReplicaDeviceSetter(cluster))   in turn
//   root.WithDevice(BalancedDeviceSetter(cluster))  by bytes: what an Estimator does
//
// Tables above 64 MiB are cut into parts, one for each parameter server at most, unless the program
// says otherwise (graph/table_parts.h).
//
// Every task must make its variables in the same order, so that all agree where each one is: a
// strategy sees the nodes of one graph and nothing else. Names of variables and checkpoints do not
// depend on it. One device function per graph: it counts what it has placed.
// Source: TensorFlow's tf.train.replica_device_setter.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distributed/cluster/cluster.h"
#include "graph/scope.h"
#include "graph/table_parts.h"

namespace millrace {

// Chooses a ps (0 <= ps < number of ps tasks: its place among them, which may have gaps) for a
// variable's node.
using PsStrategy = std::function<int(const tensorflow::NodeDef&)>;
PsStrategy RoundRobinStrategy(int num_tasks);
// The ps with the fewest bytes so far; ties to the lowest. A node's bytes are those of
// graph/variable_bytes.h. A node that stands with another (an optimizer's slot with its variable)
// or asks for a task itself goes there whatever is chosen: it counts there.
PsStrategy GreedyByteStrategy(int num_tasks);
// The same for tasks with these numbers.
PsStrategy GreedyByteStrategy(std::vector<int> tasks);

struct ReplicaDeviceSetterOptions {
  std::string ps_device = "/job:ps";
  std::string worker_device = "";  // "" = the cluster config's own task
  bool merge_devices = true;
  PsStrategy strategy = {};  // empty = round robin
  // Tables of more bytes are cut, by parts of as many bytes at least; 0: none.
  int64_t partition_tables_above = kTablePartBytes;
};

// Empty (no device function) when the cluster has no ps tasks.
DeviceFunction ReplicaDeviceSetter(const ClusterConfig& cluster,
                                   const ReplicaDeviceSetterOptions& options = {});

// By bytes, with what else the options' defaults are.
DeviceFunction BalancedDeviceSetter(const ClusterConfig& cluster);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_REPLICA_DEVICE_SETTER_H_
