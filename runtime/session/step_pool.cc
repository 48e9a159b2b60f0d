// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/step_pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/optimization.h"
#include "core/dcheck.h"
#include "core/thread_number.h"
#include "runtime/engine/step.h"
#include "runtime/step_context.h"

namespace millrace {

// Ends the step when the last holder has let go.
struct StepPool::Step::Shared {
  Shared(std::shared_ptr<const void> owner, StepPool* pool, State* state)
      : owner(std::move(owner)), pool(pool), state(state) {}
  ~Shared() { pool->End(state); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  const std::shared_ptr<const void> owner;
  StepPool* const pool;
  State* const state;
};

std::shared_ptr<const void> StepPool::Step::Share(std::shared_ptr<const void> pool_owner) {
  shared_ = std::make_shared<Shared>(std::move(pool_owner), pool_, state_);
  return shared_;
}

StepPool::~StepPool() {
  for (State* state = all_.load(); state != nullptr;) {
    delete std::exchange(state, state->next);
  }
}

StepPool::State* StepPool::TakeAnother() {
  for (State* state = all_.load(); state != nullptr; state = state->next) {
    if (Take(state)) return state;
  }
  auto made = std::make_unique<State>(name_);
  made->next = all_.load();
  while (!all_.compare_exchange_weak(made->next, made.get())) {
  }
  return made.release();
}

StatusOr<StepPool::Step> StepPool::Begin() {
  std::atomic<State*>& last_used =
      last_used_[static_cast<size_t>(ThreadNumber()) % kLastUsed].state;
  State* taken = last_used.load(std::memory_order_acquire);
  if (ABSL_PREDICT_FALSE(taken == nullptr || !Take(taken))) {
    taken = TakeAnother();
    last_used.store(taken, std::memory_order_release);
  }
  Step step(this, taken);
  // Either this sees that the pool is closed, or Close sees that the step runs.
  if (ABSL_PREDICT_FALSE(is_closed_.load())) return Closed();
  State& state = *step.state_;
  if (ABSL_PREDICT_FALSE(++state.number >= state.end_of_numbers)) {
    state.number = next_number_.fetch_add(kNumbers, std::memory_order_relaxed);
    state.end_of_numbers = state.number + kNumbers;
  }
  return step;
}

const DirectBinding* StepPool::Step::Find(const std::string& key) {
  if (ABSL_PREDICT_FALSE(state_->kept_version != pool_->version())) return nullptr;
  return state_->kept.Find(key);
}

const DirectBinding* StepPool::Step::Keep(const std::string& key,
                                          std::shared_ptr<const DirectBinding> binding,
                                          uint64_t version) {
  if (state_->kept_version != version) {
    state_->kept.Clear();
    state_->kept_version = version;
  }
  return state_->kept.Keep(key, std::move(binding));
}

void StepPool::ForgetOld(State* state) noexcept {
  // Either Forget sees that the state is idle, or the end of its step sees the new version here.
  while (state->phase.load() == State::Phase::kIdle) {
    auto phase = State::Phase::kIdle;
    if (!state->phase.compare_exchange_strong(phase, State::Phase::kEnding)) return;
    MR_DCHECK(state->args.empty() && state->rendezvous == nullptr,
              "an idle state holds nothing of a step but the bindings that it remembers");
    const uint64_t version = version_.load();
    state->kept.Clear();
    state->kept_version = version;
    SetIdle(state);
    if (version_.load() == version) return;
  }
}

void StepPool::TellClose() noexcept {
  MutexLock lock(&mu_);
  changed_.SignalAll();
}

void StepPool::Forget() noexcept {
  version_.fetch_add(1);
  for (State* state = all_.load(); state != nullptr; state = state->next) ForgetOld(state);
}

void StepPool::Leave(State* state) noexcept {
  MR_DCHECK(
      state->phase.load() == State::Phase::kRunning || state->phase.load() == State::Phase::kPinned,
      "a step is left to its kernels by the thread that runs it");
  state->kept.Clear();  // nobody knows when it ends
  for (auto phase = State::Phase::kRunning;
       !state->phase.compare_exchange_strong(phase, State::Phase::kLeft);
       phase = State::Phase::kRunning) {
    MutexLock lock(&mu_);
    while (state->phase.load() == State::Phase::kPinned) changed_.Wait(&mu_);
  }
  if (is_closed_.load()) TellClose();
}

void StepPool::End(State* state) noexcept {
  for (auto phase = state->phase.load();
       phase == State::Phase::kPinned ||
       !state->phase.compare_exchange_strong(phase, State::Phase::kEnding);
       phase = state->phase.load()) {
    MutexLock lock(&mu_);
    while (state->phase.load() == State::Phase::kPinned) changed_.Wait(&mu_);
  }
  MR_DCHECK(state->phase.load() == State::Phase::kEnding,
            "one thread ends a step, and Close pins no step that ends");
  state->resources.ClearAll();
  state->rendezvous.reset();
  for (StepContext& context : state->contexts) {
    context.rendezvous.reset();
    context.memory.reset();
  }
  state->args.clear();
  state->fetched.clear();
  state->cancellation.emplace();
  const uint64_t version = version_.load();
  if (ABSL_PREDICT_FALSE(state->kept_version != version)) {
    state->kept.Clear();
    state->kept_version = version;
  }
  SetIdle(state);
  if (ABSL_PREDICT_FALSE(version_.load() != version)) ForgetOld(state);
}

Status StepPool::Closed() {
  MutexLock lock(&mu_);
  return closed_;
}

void StepPool::Close(const Status& status) {
  {
    MutexLock lock(&mu_);
    if (closed_.ok()) closed_ = status;
  }
  is_closed_.store(true);
  for (State* state = all_.load(); state != nullptr; state = state->next) {
    auto phase = State::Phase::kRunning;
    if (!state->phase.compare_exchange_strong(phase, State::Phase::kPinned)) continue;
    try {
      state->cancellation->StartCancel();
    } catch (...) {
      // It is cancelled, though not everyone was told: the others see it between two nodes.
    }
    MutexLock lock(&mu_);
    MR_DCHECK(state->phase.load() == State::Phase::kPinned,
              "a pinned step waits for Close and goes nowhere by itself");
    state->phase.store(State::Phase::kRunning);
    changed_.SignalAll();
  }
  for (State* state = all_.load(); state != nullptr; state = state->next) {
    MutexLock lock(&mu_);
    while (state->phase.load() != State::Phase::kIdle &&
           state->phase.load() != State::Phase::kLeft) {
      changed_.Wait(&mu_);
    }
  }
  Forget();
}

}  // namespace millrace
