// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using State = FrontNodeState;

class Planner {
 public:
  Planner(const PlannedNodes& version, const NodePlanOptions& options, absl::Time now)
      : version_(version),
        options_(options),
        now_(now),
        target_(std::max(version.target, 1)),
        next_start_(NextStartTime(version.failures, version.failed_at, options)) {
    for (const PlannedNode& node : version.nodes) running_.push_back(node.running);
  }

  NodePlan Plan() {
    Requests();
    Kill();
    if (version_.wanted) {
      StopIdle();
      Start();
    } else {
      StopAll();
    }
    return std::move(plan_);
  }

 private:
  void Add(NodeAction action, size_t node, size_t request = 0) {
    plan_.steps.push_back({.action = action, .node = node, .request = request});
  }
  // Is it over? Else the plan changes then.
  bool IsOver(absl::Time time) {
    if (time <= now_) return true;
    plan_.next_time = std::min(plan_.next_time, time);
    return false;
  }
  int NumIn(State state) const {
    return static_cast<int>(
        std::count_if(version_.nodes.begin(), version_.nodes.end(),
                      [state](const PlannedNode& node) { return node.state == state; }));
  }
  // That run or may run soon.
  int NumAlive() const { return NumIn(State::kStarting) + NumIn(State::kReady); }

  // The ready node that gets the next request.
  std::optional<size_t> Receiver() const {
    std::optional<size_t> full, empty;
    for (size_t i = 0; i < version_.nodes.size(); ++i) {
      if (version_.nodes[i].state != State::kReady) continue;
      if (running_[i] < target_ && (!full || running_[i] > running_[*full])) full = i;
      if (running_[i] < target_ * kMostPerTarget && (!empty || running_[i] < running_[*empty])) {
        empty = i;
      }
    }
    return full ? full : empty;
  }

  // Requests are refused while no node is there and none may start.
  bool IsBroken() const {
    return version_.failures >= options_.failures_that_refuse && NumAlive() == 0 &&
           now_ < next_start_;
  }

  void Requests() {
    size_t left = 0;
    for (size_t i = 0; i < version_.waiting.size(); ++i) {
      const absl::Time deadline = version_.waiting[i].deadline;
      if (!version_.wanted) {
        Add(NodeAction::kNoVersion, 0, i);
      } else if (deadline <= now_) {
        Add(NodeAction::kTooLate, 0, i);
      } else if (const std::optional<size_t> node = Receiver()) {
        ++running_[*node];
        Add(NodeAction::kSend, *node, i);
      } else if (IsBroken()) {
        Add(NodeAction::kNoNode, 0, i);
      } else if (left >= options_.max_waiting) {
        Add(NodeAction::kTooMany, 0, i);
      } else {
        ++left;
        IsOver(deadline);
      }
    }
    demand_ = static_cast<int64_t>(left);
    for (size_t i = 0; i < running_.size(); ++i) {
      // What drains has no place for others; its requests ask for no node.
      if (version_.nodes[i].state == State::kReady) demand_ += running_[i];
    }
  }

  void Kill() {
    for (size_t i = 0; i < version_.nodes.size(); ++i) {
      const PlannedNode& node = version_.nodes[i];
      if (node.killed) continue;
      if (node.state == State::kLost ||
          (node.state == State::kStarting && IsOver(node.since + options_.start_time)) ||
          (node.state == State::kStopping && IsOver(node.since + options_.stop_time))) {
        Add(NodeAction::kKill, i);
      }
    }
  }

  int NumNeeded() const {
    const int64_t nodes = (demand_ + target_ - 1) / target_;
    return static_cast<int>(std::min<int64_t>(std::max<int64_t>(nodes, version_.min_nodes),
                                              std::max(version_.max_nodes, 0)));
  }

  // The last started go first, but only those that have been idle for long enough.
  void StopIdle() {
    int spare = NumAlive() - NumNeeded();
    for (size_t i = version_.nodes.size(); i-- > 0 && spare > 0;) {
      const PlannedNode& node = version_.nodes[i];
      if (node.state != State::kReady || running_[i] > 0) continue;
      if (!IsOver(node.idle_since + version_.idle_time)) continue;
      Add(NodeAction::kStop, i);
      --spare;
    }
  }

  void Start() {
    const int room = version_.max_nodes - static_cast<int>(version_.nodes.size());
    const int missing = std::min(NumNeeded() - NumAlive(), room);
    if (missing <= 0 || !IsOver(next_start_)) return;
    // After a failure one at a time, until one is ready: many would fail for the same reason.
    const bool is_trial = version_.failures > 0 && NumIn(State::kReady) == 0;
    if (is_trial && NumIn(State::kStarting) > 0) return;
    for (int i = 0; i < (is_trial ? 1 : missing); ++i) Add(NodeAction::kStart, 0);
  }

  void StopAll() {
    for (size_t i = 0; i < version_.nodes.size(); ++i) {
      const PlannedNode& node = version_.nodes[i];
      switch (node.state) {
        case State::kStarting:
          if (!IsKilled(i)) Add(NodeAction::kStop, i);
          break;
        case State::kReady:
          // Its drain begins with the change of its state, so with the next plan.
          Add(running_[i] == 0 ? NodeAction::kStop : NodeAction::kDrain, i);
          break;
        case State::kDraining:
          if (running_[i] == 0 || IsOver(node.since + options_.drain_time)) {
            Add(NodeAction::kStop, i);
          }
          break;
        case State::kStopping:
        case State::kLost:
          break;
      }
    }
  }

  // Now or before.
  bool IsKilled(size_t node) const {
    return version_.nodes[node].killed ||
           std::any_of(plan_.steps.begin(), plan_.steps.end(), [node](const NodeStep& step) {
             return step.action == NodeAction::kKill && step.node == node;
           });
  }

  const PlannedNodes& version_;
  const NodePlanOptions& options_;
  const absl::Time now_;
  const int target_;
  const absl::Time next_start_;
  std::vector<int> running_;  // by node, with what this plan sends
  int64_t demand_ = 0;        // requests that wait or run
  NodePlan plan_;
};

}  // namespace

absl::string_view FrontNodeStateName(FrontNodeState state) {
  switch (state) {
    case State::kStarting:
      return "starting";
    case State::kReady:
      return "ready";
    case State::kDraining:
      return "draining";
    case State::kStopping:
      return "stopping";
    case State::kLost:
      break;
  }
  return "lost";
}

absl::Time NextStartTime(int failures, absl::Time failed_at, const NodePlanOptions& options) {
  if (failures <= 0) return absl::InfinitePast();
  absl::Duration wait = options.first_backoff;
  for (int i = 1; i < failures && wait < options.max_backoff; ++i) wait *= 2;
  return failed_at + std::min(wait, options.max_backoff);
}

NodePlan PlanFrontNodes(const PlannedNodes& version, const NodePlanOptions& options,
                        absl::Time now) {
  return Planner(version, options, now).Plan();
}

}  // namespace millrace
