// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_KERNEL_GATE_H_
#define MILLRACE_RUNTIME_TESTING_KERNEL_GATE_H_

// Gate: where asynchronous kernels wait until a test lets them finish, or drops their callbacks.
//
// Thread-safety: all methods, from any thread; callbacks are called and destroyed without the lock.

#include <cstddef>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/kernel.h"

namespace millrace::testing {

class Gate {
 public:
  // For the kernel: sets its outputs to 1 and keeps `done`.
  void Wait(KernelContext* ctx, AsyncKernel::DoneCallback done) {
    MutexLock lock(&mu_);
    for (int i = 0; i < ctx->num_outputs(); ++i) ctx->set_output(i, Tensor::Scalar<float>(1));
    waiting_.push_back(std::move(done));
    changed_.SignalAll();
  }
  // Until `n` kernels wait.
  void AwaitWaiters(size_t n) {
    MutexLock lock(&mu_);
    while (waiting_.size() < n) changed_.Wait(&mu_);
  }
  // Calls the callbacks of all waiting kernels, in the calling thread; returns how many.
  size_t Open(const Status& status = absl::OkStatus()) {
    std::vector<AsyncKernel::DoneCallback> going;
    {
      MutexLock lock(&mu_);
      going.swap(waiting_);
    }
    for (AsyncKernel::DoneCallback& done : going) done(status);
    return going.size();
  }
  // Destroys the callbacks of all waiting kernels without calling them.
  void Drop() {
    std::vector<AsyncKernel::DoneCallback> dropped;
    MutexLock lock(&mu_);
    dropped.swap(waiting_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<AsyncKernel::DoneCallback> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace::testing

#endif  // MILLRACE_RUNTIME_TESTING_KERNEL_GATE_H_
