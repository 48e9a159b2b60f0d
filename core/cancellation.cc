// SPDX-License-Identifier: Apache-2.0
#include "core/cancellation.h"

#include <new>
#include <utility>

#include "core/dcheck.h"

namespace millrace {
namespace {

// Differs between living threads; never 0.
uintptr_t ThisThread() {
  thread_local char here;
  return reinterpret_cast<uintptr_t>(&here);
}

}  // namespace

void CancellationManager::StartCancel() {
  {
    MutexLock lock(&mu_);
    if (cancelled_.load(std::memory_order_relaxed)) return;
    cancelled_.store(true, std::memory_order_release);
    canceller_thread_ = ThisThread();
  }
  // None is added any more. Nothing here takes memory: a step without any must end, too.
  for (;;) {
    std::function<void()> callback;
    {
      MutexLock lock(&mu_);
      const auto oldest = callbacks_.begin();
      if (oldest == callbacks_.end()) return;
      MR_DCHECK(running_token_ < 0, "only the first StartCancel runs callbacks, one by one");
      callback = std::move(oldest->second);
      running_token_ = oldest->first;
      callbacks_.erase(oldest);
    }
    // One that found no memory is asked once more, and the others in any case: they wait.
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        callback();
        break;
      } catch (const std::bad_alloc&) {
      }
    }
    callback = nullptr;  // what it owns ends before a Deregister returns
    MutexLock lock(&mu_);
    running_token_ = -1;
    done_cv_.SignalAll();
  }
}

bool CancellationManager::Register(Token* token, std::function<void()> callback) {
  MutexLock lock(&mu_);
  if (cancelled_.load(std::memory_order_relaxed)) return false;
  *token = next_token_++;
  callbacks_.emplace(*token, std::move(callback));
  return true;
}

bool CancellationManager::Deregister(Token token) {
  std::function<void()> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  auto it = callbacks_.find(token);
  if (it != callbacks_.end()) {
    dropped = std::move(it->second);
    callbacks_.erase(it);
    return true;
  }
  while (running_token_ == token && canceller_thread_ != ThisThread()) done_cv_.Wait(&mu_);
  return false;
}

}  // namespace millrace
