// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/trace_clocks.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/status.h"
#include "graph/device_name.h"
#include "runtime/transfer_trace.h"

namespace millrace {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
// Two of them can be added. Clocks that are further apart are not compared.
constexpr int64_t kFar = kNone / 2;
constexpr int kMaster = 0;

// Clocks by number, the master's first, and bounds on how far they are apart.
class Bounds {
 public:
  explicit Bounds(int num_clocks) : num_clocks_(num_clocks) {}

  // Clock `to` is ahead of `from` by `at_most`.
  void Add(int from, int to, int64_t at_most) {
    at_most = std::clamp(at_most, -kFar, kFar);
    const auto [it, is_new] = bounds_.try_emplace(std::pair(from, to), at_most);
    if (!is_new) it->second = std::min(it->second, at_most);
  }
  // By clock, how far it is ahead of the master's at most, or kNone; with `reverse` how far it is
  // behind it at most. Nothing when the bounds contradict each other.
  std::optional<std::vector<int64_t>> Tightest(bool reverse) const {
    std::vector<int64_t> at_most(static_cast<size_t>(num_clocks_), kNone);
    at_most[kMaster] = 0;
    for (int round = 0; round < num_clocks_; ++round) {
      bool changed = false;
      for (const auto& [ends, bound] : bounds_) {
        const auto from = static_cast<size_t>(reverse ? ends.second : ends.first);
        const auto to = static_cast<size_t>(reverse ? ends.first : ends.second);
        if (at_most[from] == kNone || at_most[from] + bound >= at_most[to]) continue;
        at_most[to] = at_most[from] + bound;
        if (at_most[to] > kFar || at_most[to] < -kFar) return std::nullopt;
        changed = true;
      }
      if (!changed) return at_most;
    }
    return std::nullopt;
  }

 private:
  const int num_clocks_;
  std::map<std::pair<int, int>, int64_t> bounds_;
};

// When a tensor left and arrived, by the clocks of two tasks; 0: not told.
struct Crossing {
  int from = -1;
  int to = -1;
  int64_t left_ns = 0;
  int64_t arrived_ns = 0;
};

int64_t EndOf(const tensorflow::NodeExecStats& line) {
  const int64_t start = line.all_start_nanos();
  const int64_t length = line.all_end_rel_nanos();
  return IsTraceTime(start) && length >= 0 && length < kNone / 4 ? start + length : 0;
}

// Times of other tasks may be anything, and wrap around then.
int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

void TakeOff(int64_t ahead_ns, tensorflow::NodeExecStats* line) {
  if (const auto side = TransferSideOf(*line); side && EndOf(*line) != 0) {
    *line = TransferStats(*side, line->timeline_label(), TransferBytes(*line),
                          line->all_start_nanos() - ahead_ns, EndOf(*line) - ahead_ns);
    return;
  }
  // A worker that is not ours may know microseconds only.
  const auto shift = [ahead_ns](int64_t nanos, int64_t micros) {
    const int64_t shifted = nanos == 0 ? 0 : Minus(nanos, ahead_ns);
    return std::pair(shifted, nanos == 0 ? Minus(micros, ahead_ns / 1000) : shifted / 1000);
  };
  const auto start = shift(line->all_start_nanos(), line->all_start_micros());
  line->set_all_start_nanos(start.first);
  line->set_all_start_micros(start.second);
  if (line->scheduled_nanos() == 0 && line->scheduled_micros() == 0) return;
  const auto scheduled = shift(line->scheduled_nanos(), line->scheduled_micros());
  line->set_scheduled_nanos(scheduled.first);
  line->set_scheduled_micros(scheduled.second);
}

}  // namespace

