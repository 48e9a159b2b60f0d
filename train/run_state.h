// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_RUN_STATE_H_
#define MILLRACE_TRAIN_RUN_STATE_H_

// RunState: what RunContext reads and writes: the run under way, and what hooks have asked for so
// far. For the code that calls hooks (train/hooked_session.h); hooks themselves see a RunContext.
//
// Plain data.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "train/session_run_hook.h"

namespace tensorflow {
class RunOptions;
}  // namespace tensorflow

namespace millrace {

struct RunState {
  RunState();
  ~RunState();

  Session* session = nullptr;
  Clock* clock = nullptr;
  std::optional<absl::Time> now = {};  // asked for since the last call of BeforeRun or AfterRun
  int64_t run_number = 0;

  bool stop_requested = false;
  bool is_goal = false;  // stop_requested by RequestStop, the first of both
  bool nothing_to_save = false;
  std::string reason = "";  // of RequestStop
  Status leave_with = {};   // of RequestLeave

  // By hook, then by group.
  std::vector<std::vector<GroupRange>> feed_ranges = {};
  std::vector<Tensor> feeds = {};  // of all hooks; no value unless given for this run
  std::unique_ptr<tensorflow::RunOptions> options;  // what this run is asked for; may be none
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_RUN_STATE_H_
