// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCH_PARAMETERS_H_
#define MILLRACE_SERVING_BATCHING_BATCH_PARAMETERS_H_

// BatchParameters: how requests are batched, as a file of TensorFlow Serving says it: a
// tensorflow.serving.BatchingParameters as text. What a file leaves out has TensorFlow Serving's
// default.
//
// Invariants of what ReadBatchParameters returns: all numbers but the time are positive;
// max_execution_batch_size <= max_batch_size; allowed_batch_sizes increase, and the last one is
// max_execution_batch_size.
//
// Thread-safety: a value.
// Failure: InvalidArgument with TensorFlow Serving's texts where it has them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

struct BatchParameters {
  // Rows of one request. Without splitting, also of one batch.
  int64_t max_batch_size = 1000;
  // How long a batch that is not full stays open for others, from its first task on. 0: it is
  // ready at once.
  absl::Duration batch_timeout = absl::ZeroDuration();
  // Of one queue; that many wait, the next one is refused.
  int64_t max_enqueued_batches = 10;
  // Threads that run batches, for all queues of a server. 0: one per core.
  int num_batch_threads = 0;
  std::string thread_pool_name = "batch_threads";
  // Batches are padded up to the next of these. Empty: not padded.
  std::vector<int64_t> allowed_batch_sizes = {};
  // Rows of different shapes join a batch; smaller ones are padded with their tensor's first
  // element.
  bool pad_variable_length_inputs = false;
  // A request with more rows than fit into a batch is run in several.
  bool enable_large_batch_splitting = false;
  // Rows of one batch.
  int64_t max_execution_batch_size = 1000;
};

StatusOr<BatchParameters> ReadBatchParameters(absl::string_view text);

// Rows that a batch of `rows` has after padding: the smallest allowed size that is not less, `rows`
// where there is none. `allowed` increases.
int64_t PaddedBatchSize(const std::vector<int64_t>& allowed, int64_t rows);

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCH_PARAMETERS_H_
