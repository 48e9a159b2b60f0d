// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_STEP_POOL_H_
#define MILLRACE_RUNTIME_SESSION_STEP_POOL_H_

// StepPool: the steps of a session that run in the threads that called Run, and what each of them
// needs besides its plan. Both are one thing: a step's state, recycled from step to step.
//
// Phases of a state; who moves it on:
//
//   idle -> running               Begin, by the thread of the step
//           running -> pinned     Close, while it cancels the step
//           pinned  -> running    Close
//           running -> ending     the end of the step, by its thread, which waits while pinned
//                      ending -> idle
//           running -> left       likewise, when the step is shared: kernels that never answered
//                                 may still use it
//                      left   -> ending   by the thread that lets go of it last
//
// Invariants: a state is made when all others are in use, and lives as long as the pool; an idle
// one is empty. After Close no step begins, and none runs when it returns (some may be left).
//
// A state remembers which bindings its steps by names have used (direct_binding.h), also while it
// is idle, until they are to be forgotten.
//
// A thread gets the state again that it used last, if that is idle; so threads that run steps at
// the same time come to have a state each, and write to no memory of the pool in common.
//
// Threads: all methods, from any thread; a step belongs to the thread that began it. In the steady
// state neither Begin nor the end of a step allocates, and of locks they take the one of the step's
// resources.
// Lifetime: outlives its steps.
// Failure: Begin is what Close said. No memory for a further state is std::bad_alloc.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/container/inlined_vector.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/engine/executor.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/session/direct_binding.h"
#include "runtime/step_context.h"

namespace millrace {

class StepPool {
 public:
  // What a step may use until it ends. Nothing of it is in use when the step begins.
  struct alignas(64) State {
    explicit State(const std::string& name) : resources(name) {}

    std::optional<CancellationManager> cancellation{std::in_place};
    ResourceManager resources;  // end with the step
    std::shared_ptr<Rendezvous> rendezvous;
    absl::InlinedVector<StepContext, 1> contexts;  // by part
    absl::InlinedVector<PartitionRun, 1> runs;
    std::vector<Tensor> args, fetched;

   private:
    friend class StepPool;
    enum class Phase { kIdle, kRunning, kPinned, kLeft, kEnding };
    std::atomic<Phase> phase{Phase::kRunning};  // seq_cst: see Begin
    State* next = nullptr;                      // set before it is in the list
    // The number of the step, and the first one that is not the state's to give.
    int64_t number = 0, end_of_numbers = 0;
    uint64_t kept_version = 0;  // of the pool when the following were bound
    KeptBindings kept;
  };

  // A step under way; it ends with this object.
  class Step {
   public:
    Step(Step&& other) noexcept
        : pool_(other.pool_), state_(other.state_), shared_(std::move(other.shared_)) {
      other.state_ = nullptr;
    }
    Step& operator=(Step&&) = delete;
    ~Step() {
      if (shared_ != nullptr) {
        pool_->Leave(state_);
      } else if (state_ != nullptr) {
        pool_->End(state_);
      }
    }
    State* operator->() const { return state_; }
    // No other step of the pool has it; from 1 on.
    int64_t number() const { return state_->number; }
    // What the state remembers; null: nothing. As long as the step.
    const DirectBinding* Find(const std::string& key);
    // Remembers it, unless Forget has been called since `version` was asked for: then until the
    // step ends. Once a step.
    const DirectBinding* Keep(const std::string& key, std::shared_ptr<const DirectBinding> binding,
                              uint64_t version);
    // What keeps the state in use, also after this object: for kernels that may never answer.
    // `pool_owner` keeps the pool. Once.
    std::shared_ptr<const void> Share(std::shared_ptr<const void> pool_owner);

   private:
    friend class StepPool;
    struct Shared;
    Step(StepPool* pool, State* state) : pool_(pool), state_(state) {}
    StepPool* pool_;
    State* state_;
    std::shared_ptr<const Shared> shared_;
  };

  // `name` is that of the steps' resources.
  explicit StepPool(std::string name) : name_(std::move(name)) {}
  ~StepPool();
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  StatusOr<Step> Begin();
  // To be asked for before a binding is looked up.
  uint64_t version() const { return version_.load(); }
  // No state remembers any longer what it did: idle ones at once, the others when their step ends.
  // To be called when bindings have been dropped.
  void Forget() noexcept;
  // Cancels the steps that run and waits for them. Idempotent. `status` must not be OK; the first
  // one counts.
  void Close(const Status& status);

 private:
  // A state takes as many numbers at a time.
  static constexpr int64_t kNumbers = 1024;
  // What the thread of a number used last, or another one with the same place.
  static constexpr size_t kLastUsed = 64;
  struct alignas(64) LastUsed {
    // Release and acquire: the thread that takes it may not have seen the state being made.
    std::atomic<State*> state{nullptr};
  };

  // Whether it was idle, and is the caller's now. Looks before it writes: the state of a step that
  // runs is another thread's, and so is its cache line. Relaxed: the exchange decides.
  static bool Take(State* state) {
    auto idle = State::Phase::kIdle;
    return state->phase.load(std::memory_order_relaxed) == idle &&
           state->phase.compare_exchange_strong(idle, State::Phase::kRunning);
  }
  // Any idle one, or one that is made.
  ABSL_ATTRIBUTE_NOINLINE State* TakeAnother();
  void ForgetOld(State* state) noexcept;
  void SetIdle(State* state) noexcept {
    state->phase.store(State::Phase::kIdle);
    if (ABSL_PREDICT_FALSE(is_closed_.load())) TellClose();
  }
  void TellClose() noexcept;
  void Leave(State* state) noexcept;
  void End(State* state) noexcept;
  Status Closed();

  const std::string name_;
  std::atomic<bool> is_closed_{false};   // seq_cst: see Begin
  std::atomic<State*> all_{nullptr};     // the list's head; seq_cst likewise
  std::atomic<uint64_t> version_{0};     // seq_cst: see ForgetOld
  std::atomic<int64_t> next_number_{1};  // relaxed: hands out numbers
  std::array<LastUsed, kLastUsed> last_used_;

  Mutex mu_;
  CondVar changed_;  // a phase, once the pool is closed
  Status closed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_STEP_POOL_H_
