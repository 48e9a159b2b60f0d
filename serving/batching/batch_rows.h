// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCH_ROWS_H_
#define MILLRACE_SERVING_BATCHING_BATCH_ROWS_H_

// The rows of requests: counted, joined into the inputs of one step, and taken from its outputs.
//
//   request 0: [2,3]  \                              / [2,5]
//   request 1: [1,3]   > joined [4,3] -> step -> [4,5]  [1,5]
//   padding:   [1,3]  /  (the last request's first row)  dropped
//
// Thread-safety: functions of their arguments; StepRows from any thread.
// Failure: InvalidArgument for what does not join, ResourceExhausted where there is no memory.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// Dimension 0 of all feeds. InvalidArgument, with TensorFlow Serving's texts, where they have none
// or differ.
StatusOr<int64_t> BatchRowsOf(absl::Span<const Tensor> feeds);

// Whether tensors of these dtypes can be joined: not of resources, variants and references.
bool CanBeJoined(absl::Span<const Tensor> feeds);

// Whether rows of both fit into one batch: the same dtypes and shapes without dimension 0; with
// `ragged` the same dtypes and ranks. Both have rows.
bool FitTogether(absl::Span<const Tensor> a, absl::Span<const Tensor> b, bool ragged);

// The parts one after the other along dimension 0, then copies of the last part's first row up to
// `padded_rows`. Shapes may differ only in dimension 0, or, with `ragged`, in any: then each part
// is filled up behind its elements with its first one. At least one part; all have rows.
StatusOr<Tensor> JoinRows(absl::Span<const Tensor* const> parts, int64_t padded_rows, bool ragged);

// What is known of a step: do its outputs have a row for each row of its inputs?
//
//   unknown --matches n rows--> seen(n) --matches another number--> per row
//      \                          \                                   |
//       +--------------------------+-----------does not match---------+--> alone
//
// One number proves nothing: an output of constant shape [3] matches a batch of 3. Only a step that
// is proven per row may be split among requests, so no request gets what is not its own.
class StepRows {
 public:
  // `label`: whose step, for the log.
  explicit StepRows(std::string label) : label_(std::move(label)) {}

  bool is_per_row() const { return state_.load(std::memory_order_relaxed) == kPerRow; }
  bool is_alone() const { return state_.load(std::memory_order_relaxed) == kAlone; }
  // Learns from a run with `rows` >= 1 rows. Whether all outputs have so many; the first time they
  // have not, the log says so.
  bool Note(int64_t rows, absl::Span<const Tensor> outputs);

 private:
  static constexpr int64_t kUnknown = 0, kPerRow = -1, kAlone = -2;  // above 0: seen
  const std::string label_;
  std::atomic<int64_t> state_{kUnknown};  // relaxed: guards nothing else
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCH_ROWS_H_
