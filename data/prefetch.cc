// SPDX-License-Identifier: Apache-2.0
//
// Prefetch: a buffer of elements that is filled on the I/O pool while the consumer works.
//
// kAutotune: as many elements as have kTunedBytes, as the first one is large; small ones are cheap
// to make, so that only many of them are worth a wake-up, and large ones should not drive each
// other out of the cache.
//
// The buffer is refilled when it has less than half of its size (the low-water mark), and then
// until it is full: a wake-up costs 4 to 46 us and is paid once for many elements. A consumer that
// finds the buffer empty pulls itself, unless the pool pulls just now; then it waits for that. So a
// pool that has no thread free delays nothing and cannot hang anybody.

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

// Elements that come without waiting are put into the buffer together.
constexpr size_t kMostPulled = 64;
// Of kAutotune: a fraction of a core's cache; and how many elements at least and at most.
constexpr int64_t kTunedBytes = int64_t{256} << 10;
constexpr int64_t kFewestTuned = 2, kMostTuned = 64;

size_t TunedSize(const Element& element) {
  int64_t bytes = 1;
  for (const Tensor& tensor : element) {
    if (tensor.dtype() == DT_STRING) {
      for (const std::string& text : tensor.raw<std::string>()) {
        bytes += static_cast<int64_t>(sizeof(text) + text.size());
        if (bytes > kTunedBytes) return kFewestTuned;
      }
    } else {
      const auto each = std::max<int64_t>(static_cast<int64_t>(DTypeSize(tensor.dtype())), 1);
      if (tensor.num_elements() > kTunedBytes / each) return kFewestTuned;
      bytes += tensor.num_elements() * each;
    }
  }
  return static_cast<size_t>(std::clamp(kTunedBytes / bytes, kFewestTuned, kMostTuned));
}

