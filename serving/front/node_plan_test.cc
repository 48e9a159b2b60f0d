// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace millrace {
namespace {

using State = FrontNodeState;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// A node that changed its state, and became idle, at this second.
PlannedNode NodeIn(State state, int running = 0, double since = 0) {
  return {.state = state, .running = running, .since = At(since), .idle_since = At(since)};
}

std::string ActionText(const NodeStep& step) {
  switch (step.action) {
    case NodeAction::kSend:
      return absl::StrCat("send ", step.request, " to ", step.node);
    case NodeAction::kTooMany:
      return absl::StrCat("too many ", step.request);
    case NodeAction::kTooLate:
      return absl::StrCat("too late ", step.request);
    case NodeAction::kNoNode:
      return absl::StrCat("no node ", step.request);
    case NodeAction::kNoVersion:
      return absl::StrCat("no version ", step.request);
    case NodeAction::kStart:
      return "start";
    case NodeAction::kDrain:
      return absl::StrCat("drain ", step.node);
    case NodeAction::kStop:
      return absl::StrCat("stop ", step.node);
    case NodeAction::kKill:
      return absl::StrCat("kill ", step.node);
  }
  return "?";
}

struct PlanCase {
  std::string name;
  PlannedNodes version;
  double now;
  std::string steps;
  double next_time = -1;  // seconds; -1: never
};

std::vector<PlannedRequest> RequestsUntil(size_t count, double deadline) {
  return std::vector<PlannedRequest>(count, {.deadline = At(deadline)});
}

// covers: serving: the front's plan: nodes start, stop, drain and are killed, requests are sent,
//   held and refused, each by a row of a table
TEST(NodePlanTest, EachRuleHasARow) {
  const NodePlanOptions options = {.max_waiting = 2,
                                   .start_time = absl::Seconds(60),
                                   .drain_time = absl::Seconds(30),
                                   .stop_time = absl::Seconds(10),
                                   .first_backoff = absl::Seconds(1),
                                   .max_backoff = absl::Seconds(8),
                                   .failures_that_refuse = 3};
  const absl::Duration idle = absl::Seconds(100);
  const std::vector<PlanCase> cases = {
      {"nothing asked, nothing there", {.idle_time = idle}, 0, ""},
      {"the fewest nodes start",
       {.min_nodes = 2, .max_nodes = 3, .idle_time = idle},
       0,
       "start; start"},
      {"a request starts a node and waits",
       {.max_nodes = 2, .target = 2, .idle_time = idle, .waiting = RequestsUntil(1, 9)},
       0,
       "start",
       9},
      {"more than a target starts two",
       {.max_nodes = 4, .target = 1, .idle_time = idle, .waiting = RequestsUntil(2, 9)},
       0,
       "start; start",
       9},
      {"never more than the most",
       {.max_nodes = 1, .target = 1, .idle_time = idle, .waiting = RequestsUntil(2, 9)},
       0,
       "start",
       9},
      {"what is starting is waited for",
       {.max_nodes = 1,
        .idle_time = idle,
        .nodes = {NodeIn(State::kStarting)},
        .waiting = RequestsUntil(1, 9)},
       0,
       "",
       9},
      {"too many wait",
       {.max_nodes = 1,
        .idle_time = idle,
        .nodes = {NodeIn(State::kStarting)},
        .waiting = RequestsUntil(3, 9)},
       0,
       "too many 2",
       9},
      {"a deadline has come",
       {.max_nodes = 1,
        .idle_time = idle,
        .nodes = {NodeIn(State::kStarting)},
        .waiting = {{.deadline = At(5)}, {.deadline = At(7)}}},
       5,
       "too late 0",
       7},
      {"the fullest below its target comes first",
       {.max_nodes = 3,
        .target = 3,
        .idle_time = idle,
        .nodes = {NodeIn(State::kReady, 1), NodeIn(State::kReady, 2), NodeIn(State::kReady, 3)},
        .waiting = RequestsUntil(2, 9)},
       0,
       "send 0 to 1; send 1 to 0"},
      {"beyond the targets the emptiest, and another node starts",
       {.max_nodes = 3,
        .target = 2,
        .idle_time = idle,
        .nodes = {NodeIn(State::kReady, 3), NodeIn(State::kReady, 2)},
        .waiting = RequestsUntil(1, 9)},
       0,
       "send 0 to 1; start"},
      {"twice the target is the most",
       {.max_nodes = 1,
        .target = 2,
        .idle_time = idle,
        .nodes = {NodeIn(State::kReady, 4)},
        .waiting = RequestsUntil(1, 9)},
       0,
       "",
       9},
      {"what drains and stops gets nothing and takes its place",
       {.max_nodes = 2,
        .idle_time = idle,
        .nodes = {NodeIn(State::kDraining, 1, 8), NodeIn(State::kStopping, 0, 8)},
        .waiting = RequestsUntil(1, 19)},
       9,
       "",
       18},
      {"an idle node stays for its time",
       {.idle_time = idle, .nodes = {NodeIn(State::kReady)}},
       99,
       "",
       100},
      {"then it goes", {.idle_time = idle, .nodes = {NodeIn(State::kReady)}}, 100, "stop 0"},
      {"the fewest stay",
       {.min_nodes = 1,
        .max_nodes = 2,
        .idle_time = idle,
        .nodes = {NodeIn(State::kReady), NodeIn(State::kReady)}},
       100,
       "stop 1"},
      {"a busy node stays", {.idle_time = idle, .nodes = {NodeIn(State::kReady, 1)}}, 500, ""},
      {"a start that takes too long",
       {.idle_time = idle, .nodes = {NodeIn(State::kStarting)}},
       60,
       "kill 0"},
      {"nothing connects to it",
       {.idle_time = idle, .nodes = {NodeIn(State::kLost, 2)}},
       1,
       "kill 0"},
      {"a stop that takes too long",
       {.idle_time = idle, .nodes = {NodeIn(State::kStopping)}},
       10,
       "kill 0"},
      {"the next start waits after a failure",
       {.idle_time = idle, .waiting = RequestsUntil(1, 50), .failures = 2, .failed_at = At(10)},
       11,
       "",
       12},
      {"and comes, alone",
       {.max_nodes = 4,
        .target = 1,
        .idle_time = idle,
        .waiting = RequestsUntil(2, 50),
        .failures = 2,
        .failed_at = At(10)},
       12,
       "start",
       50},
      {"the wait has a bound",
       {.min_nodes = 1, .idle_time = idle, .failures = 40, .failed_at = At(10)},
       11,
       "",
       18},
      {"nodes that fail to start refuse",
       {.idle_time = idle, .waiting = RequestsUntil(1, 50), .failures = 3, .failed_at = At(10)},
       11,
       "no node 0"},
      {"until the next try is due",
       {.idle_time = idle, .waiting = RequestsUntil(1, 50), .failures = 3, .failed_at = At(10)},
       14,
       "start",
       50},
      {"a deleted version drains and stops",
       {.wanted = false,
        .max_nodes = 4,
        .idle_time = idle,
        .nodes = {NodeIn(State::kStarting), NodeIn(State::kReady, 1), NodeIn(State::kReady),
                  NodeIn(State::kDraining, 1, 1)},
        .waiting = RequestsUntil(1, 50)},
       5,
       "no version 0; stop 0; drain 1; stop 2",
       31},
      {"a drain has a bound",
       {.wanted = false, .idle_time = idle, .nodes = {NodeIn(State::kDraining, 1, 0)}},
       30,
       "stop 0"},
  };
  for (const PlanCase& c : cases) {
    SCOPED_TRACE(c.name);
    const NodePlan plan = PlanFrontNodes(c.version, options, At(c.now));
    EXPECT_EQ(absl::StrJoin(
                  plan.steps, "; ",
                  [](std::string* out, const NodeStep& step) { out->append(ActionText(step)); }),
              c.steps);
    // Rows that say no time look at their steps alone.
    if (c.next_time >= 0) {
      EXPECT_EQ(plan.next_time, At(c.next_time));
    }
  }
}

// One version with a world around it: nodes that start slowly, never, or die; requests.
class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    version_.max_nodes = 1 + Below(4);
    version_.min_nodes = Below(version_.max_nodes + 1);
    version_.target = 1 + Below(3);
    version_.idle_time = absl::Seconds(1 + Below(20));
    options_.max_waiting = static_cast<size_t>(1 + Below(6));
    options_.start_time = absl::Seconds(10);
    options_.drain_time = absl::Seconds(5);
    options_.stop_time = absl::Seconds(2);
  }

  void Run() {
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      Settle();
      Advance(absl::Milliseconds(Below(1500)));
      if (Below(2) == 0) Arrive(1 + Below(5));
      if (Below(12) == 0 && !nodes_.empty()) nodes_[Any(nodes_.size())].ends = now_;
      if (Below(15) == 0) Lose();
    }
    // All is well from here on: everything that waits or runs ends, and the nodes are those that
    // are to be kept.
    healthy_ = true;
    if (Below(3) == 0) version_.wanted = false;
    for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
      Settle();
      Advance(absl::Milliseconds(200));
    }
    EXPECT_TRUE(version_.waiting.empty());
    EXPECT_TRUE(runs_.empty());
    EXPECT_EQ(nodes_.size(), version_.wanted ? static_cast<size_t>(version_.min_nodes) : 0u);
    for (const PlannedNode& node : version_.nodes) {
      EXPECT_EQ(FrontNodeStateName(node.state), "ready");
    }
    EXPECT_EQ(num_arrived_, num_sent_ + num_refused_);
  }

 private:
  struct World {  // of the node at the same place
    int id = 0;
    absl::Time ready = absl::InfiniteFuture();
    absl::Time ends = absl::InfiniteFuture();
    bool was_ready = false;
    bool asked = false;
  };
  struct Running {
    int node = 0;
    absl::Time ends;
  };

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  size_t Any(size_t size) { return random_() % size; }

  void Arrive(int count) {
    for (int i = 0; i < count; ++i) {
      version_.waiting.push_back({.deadline = now_ + absl::Milliseconds(1 + Below(20'000))});
      ++num_arrived_;
    }
  }
  void Lose() {
    for (PlannedNode& node : version_.nodes) {
      if (node.state != State::kReady) continue;
      node.state = State::kLost;
      node.since = now_;
      return;
    }
  }

  // Plans are applied until one asks for nothing. Two do what is asked, one more drains' stops.
  void Settle() {
    for (int round = 0;; ++round) {
      ASSERT_LE(round, 4);
      const NodePlan plan = PlanFrontNodes(version_, options_, now_);
      if (plan.steps.empty()) {
        ASSERT_GT(plan.next_time, now_);
        next_time_ = plan.next_time;
        ASSERT_LE(version_.waiting.size(), options_.max_waiting);
        CheckRest();
        return;
      }
      Apply(plan);
    }
  }

  // Of a plan that asks for nothing.
  void CheckRest() {
    const auto alive =
        std::count_if(version_.nodes.begin(), version_.nodes.end(), [](const PlannedNode& node) {
          return node.state == State::kStarting || node.state == State::kReady;
        });
    const bool has_room =
        static_cast<int>(version_.nodes.size()) < version_.max_nodes && version_.failures == 0;
    if (version_.wanted && has_room) {
      EXPECT_GE(alive, version_.min_nodes);
      if (!version_.waiting.empty()) {
        EXPECT_GE(alive, 1);
      }
    }
    // Somebody moves: a request never waits for nothing.
    if (!version_.waiting.empty()) {
      EXPECT_LT(next_time_, absl::InfiniteFuture());
    }
  }

  void Apply(const NodePlan& plan) {
    std::vector<bool> gone(version_.waiting.size());
    for (const NodeStep& step : plan.steps) {
      switch (step.action) {
        case NodeAction::kSend: {
          PlannedNode& node = version_.nodes[step.node];
          ASSERT_EQ(FrontNodeStateName(node.state), "ready");
          ASSERT_FALSE(gone[step.request]);
          ASSERT_GT(version_.waiting[step.request].deadline, now_);
          gone[step.request] = true;
          ASSERT_LE(++node.running, version_.target * kMostPerTarget);
          runs_.push_back({nodes_[step.node].id, now_ + absl::Milliseconds(Below(4000))});
          ++num_sent_;
          break;
        }
        case NodeAction::kTooLate:
          ASSERT_LE(version_.waiting[step.request].deadline, now_);
          [[fallthrough]];
        case NodeAction::kTooMany:
        case NodeAction::kNoNode:
        case NodeAction::kNoVersion:
          ASSERT_FALSE(gone[step.request]);
          ASSERT_EQ(step.action == NodeAction::kNoVersion, !version_.wanted);
          if (step.action == NodeAction::kNoNode) {
            ASSERT_GE(version_.failures, options_.failures_that_refuse);
          }
          gone[step.request] = true;
          ++num_refused_;
          break;
        case NodeAction::kStart: {
          ASSERT_TRUE(version_.wanted);
          ASSERT_GE(now_, NextStartTime(version_.failures, version_.failed_at, options_));
          version_.nodes.push_back({.since = now_});
          ASSERT_LE(static_cast<int>(version_.nodes.size()), version_.max_nodes);
          const int fate = healthy_ ? 0 : Below(10);
          World world = {.id = next_id_++};
          if (fate < 7) world.ready = now_ + absl::Milliseconds(Below(4000));
          if (fate == 7) world.ends = now_ + absl::Milliseconds(Below(4000));
          nodes_.push_back(world);
          break;
        }
        case NodeAction::kDrain:
          SetState(step.node, State::kReady, State::kDraining);
          break;
        case NodeAction::kStop: {
          const PlannedNode& node = version_.nodes[step.node];
          ASSERT_TRUE(node.running == 0 ||
                      (node.state == State::kDraining && now_ >= node.since + options_.drain_time));
          SetState(step.node, node.state, State::kStopping);
          nodes_[step.node].asked = true;
          if (Below(5) > 0) nodes_[step.node].ends = now_ + absl::Milliseconds(Below(3000));
          break;
        }
        case NodeAction::kKill:
          ASSERT_FALSE(version_.nodes[step.node].killed);
          version_.nodes[step.node].killed = true;
          nodes_[step.node].ends = now_ + absl::Milliseconds(Below(50));
          break;
      }
    }
    std::vector<PlannedRequest> left;
    for (size_t i = 0; i < gone.size(); ++i) {
      if (!gone[i]) left.push_back(version_.waiting[i]);
    }
    version_.waiting = left;
  }

  void SetState(size_t node, State from, State to) {
    ASSERT_EQ(FrontNodeStateName(version_.nodes[node].state), FrontNodeStateName(from));
    version_.nodes[node].state = to;
    version_.nodes[node].since = now_;
  }

  // Time passes in steps of what happens next.
  void Advance(absl::Duration duration) {
    const absl::Time end = now_ + duration;
    while (!::testing::Test::HasFailure()) {
      absl::Time next = std::min(end, next_time_);
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (version_.nodes[i].state == State::kStarting && !version_.nodes[i].killed) {
          next = std::min(next, nodes_[i].ready);
        }
        next = std::min(next, nodes_[i].ends);
      }
      for (const Running& run : runs_) next = std::min(next, run.ends);
      now_ = std::max(now_, next);
      Happen();
      if (now_ >= end) return;
      Settle();
    }
  }

  void Happen() {
    for (size_t i = nodes_.size(); i-- > 0;) {
      PlannedNode& node = version_.nodes[i];
      if (nodes_[i].ends <= now_) {
        End(i);
      } else if (node.state == State::kStarting && nodes_[i].ready <= now_ && !node.killed) {
        node.state = State::kReady;
        node.since = node.idle_since = now_;
        nodes_[i].was_ready = true;
      }
    }
    for (size_t i = runs_.size(); i-- > 0;) {
      if (runs_[i].ends > now_) continue;
      for (size_t n = 0; n < nodes_.size(); ++n) {
        if (nodes_[n].id != runs_[i].node) continue;
        if (--version_.nodes[n].running == 0) version_.nodes[n].idle_since = now_;
      }
      runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  void End(size_t i) {
    if (!nodes_[i].asked) {
      ++version_.failures;
      version_.failed_at = now_;
    } else if (nodes_[i].was_ready) {
      version_.failures = 0;
    }
    const int id = nodes_[i].id;
    runs_.erase(std::remove_if(runs_.begin(), runs_.end(),
                               [id](const Running& run) { return run.node == id; }),
                runs_.end());
    version_.nodes.erase(version_.nodes.begin() + static_cast<ptrdiff_t>(i));
    nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(i));
  }

  std::mt19937_64 random_;
  absl::Time now_ = At(0);
  absl::Time next_time_ = absl::InfiniteFuture();
  NodePlanOptions options_;
  PlannedNodes version_;
  std::vector<World> nodes_;
  std::vector<Running> runs_;
  int next_id_ = 0;
  int num_arrived_ = 0, num_sent_ = 0, num_refused_ = 0;
  bool healthy_ = false;
};

// covers: serving: the front's plan in random histories: never too many nodes, never too few where
//   they start, bounded waiting, every request ends, and all comes to rest
TEST(NodePlanTest, RandomHistoriesComeToRest) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    History(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace
