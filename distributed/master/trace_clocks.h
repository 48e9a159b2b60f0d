// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_TRACE_CLOCKS_H_
#define MILLRACE_DISTRIBUTED_MASTER_TRACE_CLOCKS_H_

// TraceClocks: puts the traces of several tasks, each by its own clock, into the master's time.
//
// Each message from a task to another bounds how far their clocks differ: it arrived after it left.
// A RUN and its END bound the clock of a task on both sides, and their middle is NTP's estimate,
// (begun - asked + ended - answered) / 2. A tensor that crosses tasks is a message, too, and bounds
// more closely than a RUN when it travels faster. All bounds hold together for the true clocks; the
// estimate is the middle of what they leave of each clock, which breaks none of them: in the trace,
// no tensor arrives before it left. What earlier traced steps of the session have left counts, too,
// widened by what clocks may drift apart since.
//
// When bounds contradict each other a clock was set. Then earlier steps are forgotten; if that is
// not enough, only the RUNs of this step count.
//
// Thread-safety: Align from any thread.
// Failure: none. A task that has told no times keeps its own, and the trace says so.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "core/mutex.h"
#include "distributed/transport/run_times.h"
#include "proto/step_stats.pb.h"

namespace millrace {

// The part of a traced step on one task.
struct TracedPart {
  std::string task;  // "/job:ps/replica:0/task:0"
  // It runs in the master's process, by the same clock.
  bool is_local = false;
  std::optional<ClockExchange> exchange;
};

class TraceClocks {
 public:
  // How fast the clocks of two machines may drift apart: NTP slews by this much at most.
  static constexpr int64_t kDriftPerMillion = 500;

  // Takes off all times of `stats`, which has each device once, what its task's clock is ahead of
  // the master's, and adds to each device of a task that is not local the line that says so
  // (ClockStats). `now_ns`: by the master's clock.
  void Align(absl::Span<const TracedPart> parts, int64_t now_ns, tensorflow::StepStats* stats);

 private:
  // How far a clock is ahead of the master's, at least and at most.
  struct Range {
    int64_t low = 0;
    int64_t high = 0;
    int64_t at_ns = 0;
  };
  Mutex mu_;
  std::map<std::string, Range> known_ ABSL_GUARDED_BY(mu_);  // by task
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_TRACE_CLOCKS_H_
