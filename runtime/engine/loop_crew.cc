// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/loop_crew.h"

#include <new>

#include "core/dcheck.h"
#include "runtime/engine/kernel_runner.h"

namespace millrace {
namespace {

// Network threads that work for steps at once, for each thread of the arena: some only hand on.
constexpr int kVisitsPerThread = 2;

}  // namespace

LoopCrew::~LoopCrew() {
  for (std::atomic<EdgeValue*>& place : outputs_) delete[] place.load(std::memory_order_acquire);
}

void LoopCrew::Begin(Arena* arena) {
  arena_ = arena;
  num_threads_ = arena->num_threads();
  loops_.store(1, std::memory_order_relaxed);
  busy_.store(0, std::memory_order_relaxed);
}

void LoopCrew::Request(bool expensive) {
  life_->AddLoop();
  loops_.fetch_add(1, std::memory_order_seq_cst);
  if (life_->host() != nullptr && life_->host()->Offer(step_, expensive)) return;
  if (Visit::Offer(this, kVisitsPerThread * num_threads_)) return;
  engine_->wakeups.fetch_add(1, std::memory_order_relaxed);
  try {
    arena_->Schedule([this] { RunVisit(); });
  } catch (...) {
    // Others see to what is shared, unless there are none. The caller has an active part: the step
    // does not end here.
    if (loops_.fetch_sub(1, std::memory_order_seq_cst) == 1 && job_->IsShared()) {
      life_->Fail(StatusOfException());
    }
    static_cast<void>(life_->DropLoop());
  }
}

void LoopCrew::SeeToShared(bool expensive) {
  const int loops = loops_.load(std::memory_order_seq_cst);
  const bool all_busy = busy_.load(std::memory_order_relaxed) >= loops;
  if (loops == 0 || (loops < num_threads_ && (expensive || all_busy))) Request(expensive);
}

bool LoopCrew::Leave() {
  MR_DCHECK(loops_.load(std::memory_order_relaxed) > 0, "a loop that leaves was counted");
  loops_.fetch_sub(1, std::memory_order_seq_cst);
  // Who shared before this saw a loop and relied on it.
  if (!job_->IsShared()) return true;
  loops_.fetch_add(1, std::memory_order_seq_cst);
  return false;
}

EdgeValue* LoopCrew::TakeOutputs() {
  for (std::atomic<EdgeValue*>& place : outputs_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (EdgeValue* outputs = place.exchange(nullptr, std::memory_order_acquire)) return outputs;
  }
  return new EdgeValue[max_outputs_];
}

void LoopCrew::GiveOutputsBack(EdgeValue* outputs) {
  for (std::atomic<EdgeValue*>& place : outputs_) {
    EdgeValue* expected = nullptr;
    if (place.load(std::memory_order_relaxed) == nullptr &&
        place.compare_exchange_strong(expected, outputs, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
  }
  delete[] outputs;
}

void LoopCrew::RunVisit() noexcept {
  try {
    EdgeValue* const outputs = TakeOutputs();
    job_->WorkWith(outputs);
    GiveOutputsBack(outputs);
  } catch (const std::bad_alloc&) {
    // Without a loop here, what is shared may have nobody.
    life_->Fail(NoMemory());
    loops_.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (life_->DropLoop()) life_->TellEnded(step_);
}

}  // namespace millrace
