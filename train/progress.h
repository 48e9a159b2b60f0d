// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_PROGRESS_H_
#define MILLRACE_TRAIN_PROGRESS_H_

// Progress: tells a person how far a job is.
//
// On a terminal one line that is rewritten in place; elsewhere (a pipe, a log file)
// one plain line at a time, less often. Either way: step of last step, loss, steps per
// second, time left; how stale the gradients are where other tasks train, too.
//
// Thread-safety: thread-compatible.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/clock.h"

namespace millrace {

struct ProgressOptions {
  int64_t last_step = 0;  // 0: not known
  // Whether lines are rewritten. kAuto: as the environment variable MILLRACE_PROGRESS says ("live"
  // or "plain"; a launcher that reads the lines sets it), else by isatty(output).
  enum class Style { kAuto, kTerminal, kPlain } style = Style::kAuto;
  absl::Duration terminal_period = absl::Milliseconds(200);
  absl::Duration plain_period = absl::Seconds(2);
  Clock* clock = Clock::Real();
  FILE* output = stdout;
};

// Of seconds that somebody waits: "0:58", "1:02:03".
std::string ClockText(double seconds);

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // ends the line

  // Shows the state when it is time to. The rate counts from the first call.
  // `staleness`: updates of other tasks between a step's read and its own update; shown from 1 on.
  void Update(int64_t step, std::optional<double> loss, double staleness = 0);
  // Ends a rewritten line so that other output begins on a line of its own.
  void EndLine();

  // "step 120/1000  loss 3.21  staleness 12  15.2 steps/s  0:58 left": what Update writes, without
  // what is not known.
  static std::string Format(int64_t step, int64_t last_step, std::optional<double> loss,
                            double steps_per_second, double staleness = 0);

 private:
  ProgressOptions options_;
  bool terminal_;
  bool line_open_ = false;
  size_t width_ = 0;
  bool started_ = false;
  int64_t first_step_ = 0;
  absl::Time first_time_, next_time_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_PROGRESS_H_
