// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_TESTING_ROW_STEP_H_
#define MILLRACE_SERVING_BATCHING_TESTING_ROW_STEP_H_

// RowStep: a step without a graph, for tests of batching: 10 x + 1 for each float of its input. It
// remembers the shapes that it ran with, can be held, and fails for a negative number.
//
// Thread-safety: all methods, from any thread.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"

namespace millrace {

class RowStep : public PreparedStep {
 public:
  using Body = std::function<StatusOr<Tensor>(const Tensor& input)>;
  explicit RowStep(Body body = TenTimesPlusOne) : body_(std::move(body)) {}

  static StatusOr<Tensor> TenTimesPlusOne(const Tensor& input) {
    MR_ASSIGN_OR_RETURN(Tensor output, input.Clone());
    for (float& value : output.mutable_flat<float>()) {
      if (value < 0) return InvalidArgument("row has a negative number");
      value = 10 * value + 1;
    }
    return output;
  }

  StatusOr<std::vector<Tensor>> Run(absl::Span<const Tensor> feeds) override {
    {
      MutexLock lock(&mu_);
      inputs_.push_back(feeds[0]);
      ++num_inside_;
      changed_.SignalAll();
      while (is_held_) changed_.Wait(&mu_);
      --num_inside_;
    }
    MR_ASSIGN_OR_RETURN(Tensor output, body_(feeds[0]));
    return std::vector<Tensor>{std::move(output)};
  }
  StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions&, absl::Span<const Tensor> feeds,
                                    tensorflow::RunMetadata*) override {
    return Run(feeds);
  }

  // Runs stop inside, from now on until Release.
  void Hold() {
    MutexLock lock(&mu_);
    is_held_ = true;
  }
  void AwaitInside(int n) {
    MutexLock lock(&mu_);
    while (num_inside_ < n) changed_.Wait(&mu_);
  }
  void Release() {
    MutexLock lock(&mu_);
    is_held_ = false;
    changed_.SignalAll();
  }

  // Of all runs so far, in the order in which they began.
  std::vector<Tensor> inputs() {
    MutexLock lock(&mu_);
    return inputs_;
  }
  std::vector<int64_t> rows() {
    std::vector<int64_t> rows;
    for (const Tensor& input : inputs()) rows.push_back(input.dim(0));
    return rows;
  }

 private:
  const Body body_;
  Mutex mu_;
  CondVar changed_;
  bool is_held_ ABSL_GUARDED_BY(mu_) = false;
  int num_inside_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Tensor> inputs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_TESTING_ROW_STEP_H_
