// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <exception>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/dcheck.h"
#include "core/mutex.h"
#include "oneapi/tbb/global_control.h"
#include "oneapi/tbb/task_arena.h"

namespace millrace {
namespace {

constexpr double kInlineBelowNs = 20'000;  // a wake-up costs 4 to 46 us
constexpr double kMinPartNs = 10'000;
constexpr int64_t kPartsPerThread = 4;  // evens out parts of unequal cost
constexpr int kSpins = 2'000;           // a few us, before the caller of a loop sleeps
constexpr int kMaxThreads = 1'024;

// One running ParallelFor. Helpers may come after the caller has left: they find no part and
// touch nothing but this object, which they share.
class Loop {
 public:
  Loop(int64_t n, int64_t part, absl::FunctionRef<void(int64_t, int64_t)> body)
      : n_(n), part_(part), body_(body) {}

  // Runs parts until none is left to begin.
  void Work() {
    for (;;) {
      const int64_t begin = next_.fetch_add(part_, std::memory_order_relaxed);
      if (begin >= n_) return;
      const int64_t end = std::min(n_, begin + part_);
      // A part that has begun keeps the caller, hence `body_`, alive.
      if (!failed_.load(std::memory_order_relaxed)) {
        try {
          body_(begin, end);
        } catch (...) {
          MutexLock lock(&mu_);
          if (error_ == nullptr) error_ = std::current_exception();
          failed_.store(true, std::memory_order_relaxed);
        }
      }
      const int64_t done = done_.fetch_add(end - begin, std::memory_order_acq_rel) + (end - begin);
      MR_DCHECK(done <= n_, "next_ gives each part to one thread, which counts it once");
      if (done == n_) {
        MutexLock lock(&mu_);
        done_cv_.SignalAll();
      }
    }
  }

  // Nothing is left to begin; false saves a helper the trouble.
  bool exhausted() const { return next_.load(std::memory_order_relaxed) >= n_; }

  // Returns when every part has returned; throws what a part threw first.
  void Finish() {
    for (int i = 0; i < kSpins && done_.load(std::memory_order_acquire) != n_; ++i) {
      __builtin_ia32_pause();
    }
    std::exception_ptr error;
    {
      MutexLock lock(&mu_);
      while (done_.load(std::memory_order_acquire) != n_) done_cv_.Wait(&mu_);
      error = std::move(error_);
    }
    if (error != nullptr) std::rethrow_exception(std::move(error));
  }

 private:
  const int64_t n_;
  const int64_t part_;
  const absl::FunctionRef<void(int64_t, int64_t)> body_;
  // Relaxed: hands out numbers; what the parts write is ordered by done_.
  std::atomic<int64_t> next_{0};
  // Release when a part has returned, acquire by the caller that waits for all.
  std::atomic<int64_t> done_{0};
  std::atomic<bool> failed_{false};  // relaxed: only saves work
  Mutex mu_;
  CondVar done_cv_;
  std::exception_ptr error_ ABSL_GUARDED_BY(mu_);
};

// The loops, over whatever runs tasks. Outlives the arena as long as a task refers to it.
class LoopGate {
 public:
  explicit LoopGate(int num_threads) : num_threads_(num_threads) {}

  // Counts the calling thread among those that compute, unless it is counted already.
  class Presence {
   public:
    // With `optional`, does not enter when all places are taken.
    Presence(LoopGate* gate, bool optional) : gate_(gate), outer_(innermost) {
      if (IsIn(gate)) {
        entered_ = true;
        return;
      }
      const int before = gate->active_.fetch_add(1, std::memory_order_relaxed);
      if (optional && before >= gate->num_threads_) {
        gate->active_.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
      entered_ = counted_ = true;
      innermost = this;
    }
    ~Presence() {
      if (!counted_) return;
      MR_DCHECK(innermost == this, "presences live on the stack: the last one ends first");
      innermost = outer_;
      gate_->active_.fetch_sub(1, std::memory_order_relaxed);
    }
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;
    bool entered() const { return entered_; }
    // The calling thread is counted: it is inside of a loop or a task.
    static bool IsIn(const LoopGate* gate) {
      const Presence* presence = innermost;
      while (presence != nullptr && presence->gate_ != gate) presence = presence->outer_;
      return presence != nullptr;
    }

   private:
    LoopGate* const gate_;
    const Presence* const outer_;
    bool entered_ = false;
    bool counted_ = false;
  };

