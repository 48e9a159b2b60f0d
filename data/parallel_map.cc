// SPDX-License-Identifier: Apache-2.0
//
// Map with several calls at once: results come in the order of the input.
//
//   pulled -> taken -> done -> given out        one slot per element, in the order of the input
//
// A worker pulls a chunk of elements (nobody else pulls meanwhile), calls the function for each
// and marks them done. The consumer is a worker, too, when nothing is there to be given out or the
// input need not be waited for: it waits only for slots that a running worker has taken, so it
// comes to an end without any thread of the pool. The other workers run on the I/O pool, because
// functions and inputs may block; they leave when the slots are full and are called back when half
// of them are free (a wake-up costs 4 to 46 us).
//
// A chunk is so long that its calls take about 50 us, as measured; the slots are two chunks per
// worker, so that slow calls (images) hold two elements each.

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/map.h"

namespace millrace::data {
namespace {

constexpr int64_t kChunkNs = 50'000;
constexpr int64_t kMostChunk = 256;
// How long a worker waits for one that pulls: less than a wake-up would cost.
constexpr absl::Duration kPatience = absl::Microseconds(50);

class ParallelMapNode : public DatasetNode {
 public:
  ParallelMapNode(const std::vector<Dataset>& inputs, MapFunction function, MapOptions options)
      : DatasetNode(std::move(options.spec), inputs[0].cardinality(), inputs),
        function_(std::move(function)),
        num_parallel_calls_(options.num_parallel_calls) {}
  std::string Text() const override {
    return absl::StrCat("Map(num_parallel_calls ", num_parallel_calls_, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const MapFunction& function() const { return function_; }
  int64_t num_parallel_calls() const { return num_parallel_calls_; }

 private:
  const MapFunction function_;
  const int64_t num_parallel_calls_;
};

struct Slot {
  Element element;
  Status status;  // of the input, then of the function
  bool done = false;
};

// Shared with tasks that the pool has not begun: they may come after the iterator has gone.
struct Workers {
  Mutex mu;
  CondVar changed;  // a slot is done, pulling is free, a worker has left
  // A deque: a slot stays where it is while others come and go at the ends.
  std::deque<Slot> slots ABSL_GUARDED_BY(mu);
  bool pulling ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;  // the input
  bool stopping ABSL_GUARDED_BY(mu) = false;
  int64_t running ABSL_GUARDED_BY(mu) = 0;         // workers on the pool that have begun
  int64_t scheduled ABSL_GUARDED_BY(mu) = 0;       // and that have not
  bool consumer_works ABSL_GUARDED_BY(mu) = true;  // and takes the place of one of the pool
  int64_t chunk ABSL_GUARDED_BY(mu) = 1;
};

class ParallelMapIterator : public ElementIterator {
 public:
  ParallelMapIterator(const ParallelMapNode* node, const IteratorContext& context)
      : node_(node), context_(context), cancellation_(context.cancellation) {
    context_.cancellation = cancellation_.get();
  }
  Status Begin() {
    MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, context_));
    return absl::OkStatus();
  }
  ~ParallelMapIterator() override {
    cancellation_.get()->StartCancel();
    Stop();
  }

  StatusOr<bool> Next(Element* element) override {
    if (function_ended_) return false;
    Workers* const w = workers_.get();
    Slot slot;
    {
      MutexLock lock(&w->mu);
      while (w->slots.empty() || !w->slots.front().done) {
        if (w->slots.empty()) {
          if (w->ended) return false;
          MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
        }
        // A thread that takes an element that is not there yet may wait long: not while there are
        // others to be given out.
        if (!w->pulling) w->consumer_works = input_->NextIsReady();
        if (CallWorkers(w)) continue;
        const bool may_work =
            w->slots.empty() || (w->consumer_works && w->running < node_->num_parallel_calls());
        if (!may_work || !WorkOnce(w)) w->changed.Wait(&w->mu);
      }
      slot = std::move(w->slots.front());
      w->slots.pop_front();
      CallWorkers(w);
    }
    if (absl::IsOutOfRange(slot.status)) {
      function_ended_ = true;
      return false;
    }
    MR_RETURN_IF_ERROR(slot.status);
    element->swap(slot.element);
    return true;
  }

  bool NextIsReady() const override {
    MutexLock lock(&workers_->mu);
    return !workers_->slots.empty() ? workers_->slots.front().done : workers_->ended;
  }

