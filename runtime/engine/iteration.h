// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_ITERATION_H_
#define MILLRACE_RUNTIME_ENGINE_ITERATION_H_

// Iteration: one iteration of a loop that runs, or what is outside of loops, in a step with frames.
// LoopFrame: a loop that runs: its iterations, oldest first, and what they have in common.
//
//   free ─> begun (pending words reset, linked behind the one before) ─> ... ─> nobody holds it
//     └────────────────────────────────────────────────────────────────────────────┘ ended
//
// An iteration ends when nothing holds it any more. It is held by
//   the iteration before it, while that has not ended (iteration 0: each Enter of the loop that
//   has not arrived); each lane that runs its nodes or keeps an expensive one of them; each of its
//   piles that is listed; each of its asynchronous kernels that has not been taken up; each loop
//   that runs inside of it.
// So iterations end in order, and who lets go last has the iteration for himself.
//
// A pile has nodes of the iteration that are ready and in no lane. One that is not empty is in
// exactly one list: the thread that makes it not empty puts it there, the thread that takes it out
// empties it.
//
// Threads: `next`, `children` and what is a loop's are changed by the only loop of a step, or under
// the step's lock; the holds and piles by any thread. Lifetime: both are the step's, recycled.
// Failure: only constructors take memory (std::bad_alloc).

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/async_run.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

struct LoopFrame;

class EntryPile {
 public:
  // True: it was empty, and the caller lists it.
  template <bool kSolo>
  [[nodiscard]] bool Push(ReadyLinks& links, const ReadyChain& chain) {
    uint32_t top = top_.load(std::memory_order_relaxed);
    do {
      links.SetBelow(chain.last, top);
      if (kSolo) {
        top_.store(chain.first, std::memory_order_relaxed);
        break;
      }
    } while (!top_.compare_exchange_weak(top, chain.first, std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
    return top == kNoEntry;
  }
  // For the thread that has taken it out of its list: the newest entry; the others hang on it.
  uint32_t TakeAll() { return top_.exchange(kNoEntry, std::memory_order_acq_rel); }
  void Clear() { top_.store(kNoEntry, std::memory_order_relaxed); }

 private:
  // Release when pushed, acquire when taken.
  std::atomic<uint32_t> top_{kNoEntry};
};

struct Iteration {
  Iteration(const Plan& plan, const Plan::Frame& frame)
      : of(&frame),
        nodes(plan.nodes().data() + frame.first_node),
        block(plan, frame),
        children(frame.num_children, nullptr) {
    for (AsyncRun& run : block.async) run.iteration = this;
  }
  Iteration(const Iteration&) = delete;
  Iteration& operator=(const Iteration&) = delete;

  const Plan::Frame* const of;
  const Plan::Node* const nodes;  // of the frame
  StateBlock block;

  LoopFrame* loop = nullptr;  // null: outside of loops
  Iteration* next = nullptr;  // the one after it, once that has begun
  // By their place: loops inside of it that have begun and not ended.
  std::vector<LoopFrame*> children;
  // Relaxed: others read it for messages.
  std::atomic<int64_t> number{0};
  std::vector<int64_t>
      scheduled_ns;  // by node, when traced; written by the thread that makes it ready
  // Of a straight loop, while its nodes run in their order: by node whether it is dead, then by
  // node what the pred of a Switch is.
  std::vector<uint8_t> marks;

  // acq_rel when let go, relaxed by holders.
  alignas(64) std::atomic<uint32_t> holds{0};
  std::atomic<uint32_t> nodes_run{0};  // relaxed: ordered by the holds
  EntryPile passed_on;                 // came from other iterations; listed by a lane
  EntryPile shared;                    // worth another thread; listed by the step
  Iteration* below_passed_on = nullptr;
  Iteration* below_shared = nullptr;
  Iteration* below_free = nullptr;
};

struct LoopFrame {
  explicit LoopFrame(const Plan::Frame& frame)
      : of(&frame), constants(frame.num_constants), has_exited(frame.num_exits, false) {
    deferred.reserve(frame.num_next_iterations);
  }
  LoopFrame(const LoopFrame&) = delete;
  LoopFrame& operator=(const LoopFrame&) = delete;

  struct Constant {
    const Plan::Node* enter = nullptr;  // null until it has arrived
    bool dead = false;
    EdgeValue value;
  };
  // What goes on to an iteration for which there is no room yet.
  struct Deferred {
    const Plan::Node* next_iteration;
    EdgeValue value;
  };

  const Plan::Frame* const of;
  Iteration* parent = nullptr;   // in which it runs; null: free
  Iteration* first = nullptr;    // number 0; valid until all Enters have arrived
  Iteration* last = nullptr;     // the newest
  uint32_t num_iterations = 0;   // that have begun and not ended
  uint32_t num_enters_left = 0;  // that have not arrived
  bool has_dead_enter = false;
  std::vector<Constant> constants;
  std::vector<Deferred> deferred;
  std::vector<bool> has_exited;  // by Exit: it has had a value
  // TensorFlow's name and id of the frame; only where tensors are sent or received in it.
  std::string id_text;
  uint64_t id = 0;
  LoopFrame* below_free = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_ITERATION_H_
