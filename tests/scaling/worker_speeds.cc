// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/worker_speeds.h"

#include <cmath>

#include "tests/scaling/seeded_random.h"

namespace millrace::scaling {
namespace {

constexpr uint64_t kStepTimes = 3;

}  // namespace

StatusOr<WorkerSpeeds> WorkerSpeeds::Make(int64_t workers, const WorkerSpeedOptions& options,
                                          uint64_t seed) {
  if (workers < 1) return InvalidArgument("WorkerSpeeds: workers must be >= 1, got ", workers);
  if (!(options.sigma >= 0 && options.sigma <= 3)) {
    return InvalidArgument("WorkerSpeeds: sigma must be in [0, 3], got ", options.sigma);
  }
  if (!(options.slow_share >= 0 && options.slow_share <= 1)) {
    return InvalidArgument("WorkerSpeeds: slow_share must be in [0, 1], got ", options.slow_share);
  }
  if (!(options.slow_factor > 0 && options.slow_factor <= 1000)) {
    return InvalidArgument("WorkerSpeeds: slow_factor must be in (0, 1000], got ",
                           options.slow_factor);
  }
  WorkerSpeeds speeds;
  speeds.sigma_ = options.sigma;
  const auto slow =
      static_cast<int64_t>(std::floor(options.slow_share * static_cast<double>(workers)));
  for (int64_t worker = 0; worker < workers; ++worker) {
    speeds.factors_.push_back(worker >= workers - slow ? options.slow_factor : 1);
    speeds.random_.push_back(RandomOf(seed, kStepTimes, static_cast<uint64_t>(worker)));
  }
  return speeds;
}

double WorkerSpeeds::NextStep(size_t worker) {
  const double z = Normal(&random_[worker]);
  return factors_[worker] * std::exp(sigma_ * z - sigma_ * sigma_ / 2);
}

}  // namespace millrace::scaling
