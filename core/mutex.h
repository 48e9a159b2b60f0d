// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_MUTEX_H_
#define MILLRACE_CORE_MUTEX_H_

// Mutex, SharedMutex, CondVar: the locks of this project.
//
// absl's locks in ordinary builds; the standard library's under ThreadSanitizer,
// because Debian's libabsl_synchronization is not instrumented and every lock in
// it would look like a race. Annotated for clang's thread safety analysis.
//
// Debian's Abseil is built with its deadlock detector, which takes a global lock around every lock
// (50 to 150 ns) and ends programs that take two locks in both orders although they never wait
// for each other. Including this header switches it off before main.
//
// CondVar waits may return without a signal: always wait in a loop on the condition.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#else
#include "absl/synchronization/mutex.h"
#endif

namespace millrace {

// How many locks of these kinds this thread has taken so far. For tests that count.
inline constinit thread_local int64_t mutex_lock_count = 0;
inline int64_t MutexLockCountForTesting() { return mutex_lock_count; }

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

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }

  void lock() { mu_.lock(); }      // for std::condition_variable_any
  void unlock() { mu_.unlock(); }  // for std::condition_variable_any

 private:
  std::mutex mu_;
};

class CondVar {
 public:
  void Wait(Mutex* mu) { cv_.wait(*mu); }
  // True when the time is over.
  bool WaitWithTimeout(Mutex* mu, absl::Duration timeout) {
    if (timeout >= absl::Hours(24 * 365)) {
      cv_.wait(*mu);
      return false;
    }
    return cv_.wait_for(*mu, absl::ToChronoNanoseconds(timeout)) == std::cv_status::timeout;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

#else

namespace mutex_internal {
inline bool SwitchOffDeadlockDetector() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}
inline const bool deadlock_detector_is_off = SwitchOffDeadlockDetector();
}  // namespace mutex_internal

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

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++mutex_lock_count;
    mu_.Lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.TryLock(); }

 private:
  absl::Mutex mu_;
  friend class CondVar;  // the wait needs the absl::Mutex itself
};

class CondVar {
 public:
  void Wait(Mutex* mu) { cv_.Wait(&mu->mu_); }
  // True when the time is over.
  bool WaitWithTimeout(Mutex* mu, absl::Duration timeout) {
    return cv_.WaitWithTimeout(&mu->mu_, timeout);
  }
  void Signal() { cv_.Signal(); }
  void SignalAll() { cv_.SignalAll(); }

 private:
  absl::CondVar cv_;
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