 private:
  static thread_local const Presence* innermost;

  const int num_threads_;
  std::atomic<int> active_{0};  // relaxed: a bound, orders nothing
};

thread_local const LoopGate::Presence* LoopGate::innermost = nullptr;

class LoopArena : public Arena {
 public:
  explicit LoopArena(int num_threads)
      : num_threads_(num_threads), gate_(std::make_shared<LoopGate>(num_threads)) {}

  int num_threads() const final { return num_threads_; }

  void Schedule(absl::AnyInvocable<void()> task) final {
    Enqueue([gate = gate_, task = std::move(task)]() mutable {
      LoopGate::Presence presence(gate.get(), /*optional=*/false);
      task();
      task = nullptr;  // inside: what it owns may be this arena
    });
  }

  void ParallelFor(int64_t n, double cost_ns,
                   absl::FunctionRef<void(int64_t, int64_t)> body) final {
    if (n <= 0) return;
    if (n == 1 || num_threads_ == 1 || !(static_cast<double>(n) * cost_ns >= kInlineBelowNs)) {
      body(0, n);
      return;
    }
    RunParts(n, cost_ns, body);
  }

 protected:
  // Runs `task` soon on another thread.
  virtual void Enqueue(absl::AnyInvocable<void()> task) = 0;
  // For destructors: in a task of the arena's own nothing may be waited for.
  bool InOwnTask() const { return LoopGate::Presence::IsIn(gate_.get()); }

 private:
  void RunParts(int64_t n, double cost_ns, absl::FunctionRef<void(int64_t, int64_t)> body) {
    const double part_by_cost = std::ceil(kMinPartNs / cost_ns);
    const int64_t max_parts = num_threads_ * kPartsPerThread;
    int64_t part = std::max<int64_t>(1, n / max_parts + (n % max_parts != 0));
    if (part_by_cost > static_cast<double>(part)) {
      // Below n, because n * cost_ns is at least twice kMinPartNs.
      part = static_cast<int64_t>(part_by_cost);
    }
    const int64_t num_parts = n / part + (n % part != 0);
    if (num_parts <= 1) {
      body(0, n);
      return;
    }
    LoopGate::Presence presence(gate_.get(), /*optional=*/false);
    auto loop = std::make_shared<Loop>(n, part, body);
    const int64_t num_helpers = std::min<int64_t>(num_parts, num_threads_) - 1;
    try {
      for (int64_t i = 0; i < num_helpers && !loop->exhausted(); ++i) {
        Enqueue([gate = gate_, loop] {
          if (loop->exhausted()) return;
          LoopGate::Presence helper(gate.get(), /*optional=*/true);
          if (helper.entered()) loop->Work();
        });
      }
    } catch (const std::bad_alloc&) {
      // Helpers are optional, and those that came already need `body` until Finish.
    }
    loop->Work();
    loop->Finish();
  }

  const int num_threads_;
  const std::shared_ptr<LoopGate> gate_;
};

// TBB's own bound (the number of cores, callers included) would leave no worker on one core and
// one too few elsewhere; each arena has its bound by its slots.
void RaiseTbbBound() {
  static const tbb::global_control control(tbb::global_control::max_allowed_parallelism,
                                           kMaxThreads);
}

class TbbArena final : public LoopArena {
 public:
  explicit TbbArena(int num_threads)
      : LoopArena(num_threads), pending_(std::make_shared<Pending>()) {
    RaiseTbbBound();
    arena_.initialize(num_threads, /*reserved_for_masters=*/0);
  }
  ~TbbArena() override {
    if (InOwnTask()) return;  // TBB keeps what its threads need
    MutexLock lock(&pending_->mu);
    while (pending_->count.load(std::memory_order_acquire) != 0)
      pending_->none_cv.Wait(&pending_->mu);
  }