  Status Save(StateWriter* state) override {
    Stop();
    MutexLock lock(&workers_->mu);
    workers_->stopping = false;
    state->PutBool(function_ended_);
    state->PutBool(workers_->ended);
    state->PutInt(static_cast<int64_t>(workers_->slots.size()));
    for (const Slot& slot : workers_->slots) {
      state->PutStatus(slot.status);
      if (slot.status.ok()) MR_RETURN_IF_ERROR(state->PutElement(slot.element));
    }
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(function_ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const bool ended, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    MutexLock lock(&workers_->mu);
    workers_->ended = ended;
    for (int64_t i = 0; i < count; ++i) {
      Slot& slot = workers_->slots.emplace_back();
      MR_RETURN_IF_ERROR(state->GetStatus(&slot.status));
      if (slot.status.ok()) {
        MR_ASSIGN_OR_RETURN(slot.element, state->GetElement());
      }
      slot.done = true;
    }
    return input_->Restore(state);
  }

 private:
  int64_t Capacity(const Workers* w) const ABSL_SHARED_LOCKS_REQUIRED(w->mu) {
    return 2 * w->chunk * node_->num_parallel_calls();
  }

  // Pulls a chunk and calls the function for it. False: there is nothing to pull, or another pulls.
  bool WorkOnce(Workers* w) ABSL_EXCLUSIVE_LOCKS_REQUIRED(w->mu) {
    const int64_t free = Capacity(w) - static_cast<int64_t>(w->slots.size());
    if (w->pulling || w->ended || w->stopping || free < 1) return false;
    const size_t chunk = static_cast<size_t>(std::min(w->chunk, free));
    w->pulling = true;
    w->mu.Unlock();
    bool ended = false;
    std::vector<Slot> pulled = Pull(chunk, &ended);
    w->mu.Lock();
    std::vector<Slot*> mine;
    mine.reserve(pulled.size());
    for (Slot& slot : pulled) {
      w->slots.push_back(std::move(slot));
      if (!w->slots.back().done) mine.push_back(&w->slots.back());
    }
    MR_DCHECK(w->pulling, "one worker pulls at a time: slots are in the order of the input");
    w->pulling = false;
    w->ended = w->ended || ended;
    w->changed.SignalAll();
    CallWorkers(w);
    w->mu.Unlock();

    const auto start = std::chrono::steady_clock::now();
    int64_t calls = 0;
    for (Slot* slot : mine) {
      // Timed as a whole.
      slot->status = CallMapFunction(node_->function(), context_.cancellation, node_->spec(),
                                     nullptr, &calls, &slot->element);
    }
    const auto time = std::chrono::steady_clock::now() - start;
    context_.environment->function_time.Add(time);
    w->mu.Lock();
    for (Slot* slot : mine) {
      MR_DCHECK(!slot->done, "only its worker marks a slot, which stays in the queue until then");
      slot->done = true;
    }
    if (!mine.empty()) {
      const int64_t ns = std::chrono::nanoseconds(time).count() / static_cast<int64_t>(mine.size());
      const int64_t wanted =
          std::clamp<int64_t>(kChunkNs / std::max<int64_t>(ns, 1), 1, kMostChunk);
      // Up slowly, down at once: a long chunk of slow calls keeps the consumer waiting.
      w->chunk = std::min(wanted, w->chunk * 2);
    }
    w->changed.SignalAll();
    return true;
  }

  // One element, and up to `chunk` with those that need no waiting: what has come is never held
  // back.
  std::vector<Slot> Pull(size_t chunk, bool* ended) {
    std::vector<Slot> pulled;
    pulled.reserve(chunk);
    while (pulled.size() < chunk) {
      Slot slot;
      const StatusOr<bool> more =
          NoExceptions("Dataset.Map", [&] { return input_->Next(&slot.element); });
      *ended = more.ok() && !*more;
      if (*ended) break;
      slot.status = more.status();
      slot.done = !more.ok();  // its slot needs no call
      pulled.push_back(std::move(slot));
      if (!more.ok() || !input_->NextIsReady()) break;
    }
    return pulled;
  }

  // Calls a worker to the pool when there is room for half of the results. True: the mutex was let
  // go meanwhile.
  bool CallWorkers(Workers* w) ABSL_EXCLUSIVE_LOCKS_REQUIRED(w->mu) {
    const int64_t most = node_->num_parallel_calls() - (w->consumer_works ? 1 : 0);
    if (w->ended || w->stopping || w->running + w->scheduled >= most ||
        static_cast<int64_t>(w->slots.size()) * 2 > Capacity(w)) {
      return false;
    }
    ++w->scheduled;
    w->mu.Unlock();
    context_.environment->options.io_pool->Schedule(
        [this, workers = workers_] { Work(workers.get()); });
    w->mu.Lock();
    return true;
  }

  // On the pool. Until it has found that it is not to stop, `this` may have gone.
  void Work(Workers* w) {
    MutexLock lock(&w->mu);
    --w->scheduled;
    if (w->stopping) return;
    ++w->running;
    MR_DCHECK(w->running + w->scheduled <= node_->num_parallel_calls(),
              "CallWorkers counts a worker before the pool gets it");
    for (;;) {
      if (WorkOnce(w)) continue;
      if (!w->pulling || w->stopping) break;
      // Another pulls: there will be work behind it, soon or (then it calls) not. One that had done
      // so when this thread got the mutex back has counted on it.
      if (w->changed.WaitWithTimeout(&w->mu, kPatience) && w->pulling) break;
    }
    --w->running;
    w->changed.SignalAll();
  }

  void Stop() {
    MutexLock lock(&workers_->mu);
    workers_->stopping = true;
    while (workers_->running > 0) workers_->changed.Wait(&workers_->mu);
  }

  const ParallelMapNode* const node_;
  IteratorContext context_;
  ChildCancellation cancellation_;
  std::unique_ptr<ElementIterator> input_;
  const std::shared_ptr<Workers> workers_ = std::make_shared<Workers>();
  bool function_ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> ParallelMapNode::MakeIterator(
    const IteratorContext& context) const {
  auto iterator = std::make_unique<ParallelMapIterator>(this, context);
  MR_RETURN_IF_ERROR(iterator->Begin());
  return iterator;
}

}  // namespace

Dataset MakeParallelMap(const Dataset& input, MapFunction function, MapOptions options) {
  return MakeDataset<ParallelMapNode>({input}, std::move(function), std::move(options));
}

}  // namespace millrace::data
