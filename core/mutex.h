// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_MUTEX_H_
#define MILLRACE_CORE_MUTEX_H_

// Mutex, SharedMutex, CondVar: the locks of this project. Annotated for clang's thread safety
// analysis.
//
// Mutex is three states of one word and the kernel's futex, by std::atomic's wait and notify (the
// second mutex of Ulrich Drepper's "Futexes are tricky"): 10 ns for a lock that nobody else wants
// (core/mutex_benchmark), and ThreadSanitizer sees it as it is. It is not fair and not recursive.
// CondVar waits on Abseil's condition variable: glibc 2.36's may lose a signal (its bug 25847).
// SharedMutex is Abseil's; the standard library's under ThreadSanitizer, because Debian's Abseil is
// not instrumented and every lock in it would look like a race.
//
// Debian's Abseil is built with its deadlock detector, which takes a global lock around every lock
// (50 to 150 ns) and ends programs that take two locks in both orders although they never wait
// for each other. Including this header switches it off before main.
//
// CondVar waits may return without a signal: always wait in a loop on the condition.

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#include <shared_mutex>
#endif

namespace millrace {

// How many locks of these kinds this thread has taken so far. For tests that count.
inline constinit thread_local int64_t mutex_lock_count = 0;
inline int64_t MutexLockCountForTesting() { return mutex_lock_count; }

namespace mutex_internal {
inline bool SwitchOffDeadlockDetector() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}
inline const bool deadlock_detector_is_off = SwitchOffDeadlockDetector();
}  // namespace mutex_internal

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++mutex_lock_count;
    Acquire();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { Release(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }

 private:
  friend class CondVar;  // lets go of it and takes it again

  //   free -> taken -> free                           nobody waits
  //   free or taken -> awaited -> free, one is woken  somebody may wait
  static constexpr uint32_t kFree = 0, kTaken = 1, kAwaited = 2;
  static constexpr int kSpins = 64;  // about as long as a short critical section

  void Acquire() {
    uint32_t expected = kFree;
    if (state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      return;
    }
    for (int i = 0; i < kSpins; ++i) {
      expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_weak(expected, kTaken, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return;
      }
      __builtin_ia32_pause();
    }
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      state_.wait(kAwaited, std::memory_order_relaxed);
    }
  }
  void Release() {
    // After the exchange the mutex may be gone: notify_one uses its address only.
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) state_.notify_one();
  }

  std::atomic<uint32_t> state_{kFree};  // acquire when taken, release when freed
};

class CondVar {
 public:
  void Wait(Mutex* mu) { WaitWithTimeout(mu, absl::InfiniteDuration()); }
  // True when the time is over.
  bool WaitWithTimeout(Mutex* mu, absl::Duration timeout) {
    // Who signals takes inner_ too: not before this thread waits there.
    inner_.Lock();
    mu->Release();
    const bool timed_out = signalled_.WaitWithTimeout(&inner_, timeout);
    inner_.Unlock();
    mu->Acquire();
    return timed_out;
  }
  void Signal() {
    absl::MutexLock lock(&inner_);
    signalled_.Signal();
  }
  void SignalAll() {
    absl::MutexLock lock(&inner_);
    signalled_.SignalAll();
  }

 private:
  absl::Mutex inner_;
  absl::CondVar signalled_;
};

#if defined(__SANITIZE_THREAD__)
class ABSL_LOCKABLE SharedMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.lock_shared();
  }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock_shared(); }

 private:
  std::shared_mutex mu_;
};
#else
class ABSL_LOCKABLE SharedMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.Lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.TryLock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.ReaderLock();
  }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mu_.ReaderUnlock(); }

 private:
  absl::Mutex mu_;
};
#endif

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(SharedMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex* const mu_;
};

class ABSL_SCOPED_LOCKABLE ReaderLock {
 public:
  explicit ReaderLock(SharedMutex* mu) ABSL_SHARED_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->ReaderLock();
  }
  ~ReaderLock() ABSL_UNLOCK_FUNCTION() { mu_->ReaderUnlock(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex* const mu_;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_MUTEX_H_