 protected:
  void Enqueue(absl::AnyInvocable<void()> task) override {
    // TBB copies what it is given, so the task travels by pointer.
    auto owned = std::make_unique<Parcel>(Parcel{std::move(task), pending_});
    pending_->count.fetch_add(1, std::memory_order_relaxed);
    try {
      arena_.enqueue([parcel = owned.get()] {
        parcel->task();
        parcel->task = nullptr;
        const std::shared_ptr<Pending> pending = std::move(parcel->pending);
        delete parcel;
        TaskEnded(pending.get());
      });
    } catch (...) {
      TaskEnded(pending_.get());
      throw;
    }
    static_cast<void>(owned.release());
  }

 private:
  // Tasks that have not returned; outlives the arena until the last of them has let go of it.
  struct Pending {
    std::atomic<int64_t> count{0};  // release when a task has returned, acquire by the destructor
    Mutex mu;
    CondVar none_cv;
  };
  struct Parcel {
    absl::AnyInvocable<void()> task;
    std::shared_ptr<Pending> pending;
  };
  static void TaskEnded(Pending* pending) {
    const int64_t before = pending->count.fetch_sub(1, std::memory_order_acq_rel);
    MR_DCHECK(before > 0, "Enqueue counts a task before TBB gets it");
    if (before != 1) return;
    MutexLock lock(&pending->mu);
    pending->none_cv.SignalAll();
  }

  const std::shared_ptr<Pending> pending_;
  tbb::task_arena arena_;
};

class ThreadArena final : public LoopArena {
 public:
  explicit ThreadArena(int num_threads)
      : LoopArena(num_threads), queue_(std::make_shared<Queue>()) {
    threads_.reserve(static_cast<size_t>(num_threads));
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([queue = queue_] { queue->Work(); });
    }
  }
  ~ThreadArena() override {
    queue_->Stop();
    for (std::thread& thread : threads_) InOwnTask() ? thread.detach() : thread.join();
  }

 protected:
  void Enqueue(absl::AnyInvocable<void()> task) override { queue_->Push(std::move(task)); }

 private:
  // What the threads work on; theirs when the arena is gone.
  class Queue {
   public:
    void Push(absl::AnyInvocable<void()> task) {
      MutexLock lock(&mu_);
      tasks_.push_back(std::move(task));
      work_cv_.Signal();
    }
    void Stop() {
      MutexLock lock(&mu_);
      stopping_ = true;
      work_cv_.SignalAll();
    }
    // Until it has been stopped and is empty.
    void Work() {
      for (;;) {
        absl::AnyInvocable<void()> task;
        {
          MutexLock lock(&mu_);
          while (tasks_.empty() && !stopping_) work_cv_.Wait(&mu_);
          if (tasks_.empty()) return;
          task = std::move(tasks_.front());
          tasks_.pop_front();
        }
        task();
      }
    }

   private:
    Mutex mu_;
    CondVar work_cv_;
    std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
    bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  };

  const std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;  // only the constructor and the destructor touch it
};

int ResolvedThreads(int num_threads) {
  if (num_threads <= 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(num_threads, 1, kMaxThreads);
}

int DefaultThreads() {
  int num_threads = 0;
  const char* text = std::getenv("MILLRACE_NUM_THREADS");
  if (text == nullptr || !absl::SimpleAtoi(text, &num_threads)) num_threads = 0;
  return num_threads;
}

}  // namespace

void Arena::ParallelBlocks(int64_t n, int64_t block, double cost_ns,
                           absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  if (n <= block) {
    body(0, n);
    return;
  }
  const int64_t blocks = n / block + (n % block != 0);
  const double block_ns = cost_ns * (static_cast<double>(n) / static_cast<double>(blocks));
  ParallelFor(blocks, block_ns, [n, block, body](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i * block;
      body(from, n - from < block ? n : from + block);
    }
  });
}

std::unique_ptr<Arena> Arena::MakeTbb(int num_threads) {
  return std::make_unique<TbbArena>(ResolvedThreads(num_threads));
}

std::unique_ptr<Arena> Arena::MakeThreads(int num_threads) {
  return std::make_unique<ThreadArena>(ResolvedThreads(num_threads));
}

std::unique_ptr<Arena> Arena::Make(int num_threads) {
#if defined(__SANITIZE_THREAD__)
  return MakeThreads(num_threads);
#else
  return MakeTbb(num_threads);
#endif
}

Arena* Arena::Default() {
  static Arena* const arena = Make(DefaultThreads()).release();
  return arena;
}

}  // namespace millrace
