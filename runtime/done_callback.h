// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_DONE_CALLBACK_H_
#define MILLRACE_RUNTIME_DONE_CALLBACK_H_

// DoneCallback: how an asynchronous kernel says that it has ended: once.
//
//   waiting -> called              by operator(), which passes the status on
//           -> called (Internal)   by the destructor: a kernel that drops it must not hang its step
//   called  -> called              a second call changes nothing but is logged
//
// Thread-safety: calls race safely (the first counts); moving and destroying do not.

#include <atomic>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "core/status.h"

namespace millrace {

class DoneCallback {
 public:
  DoneCallback() = default;  // "called"
  // From anything that takes a Status.
  template <typename F,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, DoneCallback> &&
                                        std::is_invocable_v<std::decay_t<F>&, Status>>>
  DoneCallback(F&& call)  // NOLINT: lambdas are passed as they are
      : call_(std::forward<F>(call)), waiting_(true) {}
  DoneCallback(DoneCallback&& other) noexcept
      : call_(std::move(other.call_)),
        waiting_(other.waiting_.exchange(false, std::memory_order_relaxed)) {}
  DoneCallback& operator=(DoneCallback&& other) noexcept {
    if (this != &other) {
      Drop();
      call_ = std::move(other.call_);
      waiting_.store(other.waiting_.exchange(false, std::memory_order_relaxed),
                     std::memory_order_relaxed);
    }
    return *this;
  }
  ~DoneCallback() { Drop(); }

  void operator()(Status status) {
    if (waiting_.exchange(false, std::memory_order_acq_rel)) {
      call_(std::move(status));
    } else {
      LogSecondCall(status);
    }
  }
  // Not called yet.
  explicit operator bool() const { return waiting_.load(std::memory_order_acquire); }

  // Is this what the destructor passes on?
  static bool WasDropped(const Status& status);

 private:
  void Drop() {
    if (waiting_.load(std::memory_order_relaxed)) CallDropped();
  }
  void CallDropped();
  static void LogSecondCall(const Status& status);

  absl::AnyInvocable<void(Status)> call_;
  // acq_rel: of several callers one runs call_, after it was put there.
  std::atomic<bool> waiting_{false};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_DONE_CALLBACK_H_
