// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_IN_LOOP_EDGES_H_
#define MILLRACE_DISTRIBUTED_WORKER_IN_LOOP_EDGES_H_

// InLoopEdges: where a tensor that another task has pushed in an iteration of a loop meets the
// _Recv of that iteration, in one step.
//
//   came -> kept until its _Recv asks -> taken
//   asked for -> _Recv waits until it comes -> taken
//
// How many will come is known to no one, and a task whose part of a loop needs nothing back runs
// ahead. So what is kept counts as what is parked for steps that have not begun (parked_bytes.h):
// beyond the bound its link holds back credit. Each tensor that is taken lets go of as much, of
// what came first: iterations take in order, and what came first may hold none.
//
// The sender hears of each tensor when its _Recv has it, and of the others at the end of the step.
// A tensor that comes a second time while the first one is kept is an error; later it is only kept
// until the step ends, as no _Recv asks twice.
//
// Threads: all methods, from any thread; no lock is held when a link or a callback is called.
// Lifetime: End before it is destroyed, so that no wait is left. Failure: Internal for a tensor or
// a _Recv that is there twice. When there is no room: Unavailable, as the next try may have it, but
// ResourceExhausted when this step alone has half of it, as it would at each try. After End what
// End was told.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"
#include "distributed/worker/parked_bytes.h"
#include "distributed/worker/pushed_message.h"
#include "runtime/rendezvous.h"

namespace millrace {

class InLoopEdges {
 public:
  // `parked` (may be null: there is no room) is shared by all steps.
  InLoopEdges(int64_t step_id, std::shared_ptr<ParkedBytes> parked);
  InLoopEdges(const InLoopEdges&) = delete;
  InLoopEdges& operator=(const InLoopEdges&) = delete;

  // The tensor of this number of the plan has come, in tensor.frame_id and tensor.iteration. `link`
  // (may be null: no one waits for that) hears that it was taken, or dropped, also with an error.
  // `held`: that of the message with which it was parked, if its credit is held back.
  Status Came(uint32_t number, SentTensor tensor, std::shared_ptr<Link> link,
              std::shared_ptr<const HeldCredit> held);
  // As Rendezvous::RecvAsync.
  void RecvAsync(const Transfer& transfer, Rendezvous::DoneCallback done);
  // Drops what is kept, then and later; who waits, then and later, gets `status`, an error. False:
  // it had ended.
  bool End(const Status& status);

 private:
  using Key = std::tuple<uint32_t, uint64_t, int64_t>;  // number, frame, iteration
  // One of both: who waits, or a tensor.
  struct Entry {
    Rendezvous::DoneCallback waiter;
    Tensor value;
    bool is_dead = false;
    std::shared_ptr<Link> link;
    int64_t bytes = 0, share = 0;            // of parked_, as ParkedBytes::TakeHeld
    std::shared_ptr<const HeldCredit> held;  // beyond the bound; let go without the lock
    uint64_t order = 0;                      // in beyond_; 0: it holds nothing
  };
  Status NoRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills a new entry; false when there is no room.
  bool Keep(const Key& key, Entry* entry, SentTensor* tensor, const std::shared_ptr<Link>& link,
            std::shared_ptr<const HeldCredit> held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A tensor was taken. What need not be held any more goes to `let_go`.
  void Return(const Entry& taken, std::vector<std::shared_ptr<const HeldCredit>>* let_go)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Acknowledge(Link* link) const;

  const int64_t step_id_;
  const std::shared_ptr<ParkedBytes> parked_;  // may be null
  Mutex mu_;
  HashMap<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Key> beyond_ ABSL_GUARDED_BY(mu_);  // those that hold credit, as they came
  uint64_t last_order_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of parked_
  Status ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_IN_LOOP_EDGES_H_
