// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACE_PLACER_H_
#define MILLRACE_GRAPH_PLACE_PLACER_H_

// Placement: gives every node of a graph the one device that it runs on.
//
// Nodes that share state are placed together: those in one `_class` ("loc:@node"), and the two ends
// of an edge that carries a reference or a resource handle. A group may go to any device that
//   * satisfies the requests of all its members (partial names; each field is given once),
//   * has a kernel for each of them,
//   * is in the list of devices (which is the device filters' work).
// Where the state lives wins: the request of a node that only uses a reference or handle narrows
// the choice of its group as far as it agrees with it, and is passed over otherwise.
// Of several devices the first is taken by: type (GPU before CPU), the default device, the default
// device's task, job, replica, task, id. Two kinds of nodes follow others when they may choose:
// Shape, Rank and Size go where their input is; a node without inputs and with one output goes
// where all its consumers are.
//
// An assigned device that a node has already stays. Stateful nodes stay where an earlier placement
// put them (StatefulPlacements).
//
// Thread-safety: thread-compatible. Failure: no device is assigned to any node then.

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/place/kernel_support.h"

namespace millrace {

struct DeviceInfo {
  std::string name;  // full: "/job:ps/replica:0/task:1/device:CPU:0"
  std::string type;  // "CPU"
  uint64_t incarnation = 0;
};

// Node name -> device of the stateful nodes that have been placed so far, for one session.
using StatefulPlacements = std::map<std::string, std::string>;

struct PlacementOptions {
  // A request for a type or id that does not exist or has no kernel counts without these two
  // fields; one warning tells how many nodes asked for a missing GPU.
  bool allow_soft_placement = false;
  // Set by that warning, and no further one where it is set: one session warns once. May be null.
  // Must outlive the call.
  bool* warned_of_missing_gpu = nullptr;
  // Logs "name: (Op): device" per node.
  bool log_device_placement = false;
  // Full name of the device preferred for nodes that may go anywhere; the first device when empty.
  std::string default_device = "";
  // Read and extended; may be null. Must outlive the call.
  StatefulPlacements* stateful_placements = nullptr;
};

// Assigns a device to every node of `graph`.
//   InvalidArgument "Cannot assign a device for operation X: ...": no device satisfies the requests
//     (what was asked and what exists is listed), or members of one group contradict each other;
//     "Stateful placement mismatch": a stateful node would have to move; malformed names.
//   Unimplemented "Op 'X' of node 'n' has no kernel registered ...": no device can run it.
// `kernels` may be null: then every device runs every op.
Status PlaceGraph(Graph* graph, absl::Span<const DeviceInfo> devices, const KernelSupport* kernels,
                  const PlacementOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACE_PLACER_H_
