// SPDX-License-Identifier: Apache-2.0
#include "core/arena_threads.h"

#include <exception>
#include <memory>

#include "core/clock.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// Where the tasks meet. Those that come after the caller has left find it open.
struct Meeting {
  Mutex mu;
  CondVar changed;
  int missing ABSL_GUARDED_BY(mu) = 0;
  bool over ABSL_GUARDED_BY(mu) = false;
};

}  // namespace

void StartArenaThreads(Arena* arena, absl::Duration patience) {
  Clock* const clock = Clock::Real();
  const absl::Time deadline = clock->Now() + patience;
  const auto meeting = std::make_shared<Meeting>();
  const int num_threads = arena->num_threads();
  {
    MutexLock lock(&meeting->mu);
    meeting->missing = num_threads;
  }
  try {
    for (int i = 0; i < num_threads; ++i) {
      // A thread that waits takes no second task: each task needs one of its own.
      arena->Schedule([meeting] {
        MutexLock lock(&meeting->mu);
        if (--meeting->missing == 0) meeting->over = true;
        meeting->changed.SignalAll();
        while (!meeting->over) meeting->changed.Wait(&meeting->mu);
      });
    }
  } catch (const std::exception&) {
    // Threads or memory: those that came are enough.
    MutexLock lock(&meeting->mu);
    meeting->over = true;
    meeting->changed.SignalAll();
  }
  MutexLock lock(&meeting->mu);
  while (!meeting->over && clock->Now() < deadline) {
    clock->WaitUntil(&meeting->changed, &meeting->mu, deadline);
  }
  meeting->over = true;
  meeting->changed.SignalAll();
}

}  // namespace millrace
