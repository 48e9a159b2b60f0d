// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_SYSTEM_STATE_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_SYSTEM_STATE_H_

// What tests ask of the system, which tells nobody when it changes.
//
// Threads: any. Failure: fails the test.

#include <dirent.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace millrace {

// Until `is_so`, for a minute at most.
inline void Await(absl::string_view what, absl::FunctionRef<bool()> is_so) {
  const absl::Time until = absl::Now() + absl::Minutes(1);
  while (!is_so()) {
    ASSERT_LT(absl::Now(), until) << what;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Open descriptors of this process, and a constant.
inline int NumFds() {
  DIR* const fds = ::opendir("/proc/self/fd");
  if (fds == nullptr) {
    ADD_FAILURE() << "/proc/self/fd must be readable";
    return -1;
  }
  int num = 0;
  while (::readdir(fds) != nullptr) ++num;
  ::closedir(fds);
  return num;
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_SYSTEM_STATE_H_
