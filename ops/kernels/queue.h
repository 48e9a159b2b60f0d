// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_QUEUE_H_
#define MILLRACE_OPS_KERNELS_QUEUE_H_

// Queue: the resource behind the handles of queue ops (ops/control/queue.h), for kernels that take
// elements out of one: readers, which get the names of their files so.
//
//   queue->Begin(ctx->cancellation(), {.wanted = 1, .done = [](StatusOr<std::vector<Tuple>>)
//   {...}});
//
// An attempt: waiting -> ended. Attempts that cannot go on wait in two lines, one of enqueues and
// one of dequeues; only the first of a line is served. An attempt ends once: when it has all it
// wants, when the queue is closed and it cannot have it, or when its step is cancelled. Nothing
// waits on a thread.
//
// Thread-safety: all methods, from any thread; `done` is called without a lock.
// Failure: of an attempt, as ops/control/queue.h says.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/shape_inference.h"
#include "ops/loops/philox.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {

// An element: a tensor for each component.
using Tuple = std::vector<Tensor>;

enum class QueueKind {
  kFifo,     // shapes of components: all or none, fully defined
  kShuffle,  // the same; elements come out in a random order
  kPadding,  // shapes for all, of known rank; rows of a batch are padded to the largest
};
// "FIFOQueue"
const char* QueueKindName(QueueKind kind);

// What a queue is made with.
struct QueueSpec {
  QueueKind kind = QueueKind::kFifo;
  std::vector<DType> types;
  std::vector<PartialShape> shapes;  // empty: any
  int64_t capacity = -1;
  int64_t min_after_dequeue = 0;  // of kShuffle, and its seeds
  int64_t seed = 0, seed2 = 0;
  std::string container, name;

  // Of a queue's node; InvalidArgument for attributes that cannot be.
  Status Init(QueueKind of, const NodeAttrs& attrs);
  // "FIFOQueue 'name'"
  std::string Title() const;
  // What is put in or taken out must have the queue's types.
  Status CheckTypes(const std::vector<DType>& got) const;
  // A queue that exists must be what another node asks for.
  Status CheckSame(const QueueSpec& want) const;
};

class Queue : public Resource, public std::enable_shared_from_this<Queue> {
 public:
  static constexpr const char* kTypeName = "Queue";

  struct Attempt {
    bool is_enqueue = false;
    std::vector<Tuple> tuples = {};  // enqueue: all; dequeue: those collected so far
    // Dequeue: how many elements, or fewer but not 0 when `allow_fewer` and nothing more can come.
    size_t wanted = 0;
    bool allow_fewer = false;
    // Called once, here or on another thread; with the tuples that were dequeued.
    absl::AnyInvocable<void(StatusOr<std::vector<Tuple>>)> done;

    // The queue's own.
    size_t put = 0;  // enqueue: how many of the tuples are in
    Status status = absl::OkStatus();
    // Set while registered; outlives the step's kernels.
    CancellationManager* cancellation = nullptr;
    CancellationManager::Token token = 0;
  };

  explicit Queue(QueueSpec spec);

  const QueueSpec& spec() const { return spec_; }
  std::string DebugString() const override;
  size_t size() const;
  bool closed() const;

  // Serves the attempt at once when it can be, else registers for cancellation and lets it wait.
  void Begin(CancellationManager* cancellation, Attempt wish);
  // What was dequeued comes first again, in its order.
  void GiveBack(std::vector<Tuple> tuples);
  void Close(bool cancel_pending_enqueues);

 private:
  // Attempts move between lines with their nodes: that takes no memory.
  using Line = std::list<std::shared_ptr<Attempt>>;

  void Cancel(const std::shared_ptr<Attempt>& attempt);
  // Calls change(&ended) and serves the lines, then calls what has ended, without the lock.
  void Change(absl::FunctionRef<void(Line* ended)> change);
  static Status CancelledStatus(const Attempt& attempt);
  Line& LineOf(const Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // May an element be taken out? What a shuffle needs to choose from stays until the queue is
  // closed.
  bool HasElement() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Tuple TakeElement() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets attempts go on, in both lines, until the first of each has to wait.
  void Serve(Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Goes on with the attempt as far as possible; true when it has ended.
  bool TryEnd(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Undoes what an attempt that does not stand in line has done so far.
  void Restore(Attempt* a) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PutBack(std::vector<Tuple>* tuples) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t NextRandom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const QueueSpec spec_;
  mutable Mutex mu_;
  std::deque<Tuple> elements_ ABSL_GUARDED_BY(mu_);
  Line enqueues_ ABSL_GUARDED_BY(mu_), dequeues_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  math::PhiloxStream random_ ABSL_GUARDED_BY(mu_);
  math::PhiloxStream::Block words_ ABSL_GUARDED_BY(mu_) = {};  // of the block at hand
  size_t words_used_ ABSL_GUARDED_BY(mu_) = 4;
};

// Types as "[int32, float]", shapes as "[[2], []]".
template <typename Part>
std::string ListText(const std::vector<Part>& parts) {
  const auto append = [](std::string* out, const Part& part) {
    absl::StrAppend(out, MessagePart(part));
  };
  return absl::StrCat("[", absl::StrJoin(parts, ", ", append), "]");
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_QUEUE_H_
