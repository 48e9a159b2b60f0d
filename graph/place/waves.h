// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACE_WAVES_H_
#define MILLRACE_GRAPH_PLACE_WAVES_H_

// Waves: how often what a node needs has crossed from one location to another.
//
//   wave(n) = the largest wave of its inputs, one more for an input at another location
//
// Control edges count as edges. A _Send has the wave of the node that makes its tensor: what one
// task sends to another in one wave may leave together (distributed/worker/send_groups.h), because
// none of it needs, directly or not, another tensor of the same wave.
//
// A node has no wave when it may run long after the others of its wave, or only after a tensor of
// its own step has had an effect on another step:
//   * it may wait for another step: by a trait of its op (graph/op_traits.h), by a function that
//     it calls, or because this program does not know its op;
//   * it is in a loop: it runs any number of times, perhaps until another step writes something;
//   * something that it needs has no wave.
//
// An op whose kernel waits for what another step does must say so where it is registered.
//
// Thread-safety: the graph is only read. Cost: O(nodes + edges), and once over the functions of the
// library when a node calls one.

#include <vector>

#include "absl/functional/function_ref.h"
#include "core/status.h"
#include "graph/graph.h"

namespace millrace {

// On _Send and _Recv: the wave, an int >= 0. Without it a tensor leaves as soon as it is ready.
inline constexpr char kWaveAttr[] = "_wave";
inline constexpr int kNoWave = -1;

// The waves of all nodes, by id. InvalidArgument for a cycle that is no loop.
StatusOr<std::vector<int>> WavesOf(const Graph& graph,
                                   absl::FunctionRef<int(const Node&)> location_of);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACE_WAVES_H_
