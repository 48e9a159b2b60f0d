// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_CONSTANT_EVALUATOR_H_
#define MILLRACE_RUNTIME_CONSTANT_EVALUATOR_H_

// KernelEvaluator: what `graph` asks of the runtime while a graph is built or placed: values of
// constant nodes (ConstantEvaluator) and which kernels exist (KernelSupport).
//
// Runs stateless synchronous kernels only, one node at a time, on a device of its own that has no
// variables; never control flow, Send or Recv, resources or references. A node whose outputs are
// large, or (when shapes cannot tell) whose inputs are, is left to the step that needs it.
//
// Thread-safety: all methods, from any thread.
// Failure: Unimplemented for a node that may not be evaluated here, else what the kernel says.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/place/kernel_support.h"
#include "graph/shape_inference.h"
#include "runtime/device.h"
#include "runtime/kernel.h"

namespace millrace {

class KernelEvaluator : public ConstantEvaluator {
 public:
  // TensorFlow's bound on folded constants.
  static constexpr int64_t kMaxBytes = int64_t{10} << 20;

  explicit KernelEvaluator(int64_t max_bytes = kMaxBytes);
  ~KernelEvaluator() override;

  StatusOr<std::vector<Tensor>> Evaluate(const Node& node,
                                         absl::Span<const Tensor> inputs) override;

 private:
  const int64_t max_bytes_;
  Device device_;
};

class KernelRegistrySupport : public KernelSupport {
 public:
  bool HasKernel(const tensorflow::NodeDef& node, absl::string_view device_type) const override;
  std::string DescribeKernels(absl::string_view op) const override;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_CONSTANT_EVALUATOR_H_
