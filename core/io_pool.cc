// SPDX-License-Identifier: Apache-2.0
#include "core/io_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/background_thread.h"
#include "core/mutex.h"
#include "core/paced_thread.h"

namespace millrace {
namespace {

// Of each of both pools of threads in the background (core/background_thread.h). Loads that hang
// keep theirs: there must be some for the others.
constexpr int kBackgroundThreads = 32;

// "nice" of the calling thread, and of the first one.
int NiceOfThread() { return ::getpriority(PRIO_PROCESS, 0); }
int NiceOfProcess() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::getpid())); }

// `task` on a thread of low priority: that of the caller now, or a lower one.
absl::AnyInvocable<void()> AtPriorityOfCaller(absl::AnyInvocable<void()> task) {
  return [task = std::move(task), nice = NiceOfThread()]() mutable {
    // It runs in its caller where the system gives no thread.
    if (IsBackgroundThread() && NiceOfThread() < nice) (void)::setpriority(PRIO_PROCESS, 0, nice);
    task();
  };
}

}  // namespace

struct IoPool::State {
  Mutex mu;
  CondVar work_cv;
  const size_t max_threads;
  // What its threads are. Set before the first task.
  enum class Kind { kUsual, kPaced, kLow } kind = Kind::kUsual;
  std::deque<absl::AnyInvocable<void()>> tasks ABSL_GUARDED_BY(mu);
  size_t num_idle ABSL_GUARDED_BY(mu) = 0;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::vector<std::thread> threads ABSL_GUARDED_BY(mu);
  // Set when a task of this pool has destroyed it, by that task's thread once it is the only one.
  bool owned_by_thread = false;

  explicit State(size_t max) : max_threads(max) {}

  void Work() {
    mu.Lock();
    for (;;) {
      if (!tasks.empty()) {
        absl::AnyInvocable<void()> task = std::move(tasks.front());
        tasks.pop_front();
        mu.Unlock();
        task();
        task = nullptr;
        mu.Lock();
      } else if (stopping) {
        break;
      } else {
        ++num_idle;
        work_cv.Wait(&mu);
        --num_idle;
      }
    }
    mu.Unlock();
  }
};

IoPool::IoPool(int max_threads)
    : state_(std::make_unique<State>(static_cast<size_t>(std::max(max_threads, 0)))) {}

IoPool::~IoPool() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&state_->mu);
    state_->stopping = true;
    state_->work_cv.SignalAll();
    threads.swap(state_->threads);
  }
  // A task may drop the last owner of its pool. Its thread cannot join itself: it empties the queue
  // here, is let go after the others have ended, and deletes the state when the task has returned.
  std::thread own;
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) own.swap(thread);
  }
  if (own.joinable()) state_->Work();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  if (!own.joinable()) return;
  own.detach();
  state_->owned_by_thread = true;
  static_cast<void>(state_.release());
}

void IoPool::Schedule(absl::AnyInvocable<void()> task) {
  State* const state = state_.get();
  if (state->max_threads == 0) return task();
  if (state->kind == State::Kind::kLow) task = AtPriorityOfCaller(std::move(task));
  {
    MutexLock lock(&state->mu);
    state->tasks.push_back(std::move(task));
    // While stopping, the thread that runs the calling task empties the queue.
    const bool start_thread = state->tasks.size() > state->num_idle && !state->stopping &&
                              state->threads.size() < state->max_threads;
    if (!start_thread) {
      state->work_cv.Signal();
      return;
    }
    try {
      state->threads.emplace_back([state] {
        if (state->kind == State::Kind::kPaced) BecomePacedThread();
        if (state->kind == State::Kind::kLow) BecomeBackgroundThread();
        state->Work();
        if (state->owned_by_thread) delete state;
      });
      return;
    } catch (const std::system_error&) {
      if (!state->threads.empty()) return;  // the others will come to it
    }
    task = std::move(state->tasks.back());
    state->tasks.pop_back();
  }
  task();
}

IoPool* IoPool::Default() {
  static IoPool* const pool = new IoPool(16);
  const auto of_kind = [](State::Kind kind) {
    auto* const own = new IoPool(kBackgroundThreads);
    own->state_->kind = kind;
    return own;
  };
  static IoPool* const paced = of_kind(State::Kind::kPaced);
  static IoPool* const low = of_kind(State::Kind::kLow);
  if (!IsBackgroundThread()) return pool;
  // A thread that had a task of low priority keeps that: it is of no use to others.
  return NiceOfThread() > NiceOfProcess() ? low : paced;
}

IoPool* IoPool::InCaller() {
  static IoPool* const pool = new IoPool(0);
  return pool;
}

}  // namespace millrace
