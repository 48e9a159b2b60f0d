// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_EVERY_H_
#define MILLRACE_TRAIN_EVERY_H_

// Every: how often, in steps or in time, never both.
//
//   .save_every = 500                  each 500 steps
//   .save_every = absl::Minutes(10)    after each ten minutes
//   .save_every = 0                    never
//
// Plain data.

#include <cstdint>
#include <type_traits>

#include "absl/time/time.h"

namespace millrace {

class Every {
 public:
  Every() = default;
  template <typename T>
    requires std::is_integral_v<T>
  Every(T steps) : steps_(static_cast<int64_t>(steps)) {}  // NOLINT
  Every(absl::Duration time) : time_(time) {}              // NOLINT
  int64_t steps() const { return steps_; }
  absl::Duration time() const { return time_; }
  bool valid() const { return steps_ >= 0 && time_ >= absl::ZeroDuration(); }
  bool never() const { return steps_ <= 0 && time_ <= absl::ZeroDuration(); }

 private:
  int64_t steps_ = 0;
  absl::Duration time_ = absl::ZeroDuration();
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_EVERY_H_
