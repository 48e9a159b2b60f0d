// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_EMBEDDING_CLICKS_H_
#define MILLRACE_EXAMPLES_EMBEDDING_CLICKS_H_

// Clicks: an endless stream of (user, item, clicked) with ids from a Zipf distribution.
//
// Whether an item is clicked depends on hidden tastes of the user and the item, which
// a hash of their ids decides, so a model can learn them and nothing needs a file.
//
// Thread-safety: thread-compatible.

#include <cstdint>
#include <random>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

struct ClickBatch {
  Tensor users;   // int64 [n]
  Tensor items;   // int64 [n]
  Tensor clicks;  // float [n, 1], 0 or 1
};

class ClickStream {
 public:
  // Ids are in [0, num_ids); num_ids >= 1. Streams of one seed are equal.
  ClickStream(int64_t num_ids, uint64_t seed);
  StatusOr<ClickBatch> Next(int64_t count);

 private:
  int64_t ZipfId();
  const int64_t num_ids_;
  std::mt19937_64 random_;
};

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_EMBEDDING_CLICKS_H_
