// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SIGNAL_WATCH_H_
#define MILLRACE_TRAIN_SIGNAL_WATCH_H_

// SignalWatch: calls a function once SIGTERM or SIGINT (Ctrl-C) asks this program to end, also
// while all its threads are busy with something else.
//
//   MR_ASSIGN_OR_RETURN(auto watch, SignalWatch::Start([&](int signal) { ...end the work... }));
//
// While one lives, the first signal is a request and the second one ends the process at once
// (core/termination.h). `on_signal` is called once at most, on a thread of the watch: it may lock
// and wait. The destructor waits until it has returned; the code that makes it wait must end that
// first.
//
// Thread-safety: made and destroyed on any thread.
// Failure of Start: ResourceExhausted without a thread or a descriptor left; signals do then what
// they did before.

#include <functional>
#include <memory>
#include <thread>

#include "core/status.h"
#include "core/termination.h"

namespace millrace {

class SignalWatch {
 public:
  static StatusOr<std::unique_ptr<SignalWatch>> Start(std::function<void(int signal)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // 0, SIGTERM or SIGINT; also before `on_signal` is called.
  int signal() const { return request_.signal(); }

 private:
  SignalWatch(std::function<void(int signal)> on_signal, int stop_fd)
      : on_signal_(std::move(on_signal)), stop_fd_(stop_fd) {}
  void Watch();

  const std::function<void(int signal)> on_signal_;
  const TerminationRequest request_;
  const int stop_fd_;  // readable, for good, once the watch is to end
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SIGNAL_WATCH_H_
