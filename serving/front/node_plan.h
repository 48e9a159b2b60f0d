// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_NODE_PLAN_H_
#define MILLRACE_SERVING_FRONT_NODE_PLAN_H_

// PlanFrontNodes: what happens next to the nodes (server processes) and the waiting requests of one
// version, as a function of what is.
//
//   starting -> ready -> draining -> stopping -> (ended: the caller takes it off the list)
//       |         |  \__________________^  ^
//       |         +-> lost                 |   lost: nothing connects to it; it is killed
//       +----------------------------------+   stopping: it has got SIGTERM
//
// What always holds, whatever the states are that it is given:
//   * A start never makes more than max_nodes processes, those that are ending included.
//   * While the version is wanted and none fails to start, there are at least min_nodes, as soon as
//     those that are ending make room; none of these is stopped for being idle.
//   * A node gets at most kMostPerTarget times its concurrency target of requests at a time, and
//     gets requests only while it is ready. The fullest node below its target comes first, so
//     that spare nodes become idle; beyond the targets the emptiest.
//   * A node is sent SIGTERM only when no request runs on it, or its drain is over.
//   * At most max_waiting requests wait; each is sent, or refused at its deadline at the latest.
//     Where nodes fail to start several times in a row, requests that wait are refused at once with
//     that reason; one that comes later, when a start is due again, waits for that start.
//   * It comes to rest: applied, the same plan asks for nothing more until something happens or
//     next_time has come.
//
// Thread-safety: a pure function. Failure: none.

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace millrace {

// Requests that a node may run at a time, in targets: while another node starts, or all are there.
inline constexpr int kMostPerTarget = 2;

enum class FrontNodeState { kStarting, kReady, kDraining, kStopping, kLost };
absl::string_view FrontNodeStateName(FrontNodeState state);  // "starting"

struct PlannedNode {
  FrontNodeState state = FrontNodeState::kStarting;
  int running = 0;                               // requests that were sent to it and have not ended
  absl::Time since = absl::InfinitePast();       // in this state
  absl::Time idle_since = absl::InfinitePast();  // of a ready one without requests
  bool killed = false;                           // it has got SIGKILL
};

struct PlannedRequest {
  absl::Time deadline = absl::InfiniteFuture();  // for being sent
};

struct PlannedNodes {
  bool wanted = true;  // false: the version was deleted, or the front ends
  int min_nodes = 0;
  int max_nodes = 1;
  int target = 1;  // requests per node, above which another one starts
  absl::Duration idle_time = absl::Minutes(5);
  std::vector<PlannedNode> nodes = {};       // in the order in which they were started
  std::vector<PlannedRequest> waiting = {};  // the first one goes first
  // Nodes that ended without being asked to, or did not start in time, since one was ready for
  // `stable_time`; and when the last one did.
  int failures = 0;
  absl::Time failed_at = absl::InfinitePast();
};

struct NodePlanOptions {
  size_t max_waiting = 1'000;
  absl::Duration start_time = absl::Minutes(5);  // then it is killed
  absl::Duration drain_time = absl::Seconds(30);
  absl::Duration stop_time = absl::Seconds(10);  // from SIGTERM to SIGKILL
  // Of the first failure; each one more doubles it.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(30);
  // So many failures in a row refuse what waits.
  int failures_that_refuse = 3;
  // A node that was ready for so long has nothing to do with failures before it.
  absl::Duration stable_time = absl::Seconds(10);
};

enum class NodeAction {
  kSend,       // the request to the node
  kTooMany,    // the request is refused: too many wait
  kTooLate,    // the request is refused: its deadline has come
  kNoNode,     // the request is refused: nodes fail to start
  kNoVersion,  // the request is refused: the version is gone
  kStart,      // one more node
  kDrain,      // ready -> draining
  kStop,       // -> stopping, by SIGTERM
  kKill,       // SIGKILL; no change of state
};

struct NodeStep {
  NodeAction action = NodeAction::kStart;
  size_t node = 0;     // place in `nodes`; of kSend, kDrain, kStop, kKill
  size_t request = 0;  // place in `waiting`; of kSend and refusals

  friend bool operator==(const NodeStep&, const NodeStep&) = default;
};

struct NodePlan {
  // Each request, and each node but for kSend, once at most.
  std::vector<NodeStep> steps;
  // When time alone changes the plan.
  absl::Time next_time = absl::InfiniteFuture();
};

// When the next node may start after these failures.
absl::Time NextStartTime(int failures, absl::Time failed_at, const NodePlanOptions& options);

NodePlan PlanFrontNodes(const PlannedNodes& version, const NodePlanOptions& options,
                        absl::Time now);

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_NODE_PLAN_H_
