// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_LOCK_SET_H_
#define MILLRACE_RUNTIME_VARIABLE_LOCK_SET_H_

// VariableStorage::LockSet: the locks of several variables, held together. Inside of
// VariableStorage.
//
// Always in address order (Sort), so that no two sets wait for each other.
//
// Threads: a set belongs to the thread that made it. Lifetime: the variables outlive it.
// Failure: a variable that is named twice is Sort's InvalidArgument; locking does not fail.

#include <algorithm>
#include <cstddef>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/variable_storage.h"

namespace millrace {

class ABSL_SCOPED_LOCKABLE VariableStorage::LockSet {
 public:
  LockSet(absl::Span<VariableStorage* const> by_address,
          bool exclusive) ABSL_NO_THREAD_SAFETY_ANALYSIS : by_address_(by_address),
                                                           exclusive_(exclusive) {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Lock() : v->mu_.ReaderLock();
  }
  // Exclusively where all are free at this moment, shared otherwise.
  explicit LockSet(absl::Span<VariableStorage* const> by_address) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : by_address_(by_address),
        exclusive_(TryLock()) {
    if (exclusive_) return;
    for (VariableStorage* v : by_address_) v->mu_.ReaderLock();
  }
  ~LockSet() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Unlock() : v->mu_.ReaderUnlock();
  }
  LockSet(const LockSet&) = delete;
  LockSet& operator=(const LockSet&) = delete;

  bool is_exclusive() const { return exclusive_; }

  using Sorted = absl::InlinedVector<VariableStorage*, 4>;
  // InvalidArgument when one comes twice.
  static StatusOr<Sorted> Sort(absl::Span<VariableStorage* const> variables) {
    Sorted sorted(variables.begin(), variables.end());
    std::sort(sorted.begin(), sorted.end(), std::less<VariableStorage*>());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return InvalidArgument("An update must name each variable once, got '", (*twice)->name(),
                             "' twice");
    }
    return sorted;
  }

 private:
  bool TryLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (size_t k = 0; k < by_address_.size(); ++k) {
      if (by_address_[k]->mu_.TryLock()) continue;
      while (k > 0) by_address_[--k]->mu_.Unlock();
      return false;
    }
    return true;
  }

  const absl::Span<VariableStorage* const> by_address_;
  const bool exclusive_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_LOCK_SET_H_
