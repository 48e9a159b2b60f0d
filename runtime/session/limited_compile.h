// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_LIMITED_COMPILE_H_
#define MILLRACE_RUNTIME_SESSION_LIMITED_COMPILE_H_

// LimitedCompile: signatures that are compiled for callers whose time is limited.
//
// Compiling cannot be cut short, its caller's wait can: it is done on a thread of a pool, goes on
// when the wait is over, and a caller that asks for the same signature meanwhile waits for the same
// one. What it made is kept by who made it (SignatureCompiler), not here.
//
// Thread-safety: all methods, from any thread. Lifetime: a compilation keeps what it uses of this;
// what else it uses is its own to keep. Failure: what compiling says.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

template <typename Compiled>
class LimitedCompile {
 public:
  using Result = StatusOr<std::shared_ptr<const Compiled>>;

  // What `compile` returns, which is called on a thread of `pool` unless it is being called for
  // `key`; nothing when it has not returned at `deadline`.
  std::optional<Result> Await(const std::string& key, std::function<Result()> compile, IoPool* pool,
                              Clock* clock, absl::Time deadline);

 private:
  struct UnderWay {
    Mutex mu;
    CondVar changed;
    std::optional<Result> result ABSL_GUARDED_BY(mu);
  };
  struct Shared {
    void Forget(const std::string& key) {
      MutexLock lock(&mu);
      by_key.erase(key);
    }
    Mutex mu;
    std::map<std::string, std::shared_ptr<UnderWay>> by_key ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// -------------------------------------------------------------------------------------------------

template <typename Compiled>
std::optional<typename LimitedCompile<Compiled>::Result> LimitedCompile<Compiled>::Await(
    const std::string& key, std::function<Result()> compile, IoPool* pool, Clock* clock,
    absl::Time deadline) {
  std::shared_ptr<UnderWay> under_way;
  bool begins = false;
  {
    MutexLock lock(&shared_->mu);
    std::shared_ptr<UnderWay>& place = shared_->by_key[key];
    begins = place == nullptr;
    if (begins) place = std::make_shared<UnderWay>();
    under_way = place;
  }
  if (begins) {
    try {
      pool->Schedule([shared = shared_, under_way, key, compile = std::move(compile)] {
        Result result = NoExceptions("Session", compile);
        shared->Forget(key);
        MutexLock lock(&under_way->mu);
        under_way->result = std::move(result);
        under_way->changed.SignalAll();
      });
    } catch (...) {
      shared_->Forget(key);  // what could not begin is nobody's to wait for
      throw;
    }
  }
  MutexLock lock(&under_way->mu);
  while (!under_way->result.has_value() && clock->Now() < deadline) {
    clock->WaitUntil(&under_way->changed, &under_way->mu, deadline);
  }
  return under_way->result;
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_LIMITED_COMPILE_H_
