// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_WORKER_SPEEDS_H_
#define MILLRACE_TESTS_SCALING_WORKER_SPEEDS_H_

// WorkerSpeeds: how long a worker's steps take, in virtual time.
//
// A step takes exp(sigma * z - sigma^2 / 2) with z normal: 1 in the mean, sometimes much longer.
// Some workers, the last ones, are slow: all of their steps take `slow_factor` times as long. The
// times of a worker do not depend on when others ask.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument for options out of range.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/status.h"

namespace millrace::scaling {

struct WorkerSpeedOptions {
  double sigma = 0.3;         // >= 0; 0: all steps take the same time
  double slow_share = 0.125;  // in [0, 1]: of the workers, rounded down
  double slow_factor = 2;     // > 0
};

class WorkerSpeeds {
 public:
  static StatusOr<WorkerSpeeds> Make(int64_t workers, const WorkerSpeedOptions& options,
                                     uint64_t seed);
  // Of the next step of the worker, which is below `workers`.
  double NextStep(size_t worker);

 private:
  double sigma_ = 0;
  std::vector<double> factors_;
  std::vector<std::mt19937_64> random_;
};

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_WORKER_SPEEDS_H_
