// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_CLUSTER_STEP_TIMES_H_
#define MILLRACE_TESTS_CLUSTER_STEP_TIMES_H_

// StepTimes: how long many steps took: their number by size, in bounded memory, and percentiles of
// them. One process can tell another one its own.
//
// Sizes are 2.2 % apart, from a nanosecond to two days: a percentile is wrong by 1.1 % at most.
//
// A value; thread-compatible. Failure: InvalidArgument for a line that is none.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

class StepTimes {
 public:
  void Add(absl::Duration time);
  void Add(const StepTimes& others);

  int64_t count() const { return count_; }
  // Of so many per cent of the steps none took longer: 50 is the median. Zero without steps.
  absl::Duration Percentile(double percent) const;

  // Each shorter than 1 KiB and one word, so that a pipe keeps it in one piece. AddLine of all
  // gives the same times again.
  std::vector<std::string> ToLines() const;
  Status AddLine(absl::string_view line);

 private:
  void AddAt(size_t size, int64_t count);

  std::vector<int64_t> counts_;  // by size; no longer than the largest one
  int64_t count_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLUSTER_STEP_TIMES_H_
