// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_WORKER_PARTS_H_
#define MILLRACE_TESTS_SCALING_WORKER_PARTS_H_

// WorkerParts: which examples a worker's batches are of.
//
// The examples are shuffled and dealt to the workers like cards. Each worker goes through its part
// in an order that is shuffled anew each time it begins again; a batch may have the end of one
// round and the beginning of the next. What a worker gets does not depend on when others ask.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument for a worker without an example.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/status.h"

namespace millrace::scaling {

class WorkerParts {
 public:
  static StatusOr<WorkerParts> Make(int64_t num_examples, int64_t workers, uint64_t seed);
  // The next `batch` examples of the worker, which is below `workers`.
  std::vector<size_t> Next(size_t worker, int64_t batch);

 private:
  struct Part {
    std::vector<size_t> examples;
    size_t next = 0;
    std::mt19937_64 random;
  };
  std::vector<Part> parts_;
};

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_WORKER_PARTS_H_
