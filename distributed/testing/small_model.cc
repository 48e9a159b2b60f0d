// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/small_model.h"

#include <atomic>
#include <utility>
#include <vector>

#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status ScalarOutput(InferenceContext* c) {
  c->set_output(0, PartialShape::Scalar());
  return absl::OkStatus();
}

std::atomic<int64_t> waits_begun{0};

// Ends with the step's cancellation.
class WaitKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto shared = std::make_shared<DoneCallback>(std::move(done));
    CancellationManager::Token token;
    if (!ctx->cancellation()->Register(
            &token, [shared] { (*shared)(absl::CancelledError("waited in vain")); })) {
      (*shared)(absl::CancelledError("waited in vain"));
      return;
    }
    waits_begun.fetch_add(1, std::memory_order_relaxed);
  }
};

// What TestSilent kernels wait with.
struct SilentKernels {
  Mutex mu;
  std::vector<AsyncKernel::DoneCallback> waiting ABSL_GUARDED_BY(mu);
};
SilentKernels& AllSilent() {
  static SilentKernels* const all = new SilentKernels;
  return *all;
}

class SilentKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext*, DoneCallback done) const override {
    MutexLock lock(&AllSilent().mu);
    AllSilent().waiting.push_back(std::move(done));
  }
};

class FailKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override {
    return absl::InvalidArgumentError("value must be better, got this one");
  }
};

const OpRegistration kWait = OpSpec("TestWait")
                                 .Output("y: float")
                                 .Stateful()
                                 .WaitsForSteps(WaitsForSteps::kMay)
                                 .Shape(ScalarOutput)
                                 .NotDifferentiable();
const OpRegistration kSilent = OpSpec("TestSilent")
                                   .Output("y: float")
                                   .Stateful()
                                   .WaitsForSteps(WaitsForSteps::kMay)
                                   .Shape(ScalarOutput)
                                   .NotDifferentiable();
const OpRegistration kFail =
    OpSpec("TestFail").Input("x: float").Output("y: float").Shape(ScalarOutput).NotDifferentiable();
const KernelRegistration kWaitKernel("TestWait", KernelFor<WaitKernel>());
const KernelRegistration kSilentKernel("TestSilent", KernelFor<SilentKernel>());
const KernelRegistration kFailKernel("TestFail", KernelFor<FailKernel>());

}  // namespace

int64_t TestWaitsBegun() { return waits_begun.load(std::memory_order_relaxed); }

void EndSilentKernels() {
  std::vector<AsyncKernel::DoneCallback> waiting;
  {
    MutexLock lock(&AllSilent().mu);
    waiting.swap(AllSilent().waiting);
  }
  for (AsyncKernel::DoneCallback& done : waiting) done(absl::CancelledError("told to end"));
}

}  // namespace millrace
