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
constexpr int64_t kPartsPerThread = 4;     // evens out parts of unequal cost
constexpr uint64_t kSpinCycles = 30'000;   // some 10 us, before the caller of a loop sleeps
constexpr uint64_t kLookCycles = 150'000;  // some 60 us, before a thread without a task sleeps
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
    const uint64_t begin = __builtin_ia32_rdtsc();
    while (done_.load(std::memory_order_acquire) != n_ &&
           __builtin_ia32_rdtsc() - begin < kSpinCycles) {
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

// Tasks in their order, for the threads of an arena. Outlives the arena while a thread works on it.
class TaskQueue {
 public:
  // Whether a waiting thread takes the task; if not, a thread should come to Work, if there may be
  // one more. `come` brings one, or throws: then the task is not there either, unless others are.
  void Push(absl::AnyInvocable<void()> task, size_t max_threads, absl::FunctionRef<void()> come) {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    num_tasks_.store(tasks_.size(), std::memory_order_relaxed);
    // Who looks sees it, or waits for the lock to see it.
    if (tasks_.size() <= looking_) return;
    if (tasks_.size() <= looking_ + waiting_) return work_cv_.Signal();
    // Who adds while it stops is a task: its thread sees to this one, too.
    if (stopping_ || threads_ >= max_threads) return;
    ++threads_;
    try {
      come();
    } catch (...) {
      if (--threads_ > 0) return;
      tasks_.pop_back();
      num_tasks_.store(tasks_.size(), std::memory_order_relaxed);
      throw;
    }
  }
  // By a thread that has come: until the queue is stopped and empty.
  void Work() {
    for (;;) {
      Look();
      absl::AnyInvocable<void()> task;
      {
        MutexLock lock(&mu_);
        ++waiting_;
        while (tasks_.empty() && !stopping_) work_cv_.Wait(&mu_);
        --waiting_;
        if (tasks_.empty()) {
          if (--threads_ == 0) none_cv_.SignalAll();
          return;
        }
        task = std::move(tasks_.front());
        tasks_.pop_front();
        num_tasks_.store(tasks_.size(), std::memory_order_relaxed);
      }
      task();
    }
  }
  void Stop() {
    MutexLock lock(&mu_);
    stopping_ = true;
    work_cv_.SignalAll();
  }
  // Behind Stop: until no thread works on it.
  void AwaitNone() {
    MutexLock lock(&mu_);
    while (threads_ > 0) none_cv_.Wait(&mu_);
  }

 private:
  // For a task, for a while: a step's next loop often comes sooner than a thread can be woken.
  void Look() {
    {
      MutexLock lock(&mu_);
      if (!tasks_.empty() || stopping_) return;
      ++looking_;
    }
    const uint64_t begin = __builtin_ia32_rdtsc();
    while (num_tasks_.load(std::memory_order_relaxed) == 0 &&
           __builtin_ia32_rdtsc() - begin < kLookCycles) {
      std::this_thread::yield();
    }
    MutexLock lock(&mu_);
    --looking_;
  }

  Mutex mu_;
  CondVar work_cv_, none_cv_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  size_t threads_ ABSL_GUARDED_BY(mu_) = 0;  // that have come, or will
  size_t looking_ ABSL_GUARDED_BY(mu_) = 0;  // of them, for a task, awake
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // of them, for a task, asleep
  std::atomic<size_t> num_tasks_{0};         // relaxed: a hint for who looks
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

// Threads of TBB's that stay, asleep without work. One that goes back to TBB yields its core a
// hundred times first, and on cores that several tasks share each of them is a context switch.
class TbbArena final : public LoopArena {
 public:
  explicit TbbArena(int num_threads)
      : LoopArena(num_threads), queue_(std::make_shared<TaskQueue>()) {
    RaiseTbbBound();
    arena_.initialize(num_threads, /*reserved_for_masters=*/0);
  }
  ~TbbArena() override {
    queue_->Stop();
    if (!InOwnTask()) queue_->AwaitNone();  // else TBB keeps what its threads need
  }

 protected:
  void Enqueue(absl::AnyInvocable<void()> task) override {
    queue_->Push(std::move(task), static_cast<size_t>(num_threads()),
                 [this] { arena_.enqueue([queue = queue_] { queue->Work(); }); });
  }

 private:
  const std::shared_ptr<TaskQueue> queue_;
  tbb::task_arena arena_;
};

class ThreadArena final : public LoopArena {
 public:
  explicit ThreadArena(int num_threads)
      : LoopArena(num_threads), queue_(std::make_shared<TaskQueue>()) {}
  ~ThreadArena() override {
    queue_->Stop();
    for (std::thread& thread : threads_) InOwnTask() ? thread.detach() : thread.join();
  }

 protected:
  void Enqueue(absl::AnyInvocable<void()> task) override {
    // With the queue's lock.
    queue_->Push(std::move(task), static_cast<size_t>(num_threads()),
                 [this] { threads_.emplace_back([queue = queue_] { queue->Work(); }); });
  }

 private:
  const std::shared_ptr<TaskQueue> queue_;
  std::vector<std::thread> threads_;  // of the queue's lock; at last of the destructor
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
