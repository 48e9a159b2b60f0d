// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_FAIL_POINT_H_
#define MILLRACE_CORE_FAIL_POINT_H_

// Fail points: named places where a test can make the program fail, wait or die.
//
//   MR_RETURN_IF_ERROR(FailPoint("saver/after_data_rename"));
//
// They are switched on by MILLRACE_FAIL_POINTS (read at the first fail point) or SetFailPoints:
//
//   saver/after_data_rename=crash|worker/run_graph=error:unavailable,after=2,times=1
//
//   crash          the process is killed as by `kill -9`
//   error:<code>   the fail point returns this Status (a name in lower case or a number)
//   sleep_ms:<n>   the caller sleeps so long
//   ,after=<n>     the first n passes are spared
//   ,times=<n>     only n passes are hit, then never again
//
// While none is set, a pass costs one relaxed load. A malformed MILLRACE_FAIL_POINTS is returned
// by every fail point: a test that meant to break something must not pass by a typing error.
//
// Thread-safety: everything, from any thread.

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/base/optimization.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

namespace fail_point_internal {
// 0: none is set. Relaxed: what is set is read under a mutex.
extern std::atomic<int> state;
Status Pass(const char* name);
}  // namespace fail_point_internal

inline Status FailPoint(const char* name) {
  if (ABSL_PREDICT_TRUE(fail_point_internal::state.load(std::memory_order_relaxed) == 0)) {
    return absl::OkStatus();
  }
  return fail_point_internal::Pass(name);
}

// Replaces all that is set (also what the environment says) by `spec`; "" clears.
// InvalidArgument, and nothing changes, when the text is malformed.
Status SetFailPoints(absl::string_view spec);

// How often the fail point `name` was passed, hit or spared, since it was set. 0 when it is not.
int64_t FailPointPasses(absl::string_view name);

// For tests that visit every fail point: `hook` is called at each pass, with its name, and decides
// unless it returns OK. An empty one clears.
void SetFailPointHook(std::function<Status(absl::string_view name)> hook);

// Sets fail points, clears all at the end of the scope.
class ScopedFailPoints {
 public:
  explicit ScopedFailPoints(absl::string_view spec) : status_(SetFailPoints(spec)) {}
  ~ScopedFailPoints() { SetFailPoints("").IgnoreError(); }
  ScopedFailPoints(const ScopedFailPoints&) = delete;
  ScopedFailPoints& operator=(const ScopedFailPoints&) = delete;
  const Status& status() const { return status_; }

 private:
  const Status status_;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_FAIL_POINT_H_
