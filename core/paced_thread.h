// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PACED_THREAD_H_
#define MILLRACE_CORE_PACED_THREAD_H_

// Paced threads: background threads (core/background_thread.h) of the usual priority that take at
// most a share of one core, all together, while something serves in this process.
//
// A thread of low priority is no friend of others: when it loses its core while it holds a lock of
// the kernel's (that of the memory map, at the first touch of new pages), all wait until it comes
// to run again. One that sleeps between small pieces of work holds nothing meanwhile.
//
//   BecomePacedThread();
//   for (each piece of at most 1 MiB) {
//     ...;
//     PacePoint();
//   }
//
// What is one long call has no such points: AtLowPriority runs it as well as it can be.
//
// Thread-safety: from any thread. A pace point may sleep: never under a lock that requests take.
// Failure: none.

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

// What the threads of a pace have used, and until when they must sleep for it.
//
//   due = max(due, begin of the piece) + processor time of the piece / share
//
// and never further away than what one longest piece owes, however many threads there are.
// So a piece that waited for a disk owes less, and time in which nobody worked is not saved up.
class LoadPace {
 public:
  class TimeSource {
   public:
    virtual ~TimeSource() = default;
    virtual absl::Duration Now() = 0;  // since any time; never goes back
    virtual absl::Duration Cpu() = 0;  // that the calling thread has used
    virtual void Sleep(absl::Duration duration) = 0;
    static TimeSource* Real();
  };
  // A longer piece owes as much as one of this: it has done its harm, and sleep heals none of it.
  static constexpr absl::Duration kLongestPiece = absl::Milliseconds(20);
  // Less is owed until it is more.
  static constexpr absl::Duration kShortestSleep = absl::Milliseconds(1);
  // After which the cancellation is looked at, and whether there still is a pace.
  static constexpr absl::Duration kLongestSleep = absl::Milliseconds(50);

  // Where a thread's piece began.
  struct Mark {
    bool is_set = false;
    absl::Duration wall, cpu;
  };

  explicit LoadPace(TimeSource* clock) : clock_(clock) {}
  // That of paced threads. Never destroyed.
  static LoadPace* OfProcess();

  // Of one core, above 0; 1: no pace, as at first. A larger one than before forgives what is owed.
  void SetShare(double share);
  // So many more serve from now on; without any there is no pace.
  void AddServing(int n) { serving_.fetch_add(n, std::memory_order_relaxed); }
  bool is_on() const {
    return serving_.load(std::memory_order_relaxed) > 0 &&
           share_.load(std::memory_order_relaxed) < 1;
  }

  // The end of a piece of the calling thread, and the begin of its next one: sleeps for what is
  // owed. Not once `cancellation`, which may be null, is cancelled.
  void Point(Mark* mark, const CancellationManager* cancellation);

 private:
  TimeSource* const clock_;
  // Both relaxed: a thread that sees them late sleeps once more or once less.
  std::atomic<double> share_{1};
  std::atomic<int> serving_{0};
  Mutex mu_;
  absl::Duration due_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
};

// The calling thread is one from now on, and a background thread.
void BecomePacedThread();
bool IsPacedThread();
// After each small piece of work. Of another thread: one read of a thread-local variable.
void PacePoint();
// Calls by paced threads of this process so far.
int64_t NumPacePointsForTesting();

// What the calling thread's sleeps end with; may be null. For work that it gives to other threads.
const CancellationManager* CancellationOfPace();

// While it lives, the calling thread does not sleep once `cancellation` is cancelled.
class PaceUntilCancelled {
 public:
  explicit PaceUntilCancelled(const CancellationManager* cancellation);
  ~PaceUntilCancelled();
  PaceUntilCancelled(const PaceUntilCancelled&) = delete;
  PaceUntilCancelled& operator=(const PaceUntilCancelled&) = delete;

 private:
  const CancellationManager* const before_;
};

// work(), and what it returns or throws. From a paced thread, while there is a pace, it runs on a
// background thread of its own with a low priority, which is not paced; else in the caller.
Status AtLowPriority(absl::FunctionRef<Status()> work);

}  // namespace millrace

#endif  // MILLRACE_CORE_PACED_THREAD_H_
