// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_EXECUTOR_FIXTURE_H_
#define MILLRACE_RUNTIME_TESTING_EXECUTOR_FIXTURE_H_

// ExecutorTest: what the tests of the executor share: hooks "sum" and "fail" for TestProbe
// (step_ops.h), and a journal of the nodes that ran them.

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "gtest/gtest.h"
#include "runtime/kernel.h"
#include "runtime/testing/step_ops.h"

namespace millrace::testing {

// The nodes that ran, in their order.
class Journal {
 public:
  void Add(const std::string& name) {
    MutexLock lock(&mu_);
    order_.push_back(name);
  }
  std::vector<std::string> order() {
    MutexLock lock(&mu_);
    return order_;
  }
  std::map<std::string, int> counts() {
    std::map<std::string, int> counts;
    for (const std::string& name : order()) ++counts[name];
    return counts;
  }
  bool Has(const std::string& name) { return counts().count(name) != 0; }
  void Clear() {
    MutexLock lock(&mu_);
    order_.clear();
  }

 private:
  Mutex mu_;
  std::vector<std::string> order_ ABSL_GUARDED_BY(mu_);
};

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() {
    // Passes the sum of its inputs on to all outputs.
    SetHook("sum", [this](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) sum += ctx->input(i).scalar<float>();
      for (int i = 0; i < ctx->num_outputs(); ++i) {
        ctx->set_output(i, Tensor::Scalar<float>(sum));
        last_ = sum;
      }
      if (ctx->num_outputs() == 0) last_ = sum;
      return absl::OkStatus();
    });
    SetHook("fail", [this](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      return absl::InvalidArgumentError("wanted");
    });
  }
  ~ExecutorTest() override { ClearHooks(); }

  Journal journal_;
  std::atomic<float> last_{0};
};

}  // namespace millrace::testing

#endif  // MILLRACE_RUNTIME_TESTING_EXECUTOR_FIXTURE_H_