class PrefetchNode : public DatasetNode {
 public:
  PrefetchNode(const std::vector<Dataset>& inputs, int64_t buffer_size)
      : DatasetNode(inputs[0].spec(), inputs[0].cardinality(), inputs), buffer_size_(buffer_size) {}
  std::string Text() const override {
    if (buffer_size_ == kAutotune) return "Prefetch(autotune)";
    return absl::StrCat("Prefetch(", buffer_size_, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t buffer_size() const { return buffer_size_; }

 private:
  const int64_t buffer_size_;
};

struct Pulled {
  Element element;
  Status status;
};

// Shared with a task that the pool has not begun: it may come after the iterator has gone.
struct Buffer {
  Mutex mu;
  CondVar changed;  // elements have come, nobody pulls any more
  std::deque<Pulled> ready ABSL_GUARDED_BY(mu);
  size_t size ABSL_GUARDED_BY(mu) = 0;
  bool is_tuned ABSL_GUARDED_BY(mu) = true;  // `size` is final
  // That the consumer has taken along and may not have given out yet.
  size_t taken ABSL_GUARDED_BY(mu) = 0;
  bool pulling ABSL_GUARDED_BY(mu) = false;    // somebody is inside the input
  bool scheduled ABSL_GUARDED_BY(mu) = false;  // a task has not begun
  bool ended ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
};

class PrefetchIterator : public ElementIterator {
 public:
  PrefetchIterator(const PrefetchNode* node, const IteratorContext& context)
      : context_(context), cancellation_(context.cancellation) {
    context_.cancellation = cancellation_.get();
    MutexLock lock(&buffer_->mu);
    buffer_->is_tuned = node->buffer_size() != kAutotune;
    buffer_->size = static_cast<size_t>(buffer_->is_tuned ? node->buffer_size() : kFewestTuned);
  }
  Status Begin(const PrefetchNode& node) {
    MR_ASSIGN_OR_RETURN(input_, MakeInput(node, context_));
    return absl::OkStatus();
  }
  ~PrefetchIterator() override {
    cancellation_.get()->StartCancel();
    Stop();
  }

  StatusOr<bool> Next(Element* element) override {
    // What was taken from the buffer before, without the lock.
    if (!taken_.empty()) return Give(element);
    Buffer* const b = buffer_.get();
    {
      MutexLock lock(&b->mu);
      while (b->ready.empty() && !b->ended && b->pulling) b->changed.Wait(&b->mu);
      if (b->ready.empty()) {
        if (b->ended) return false;
        b->pulling = true;
        b->mu.Unlock();
        std::vector<Pulled> pulled;
        const bool ended = Pull(1, &pulled);
        b->mu.Lock();
        MR_DCHECK(b->ready.empty(), "only the thread that pulls adds elements: they stay in order");
        b->pulling = false;
        b->ended = b->ended || ended;
        Tune(pulled, b);
        for (Pulled& p : pulled) taken_.push_back(std::move(p));
        b->taken = 0;
      } else {
        // Half of it at once: then a lock is taken once for many elements.
        const size_t n = std::min(std::max<size_t>(b->ready.size() / 2, 1), kMostPulled);
        for (size_t i = 0; i < n; ++i) {
          taken_.push_back(std::move(b->ready.front()));
          b->ready.pop_front();
        }
        b->taken = n - 1;
      }
      Refill(b);
    }
    if (taken_.empty()) return false;
    return Give(element);
  }

  bool NextIsReady() const override {
    if (!taken_.empty()) return true;
    MutexLock lock(&buffer_->mu);
    return !buffer_->ready.empty() || buffer_->ended;
  }

  Status Save(StateWriter* state) override {
    Stop();
    MutexLock lock(&buffer_->mu);
    buffer_->stopping = false;
    state->PutBool(buffer_->ended);
    state->PutInt(static_cast<int64_t>(taken_.size() + buffer_->ready.size()));
    for (const std::deque<Pulled>* part : {&taken_, &buffer_->ready}) {
      for (const Pulled& pulled : *part) {
        state->PutStatus(pulled.status);
        if (pulled.status.ok()) MR_RETURN_IF_ERROR(state->PutElement(pulled.element));
      }
    }
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MutexLock lock(&buffer_->mu);
    MR_ASSIGN_OR_RETURN(buffer_->ended, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    for (int64_t i = 0; i < count; ++i) {
      Pulled& pulled = buffer_->ready.emplace_back();
      MR_RETURN_IF_ERROR(state->GetStatus(&pulled.status));
      if (pulled.status.ok()) {
        MR_ASSIGN_OR_RETURN(pulled.element, state->GetElement());
      }
    }
    return input_->Restore(state);
  }

 private:
  StatusOr<bool> Give(Element* element) {
    Pulled pulled = std::move(taken_.front());
    taken_.pop_front();
    MR_RETURN_IF_ERROR(pulled.status);
    element->swap(pulled.element);
    return true;
  }

  // One element, and up to `most` with those that need no waiting: what has come is never held
  // back. True: the input has ended. The thread that is `pulling` calls it, without the mutex.
  bool Pull(size_t most, std::vector<Pulled>* pulled) {
    while (pulled->size() < most) {
      Pulled next;
      const StatusOr<bool> more =
          NoExceptions("Dataset.Prefetch", [&] { return input_->Next(&next.element); });
      if (more.ok() && !*more) return true;
      next.status = more.status();
      pulled->push_back(std::move(next));
      if (!more.ok() || !input_->NextIsReady()) break;
    }
    return false;
  }

  // By the first element that there is.
  static void Tune(const std::vector<Pulled>& pulled, Buffer* b)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(b->mu) {
    if (b->is_tuned || pulled.empty() || !pulled[0].status.ok()) return;
    b->size = TunedSize(pulled[0].element);
    b->is_tuned = true;
  }

  // Calls the pool below the low-water mark.
  void Refill(Buffer* b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(b->mu) {
    if (b->pulling || b->scheduled || b->ended || b->stopping ||
        (b->ready.size() + b->taken) * 2 > b->size) {
      return;
    }
    b->scheduled = true;
    b->mu.Unlock();
    context_.environment->options.io_pool->Schedule(
        [this, buffer = buffer_] { FillBuffer(buffer.get()); });
    b->mu.Lock();
  }

  // On the pool. Until it has found that it is not to stop, `this` may have gone.
  void FillBuffer(Buffer* b) {
    MutexLock lock(&b->mu);
    MR_DCHECK(b->scheduled, "until the task begins no other one is given to the pool");
    b->scheduled = false;
    if (b->stopping || b->pulling) return;
    b->pulling = true;
    std::vector<Pulled> pulled;
    while (!b->stopping && !b->ended && b->ready.size() + b->taken < b->size) {
      const size_t room = std::min(b->size - b->ready.size() - b->taken, kMostPulled);
      b->mu.Unlock();
      pulled.clear();
      const bool ended = Pull(room, &pulled);
      b->mu.Lock();
      Tune(pulled, b);
      for (Pulled& p : pulled) b->ready.push_back(std::move(p));
      b->ended = ended;
      b->changed.SignalAll();
    }
    b->pulling = false;
    b->changed.SignalAll();
  }

  void Stop() {
    MutexLock lock(&buffer_->mu);
    buffer_->stopping = true;
    while (buffer_->pulling) buffer_->changed.Wait(&buffer_->mu);
  }

  IteratorContext context_;
  ChildCancellation cancellation_;
  std::unique_ptr<ElementIterator> input_;
  const std::shared_ptr<Buffer> buffer_ = std::make_shared<Buffer>();
  std::deque<Pulled> taken_;  // the consumer's
};

StatusOr<std::unique_ptr<ElementIterator>> PrefetchNode::MakeIterator(
    const IteratorContext& context) const {
  auto iterator = std::make_unique<PrefetchIterator>(this, context);
  MR_RETURN_IF_ERROR(iterator->Begin(*this));
  return iterator;
}

}  // namespace

Dataset Dataset::Prefetch(int64_t buffer_size) const {
  if (!status_.ok()) return *this;
  if (buffer_size < 0 && buffer_size != kAutotune) {
    return Error(InvalidArgument(
        "Dataset.Prefetch: buffer_size must be >= 0 or -1 (autotune), got ", buffer_size));
  }
  if (buffer_size == 0) return *this;
  return MakeDataset<PrefetchNode>({*this}, buffer_size);
}

}  // namespace millrace::data
