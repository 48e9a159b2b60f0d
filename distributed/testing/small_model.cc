// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/small_model.h"

#include "core/cancellation.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status ScalarOutput(InferenceContext* c) {
  c->set_output(0, PartialShape::Scalar());
  return absl::OkStatus();
}

// Ends with the step's cancellation.
class WaitKernel : public AsyncKernel {
 public:
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    auto shared = std::make_shared<DoneCallback>(std::move(done));
    CancellationManager::Token token;
    if (!ctx->cancellation()->Register(
            &token, [shared] { (*shared)(absl::CancelledError("waited in vain")); })) {
      (*shared)(absl::CancelledError("waited in vain"));
    }
  }
};

class FailKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override {
    return absl::InvalidArgumentError("value must be better, got this one");
  }
};

const OpRegistration kWait =
    OpSpec("TestWait").Output("y: float").Stateful().Shape(ScalarOutput).NotDifferentiable();
const OpRegistration kFail =
    OpSpec("TestFail").Input("x: float").Output("y: float").Shape(ScalarOutput).NotDifferentiable();
const KernelRegistration kWaitKernel = KernelFor<WaitKernel>("TestWait");
const KernelRegistration kFailKernel = KernelFor<FailKernel>("TestFail");

}  // namespace
}  // namespace millrace