void TraceClocks::Align(absl::Span<const TracedPart> parts, int64_t now_ns,
                        tensorflow::StepStats* stats) {
  // Clocks of other tasks are numbered from 1 on.
  std::map<std::string, int> clock_of;
  std::vector<const TracedPart*> others = {nullptr};
  for (const TracedPart& part : parts) {
    const bool is_new =
        clock_of.emplace(part.task, part.is_local ? kMaster : static_cast<int>(others.size()))
            .second;
    if (is_new && !part.is_local) others.push_back(&part);
  }
  const auto num_clocks = static_cast<int>(others.size());
  if (num_clocks == 1) return;

  std::vector<int> clocks;  // by device; -1: of no task of the step
  std::map<std::string, Crossing> crossings;
  for (const tensorflow::DeviceStepStats& device : stats->dev_stats()) {
    const StatusOr<std::string> task = TaskOfDevice(device.device());
    const auto found = task.ok() ? clock_of.find(*task) : clock_of.end();
    const int clock = found == clock_of.end() ? -1 : found->second;
    clocks.push_back(clock);
    if (clock < 0) continue;
    for (const tensorflow::NodeExecStats& line : device.node_stats()) {
      const auto side = TransferSideOf(line);
      if (!side) continue;
      Crossing& crossing = crossings[line.timeline_label()];
      const bool is_send = *side == TransferSide::kSender;
      (is_send ? crossing.from : crossing.to) = clock;
      (is_send ? crossing.left_ns : crossing.arrived_ns) = EndOf(line);
    }
  }

  MutexLock lock(&mu_);
  enum class Use { kAll, kThisStep, kRunsOnly };
  std::optional<std::vector<int64_t>> ahead, behind;  // at most
  for (const Use use : {Use::kAll, Use::kThisStep, Use::kRunsOnly}) {
    Bounds bounds(num_clocks);
    for (int clock = 1; clock < num_clocks; ++clock) {
      const TracedPart& part = *others[static_cast<size_t>(clock)];
      if (part.exchange) {
        bounds.Add(kMaster, clock, part.exchange->begun_ns - part.exchange->asked_ns);
        bounds.Add(clock, kMaster, part.exchange->answered_ns - part.exchange->ended_ns);
      }
      const auto known = known_.find(part.task);
      if (use == Use::kAll && known != known_.end()) {
        const int64_t age_ns = std::max(now_ns - known->second.at_ns, int64_t{0});
        const int64_t drift_ns = age_ns / 1'000'000 * kDriftPerMillion + kDriftPerMillion;
        bounds.Add(kMaster, clock, known->second.high + drift_ns);
        bounds.Add(clock, kMaster, drift_ns - known->second.low);
      }
    }
    if (use != Use::kRunsOnly) {
      for (const auto& [label, crossing] : crossings) {
        if (crossing.from < 0 || crossing.to < 0 || crossing.from == crossing.to ||
            crossing.left_ns == 0 || crossing.arrived_ns == 0) {
          continue;
        }
        bounds.Add(crossing.from, crossing.to, crossing.arrived_ns - crossing.left_ns);
      }
    }
    ahead = bounds.Tightest(/*reverse=*/false);
    behind = ahead ? bounds.Tightest(/*reverse=*/true) : std::nullopt;
    if (behind) break;
    known_.clear();
  }

  std::vector<std::optional<ClockOffset>> offsets(others.size());
  for (size_t clock = 1; clock < others.size() && ahead && behind; ++clock) {
    if ((*ahead)[clock] == kNone || (*behind)[clock] == kNone) continue;
    const Range range = {.low = -(*behind)[clock], .high = (*ahead)[clock], .at_ns = now_ns};
    const int64_t width = range.high - range.low;
    offsets[clock] = ClockOffset{.ahead_ns = range.low + width / 2, .bound_ns = width - width / 2};
    known_[others[clock]->task] = range;
  }
  for (int i = 0; i < stats->dev_stats_size(); ++i) {
    const int clock = clocks[static_cast<size_t>(i)];
    if (clock <= kMaster) continue;
    tensorflow::DeviceStepStats* const device = stats->mutable_dev_stats(i);
    const std::optional<ClockOffset>& offset = offsets[static_cast<size_t>(clock)];
    int64_t first_ns = kNone;
    for (tensorflow::NodeExecStats& line : *device->mutable_node_stats()) {
      if (offset) TakeOff(offset->ahead_ns, &line);
      first_ns = std::min(first_ns, line.all_start_nanos());
    }
    *device->add_node_stats() = ClockStats(others[static_cast<size_t>(clock)]->task, offset,
                                           first_ns == kNone ? now_ns : first_ns);
  }
}

}  // namespace millrace
