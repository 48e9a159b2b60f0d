// SPDX-License-Identifier: Apache-2.0
#include "saver/file_parts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <new>

#include "core/mutex.h"

namespace millrace {
namespace {

// Shared with helpers that come when everything has been done.
struct Parts {
  Parts(int64_t count, absl::FunctionRef<Status(int64_t i)> body) : n(count), part(body) {}

  // Until there is none left. `part` lives while somebody is at work: a helper that finds a part
  // has been counted before.
  void Work() {
    {
      MutexLock lock(&mu);
      if (closed) return;
      ++at_work;
    }
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n) break;
      Status done;
      try {
        done = part(i);
      } catch (const std::bad_alloc&) {
        done = absl::ResourceExhaustedError("out of memory");
      } catch (const std::exception& e) {
        done = Internal("unexpected exception: ", e.what());
      }
      if (done.ok()) continue;
      next.store(n, std::memory_order_relaxed);
      MutexLock lock(&mu);
      if (status.ok()) status = done;
    }
    MutexLock lock(&mu);
    if (--at_work == 0) left.Signal();
  }

  const int64_t n;
  const absl::FunctionRef<Status(int64_t i)> part;
  std::atomic<int64_t> next{0};  // relaxed: hands out numbers
  Mutex mu;
  CondVar left;
  int at_work ABSL_GUARDED_BY(mu) = 0;
  bool closed ABSL_GUARDED_BY(mu) = false;
  Status status ABSL_GUARDED_BY(mu);
};

}  // namespace

Status RunParts(IoPool* pool, int threads, int64_t n, absl::FunctionRef<Status(int64_t i)> part) {
  const auto parts = std::make_shared<Parts>(n, part);
  const int64_t helpers = pool == nullptr ? 0 : std::min<int64_t>(threads, n) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool->Schedule([parts] { parts->Work(); });
  }
  parts->Work();
  MutexLock lock(&parts->mu);
  parts->closed = true;
  while (parts->at_work > 0) parts->left.Wait(&parts->mu);
  return parts->status;
}

}  // namespace millrace
