// SPDX-License-Identifier: Apache-2.0
#include "core/cancellation.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace {
namespace {

// Differs between living threads; never 0.
uintptr_t ThisThread() {
  thread_local char here;
  return reinterpret_cast<uintptr_t>(&here);
}

}  // namespace

void CancellationManager::StartCancel() {
  std::vector<Token> tokens;
  {
    MutexLock lock(&mu_);
    if (cancelled_.load(std::memory_order_relaxed)) return;
    cancelled_.store(true, std::memory_order_release);
    canceller_thread_ = ThisThread();
    tokens.reserve(callbacks_.size());
    for (const auto& entry : callbacks_) tokens.push_back(entry.first);
  }
  std::sort(tokens.begin(), tokens.end());
  for (const Token token : tokens) {
    std::function<void()> callback;
    {
      MutexLock lock(&mu_);
      auto it = callbacks_.find(token);
      if (it == callbacks_.end()) continue;  // deregistered meanwhile
      callback = std::move(it->second);
      callbacks_.erase(it);
      running_token_ = token;
    }
    callback();
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
