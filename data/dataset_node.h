// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DATASET_NODE_H_
#define MILLRACE_DATA_DATASET_NODE_H_

// DatasetNode: one source or transformation of a Dataset. ElementIterator: one run over it.
//
// This is what authors of datasets implement (the families of this folder, dataset ops, users);
// who only uses datasets needs data/dataset.h.
//
// A node is immutable. Its iterators make a tree as the nodes do; an iterator is called by one
// thread at a time, not always the same. Rules for both Next and NextBlock:
//   * the end repeats;
//   * an error that was returned is over: the call after it makes progress or ends. Otherwise
//     IgnoreErrors would not end;
//   * a loop that may give no element for long looks at cancellation().
//
// Random numbers and orders are functions of the context alone (its seeds, `path` and `pass`), so
// an iterator that is made again with the same context gives the same elements.
//
// Lifetime: nodes outlive their iterators (the Iterator keeps the Dataset; code that makes datasets
// while iterating keeps them). The environment and its pools outlive all iterators of a tree; a
// destructor waits for what it has running on a pool.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cancellation.h"  // IWYU pragma: export
#include "core/mutex.h"
#include "core/status.h"          // IWYU pragma: export
#include "data/block.h"           // IWYU pragma: export
#include "data/dataset.h"         // IWYU pragma: export
#include "data/element.h"         // IWYU pragma: export
#include "data/iterator.h"        // IWYU pragma: export
#include "data/iterator_state.h"  // IWYU pragma: export

