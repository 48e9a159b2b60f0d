// SPDX-License-Identifier: Apache-2.0
#include "saver/behind_training.h"

#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "core/dcheck.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// A weight of 335 where 1024 is normal.
constexpr int kNice = 5;

// Where the thread behind leaves steps for the one in front.
class Desk {
 public:
  // Behind: has `step` done.
  void Do(absl::FunctionRef<void()> step) {
    std::exception_ptr thrown;
    {
      MutexLock lock(&mu_);
      MR_DCHECK(step_ == nullptr && !closed_, "one thread works behind, one step after the other");
      step_ = &step;
      thrown_ = &thrown;
      changed_.SignalAll();
      while (step_ != nullptr) changed_.Wait(&mu_);
    }
    if (thrown) std::rethrow_exception(thrown);
  }
  // Behind: there are no more.
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.SignalAll();
  }
  // In front: until it is closed.
  void Serve() {
    MutexLock lock(&mu_);
    while (!closed_) {
      if (step_ == nullptr) {
        changed_.Wait(&mu_);
        continue;
      }
      // The thread behind waits meanwhile.
      absl::FunctionRef<void()>* const step = step_;
      std::exception_ptr thrown;
      mu_.Unlock();
      try {
        (*step)();
      } catch (...) {
        thrown = std::current_exception();
      }
      mu_.Lock();
      *thrown_ = std::move(thrown);
      step_ = nullptr;
      changed_.SignalAll();
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  absl::FunctionRef<void()>* step_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::exception_ptr* thrown_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Status RunBehindTraining(absl::FunctionRef<Status(InFront in_front)> work) {
  const auto guarded = [&](InFront in_front) -> Status {
    try {
      return work(in_front);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory");
    } catch (const std::exception& e) {
      return Internal("unexpected exception: ", e.what());
    }
  };
  Desk desk;
  Status status;
  try {
    std::thread behind([&] {
      // Fails where this is the lowest priority already.
      (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
      status = guarded([&](absl::FunctionRef<void()> step) { desk.Do(step); });
      desk.Close();
    });
    desk.Serve();
    behind.join();
  } catch (const std::system_error&) {
    return guarded([](absl::FunctionRef<void()> step) { step(); });
  }
  return status;
}

}  // namespace millrace
