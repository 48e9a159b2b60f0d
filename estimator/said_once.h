// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_SAID_ONCE_H_
#define MILLRACE_ESTIMATOR_SAID_ONCE_H_

// SaidOnce: which texts were said, for lines of a log that each export would repeat.
//
// It keeps each text: they must not count or time anything.
//
// Thread-safety: all methods, from any thread. Failure: none.

#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"

namespace millrace {

class SaidOnce {
 public:
  // Whether this is the first call with `text`.
  bool IsNew(const std::string& text) {
    MutexLock lock(&mu_);
    return said_.insert(text).second;
  }

 private:
  Mutex mu_;
  std::set<std::string> said_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_SAID_ONCE_H_