namespace millrace::data {

// Time spent in one kind of work, by any thread.
class WorkTime {
 public:
  void Add(std::chrono::steady_clock::duration time, int64_t times = 1) {
    ns_.fetch_add(std::chrono::nanoseconds(time).count() * times, std::memory_order_relaxed);
  }
  int64_t ns() const { return ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> ns_{0};  // relaxed: a figure
};

// Adds the time of its life to `time`: of every kSample-th, as often.
class TimedWork {
 public:
  static constexpr int64_t kSample = 16;
  // `count` is the caller's: how many there were.
  TimedWork(WorkTime* time, int64_t* count)
      : time_((*count)++ % kSample == 0 ? time : nullptr), times_(kSample) {
    if (time_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  // Every one: for work of many microseconds.
  explicit TimedWork(WorkTime* time) : time_(time), times_(1) {
    start_ = std::chrono::steady_clock::now();
  }
  ~TimedWork() {
    if (time_ != nullptr) time_->Add(std::chrono::steady_clock::now() - start_, times_);
  }
  TimedWork(const TimedWork&) = delete;
  TimedWork& operator=(const TimedWork&) = delete;

 private:
  WorkTime* const time_;
  const int64_t times_;
  std::chrono::steady_clock::time_point start_;
};

// What all iterators of one tree share.
struct IteratorEnvironment {
  IteratorOptions options;  // pointers filled in
  // What unseeded shuffles are made of: drawn once, part of the state.
  uint64_t base_seed = 0;
  WorkTime source_time, function_time;
  std::atomic<int64_t> dropped{0};  // by IgnoreErrors; relaxed: a figure
  CancellationManager cancellation;
  // Memory caches and what was logged, by the path of the iterator that made them.
  Mutex mu;
  std::map<uint64_t, std::shared_ptr<void>> shared ABSL_GUARDED_BY(mu);
};

struct IteratorContext {
  IteratorEnvironment* environment = nullptr;
  // Of this part of the tree.
  CancellationManager* cancellation = nullptr;
  // Where in the tree: a function of the numbers of the inputs on the way from the root.
  uint64_t path = 1;
  // The number of this run over its part of the tree, from 0 on.
  uint64_t pass = 0;

  // For input number `index`.
  IteratorContext Input(uint64_t index = 0) const;
  Status CheckNotCancelled() const;
  // The seeds of a generator with the seeds (seed, seed2) of the user, for this place and pass.
  struct Seeds {
    uint64_t first, second;
  };
  Seeds SeedsFor(int64_t seed, int64_t seed2, bool new_each_pass) const;
};

// Is cancelled with `parent` and, at the latest, when it is destroyed.
class ChildCancellation {
 public:
  explicit ChildCancellation(CancellationManager* parent);
  ~ChildCancellation();
  CancellationManager* get() { return &own_; }
  ChildCancellation(const ChildCancellation&) = delete;
  ChildCancellation& operator=(const ChildCancellation&) = delete;

 private:
  CancellationManager* const parent_;
  CancellationManager own_;
  CancellationManager::Token token_ = -1;
};

class ElementIterator {
 public:
  virtual ~ElementIterator() = default;
  // False: the end, and `element` is not used. It may hold an older element before.
  virtual StatusOr<bool> Next(Element* element) = 0;
  // Between 1 and `max_rows` elements; false: the end. Only where ServesBlocks, which never
  // changes. It does not wait for more rows when it has some.
  virtual bool ServesBlocks() const { return false; }
  virtual StatusOr<bool> NextBlock(int64_t max_rows, Block* block);
  // The same for readers that need all of the rows: it may wait for more when it has some, and an
  // error takes those that it has along. Fewer than `max_rows` are no sign of the end.
  virtual StatusOr<bool> NextRows(int64_t max_rows, Block* block) {
    return NextBlock(max_rows, block);
  }
  virtual bool NextIsReady() const { return false; }
  // Next does nothing but compute on what is in memory, and not for long: it may be called where
  // nobody may block.
  virtual bool NeverWaits() const { return false; }

  // Called while nobody calls Next; Restore on an iterator that has given no element.
  virtual Status Save(StateWriter* state) = 0;
  virtual Status Restore(StateReader* state) = 0;
};

class DatasetNode {
 public:
  DatasetNode(ElementSpec spec, int64_t cardinality, std::vector<Dataset> inputs = {})
      : spec_(std::move(spec)), cardinality_(cardinality), inputs_(std::move(inputs)) {}
  virtual ~DatasetNode() = default;
  DatasetNode(const DatasetNode&) = delete;
  DatasetNode& operator=(const DatasetNode&) = delete;

  // "Batch(4)": kind and parameters, without inputs.
  virtual std::string Text() const = 0;
  virtual StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const = 0;

  const ElementSpec& spec() const { return spec_; }
  int64_t cardinality() const { return cardinality_; }
  const std::vector<Dataset>& inputs() const { return inputs_; }
  const DatasetNode& input(size_t i = 0) const { return *inputs_[i].node(); }

 private:
  const ElementSpec spec_;
  const int64_t cardinality_;
  const std::vector<Dataset> inputs_;
};

// An iterator over one input, which may be over before it: what it saves is this and the input.
class EndableIterator : public ElementIterator {
 public:
  EndableIterator(const IteratorContext& context, std::unique_ptr<ElementIterator> input)
      : context_(context), input_(std::move(input)) {}
  Status Save(StateWriter* state) override;
  Status Restore(StateReader* state) override;

 protected:
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  bool ended_ = false;  // Next gives nothing more
};

// The iterator of input number `index`.
StatusOr<std::unique_ptr<ElementIterator>> MakeInput(const DatasetNode& node,
                                                     const IteratorContext& context,
                                                     size_t index = 0);

// A dataset whose iterators are `It(const Node*, IteratorContext, input iterator)`, for
// transformations of one input.
template <typename Node, typename It>
StatusOr<std::unique_ptr<ElementIterator>> MakeOver(const Node* node,
                                                    const IteratorContext& context) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> input, MakeInput(*node, context));
  return std::make_unique<It>(node, context, std::move(input));
}

// The node, or the error of the first input that has one.
template <typename Node, typename... Args>
Dataset MakeDataset(const std::vector<Dataset>& inputs, Args&&... args) {
  for (const Dataset& input : inputs) {
    if (!input.status().ok()) return input;
  }
  return Dataset::FromNode(std::make_shared<const Node>(inputs, std::forward<Args>(args)...));
}

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DATASET_NODE_H_
