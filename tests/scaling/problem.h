// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_PROBLEM_H_
#define MILLRACE_TESTS_SCALING_PROBLEM_H_

// Problem: examples to train on, others to judge by, and the model that learns them: whether
// something is so (a click, a high income).
//
// Examples to train on have indices from 0 on; the others are one batch.
//
// Thread-safety: immutable. Failure: a Status of the data; of Build in the scope.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"

namespace millrace::scaling {

struct ModelNodes {
  std::vector<Output> inputs;  // placeholders: of the features, and behind them of the labels
  Output logit;                // float [n, 1]
  Output loss;                 // the mean over the batch
};

// Values of ModelNodes::inputs, in their order. Labels are float [n, 1], 0 or 1.
using ExampleBatch = std::vector<Tensor>;

class Problem {
 public:
  virtual ~Problem() = default;
  virtual int64_t num_train() const = 0;
  // Indices are below num_train().
  virtual StatusOr<ExampleBatch> Train(const std::vector<size_t>& examples) const = 0;
  virtual const ExampleBatch& held_out() const = 0;
  // Variables that look up rows, and others. Random initial values are of the graph's seed.
  virtual ModelNodes Build(const Scope& scope) const = 0;
};

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_PROBLEM_H_
