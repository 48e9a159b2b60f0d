// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_INPUT_QUEUES_H_
#define MILLRACE_TRAIN_INPUT_QUEUES_H_

// Input queues: TensorFlow's input pipelines of before its datasets, in the graph alone: a queue of
// file names, a reader of rows (data/readers.h), a queue of batches. Threads of the queue runners
// (train/queue_runner.h), which a MonitoredSession and a Supervisor start, fill the queues.
//
//   Output files = StringInputProducer(root, {"a.csv", "b.csv"}, {.num_epochs = 2});
//   Output line = ReaderReadV2(root, TextLineReaderV2(root), files).value;
//   Output lines = ShuffleBatch(root, {line}, 32, {.capacity = 1000, .min_after_dequeue = 500})[0];
//
// Queues are on the device of the scope, as a rule the task's own. Each function makes a sub-scope
// of TensorFlow's name ("input_producer", "batch", "shuffle_batch"), or of the scope's WithName,
// with a summary of how full its queue is.
//
// With num_epochs the data ends: dequeues, and so the training step, fail with OutOfRange, which is
// a clean end of a loop. The epochs are counted in a local variable.
//
// New programs take a dataset (data/dataset.h).
//
// Failure: InvalidArgument into the Scope.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/shape.h"
#include "graph/scope.h"

namespace millrace {

struct InputProducerAttrs {
  std::optional<int64_t> num_epochs = std::nullopt;  // none: for ever
  bool shuffle = true;                               // each epoch in another order
  std::optional<int64_t> seed = std::nullopt;
  int64_t capacity = 32;
  std::string shared_name = "";
};
// A queue (its handle) of the rows of `rows`, whose shape must be known but for the first
// dimension.
Output InputProducer(ScopeAt at, Output rows, const InputProducerAttrs& attrs = {});
// Of texts; at least one.
Output StringInputProducer(ScopeAt at, const std::vector<std::string>& strings,
                           const InputProducerAttrs& attrs = {});

struct BatchAttrs {
  int num_threads = 1;
  int64_t capacity = 32;      // elements
  bool enqueue_many = false;  // `tensors` are rows already
  bool dynamic_pad = false;   // elements may differ in the dimensions that are not known
  bool allow_smaller_final_batch = false;
  std::string shared_name = "";
};
// Batches of what `tensors` give in one run after the other: one output for each, with `batch_size`
// rows.
std::vector<Output> Batch(ScopeAt at, absl::Span<const Output> tensors, int batch_size,
                          const BatchAttrs& attrs = {});
inline std::vector<Output> Batch(ScopeAt at, std::initializer_list<Output> tensors, int batch_size,
                                 const BatchAttrs& attrs = {}) {
  return Batch(at, absl::MakeConstSpan(tensors.begin(), tensors.size()), batch_size, attrs);
}

struct ShuffleBatchAttrs {
  int num_threads = 1;
  int64_t capacity = 0;           // > min_after_dequeue
  int64_t min_after_dequeue = 0;  // what batches are drawn from, besides the batch
  std::optional<int64_t> seed = std::nullopt;
  bool enqueue_many = false;
  bool allow_smaller_final_batch = false;
  std::string shared_name = "";
};
// The same, drawn at random from the queue.
std::vector<Output> ShuffleBatch(ScopeAt at, absl::Span<const Output> tensors, int batch_size,
                                 const ShuffleBatchAttrs& attrs);
inline std::vector<Output> ShuffleBatch(ScopeAt at, std::initializer_list<Output> tensors,
                                        int batch_size, const ShuffleBatchAttrs& attrs) {
  return ShuffleBatch(at, absl::MakeConstSpan(tensors.begin(), tensors.size()), batch_size, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_TRAIN_INPUT_QUEUES_H_
