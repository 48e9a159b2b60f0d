// SPDX-License-Identifier: Apache-2.0
#include "runtime/constant_evaluator.h"

#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/pure.h"
#include "proto/node_def.pb.h"
#include "runtime/resource_manager.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

constexpr char kDeviceName[] = "/job:localhost/replica:0/task:0/device:CPU:0";

Status NotHere(const Node& node, absl::string_view why) {
  return Unimplemented(node.op(), " '", node.name(),
                       "' is not evaluated while the graph is built: ", why);
}

class KnownInputs : public InferenceContext::Source {
 public:
  explicit KnownInputs(absl::Span<const Tensor> inputs) : inputs_(inputs) {}
  const Tensor* ConstantInput(int i) override { return &inputs_[static_cast<size_t>(i)]; }
  StatusOr<PartialShape> ShapeInput(int i) override { return ShapeOfElements(*ConstantInput(i)); }
  std::optional<PartialValue> PartialInput(int) override { return std::nullopt; }

 private:
  absl::Span<const Tensor> inputs_;
};

// Bytes of all outputs before anything is allocated; none when the shape function cannot tell.
StatusOr<std::optional<int64_t>> OutputBytes(const Node& node, absl::Span<const Tensor> inputs) {
  std::vector<PartialShape> shapes;
  for (const Tensor& input : inputs) shapes.emplace_back(input.shape());
  KnownInputs source(inputs);
  InferenceContext context(node.attrs(), &node.op_entry()->def, std::move(shapes),
                           std::vector<std::optional<HandleData>>(inputs.size()),
                           node.num_outputs(), &source);
  MR_RETURN_IF_ERROR(node.op_entry()->shape_fn(&context));
  int64_t bytes = 0;
  for (int i = 0; i < node.num_outputs(); ++i) {
    const PartialShape& shape = context.outputs()[static_cast<size_t>(i)];
    if (!shape.IsFullyDefined()) return std::optional<int64_t>();
    // Strings count as their objects. At most 2^40 elements of 32 bytes each: no overflow in few.
    const int64_t size = static_cast<int64_t>(DTypeSize(node.output_type(i)));
    const int64_t element = size == 0 ? static_cast<int64_t>(sizeof(std::string)) : size;
    if (shape.num_elements() > (std::numeric_limits<int64_t>::max() - bytes) / element) {
      return std::optional<int64_t>(std::numeric_limits<int64_t>::max());
    }
    bytes += shape.num_elements() * element;
  }
  return std::optional<int64_t>(bytes);
}

}  // namespace

KernelEvaluator::KernelEvaluator(int64_t max_bytes) : max_bytes_(max_bytes) {
  device_.name = kDeviceName;
  device_.type = "CPU";
  device_.incarnation = 1;
  device_.resources = std::make_unique<ResourceManager>(kDeviceName);
}

KernelEvaluator::~KernelEvaluator() = default;

StatusOr<std::vector<Tensor>> KernelEvaluator::Evaluate(const Node& node,
                                                        absl::Span<const Tensor> inputs) {
  MR_RETURN_IF_ERROR(CheckIsPure(node));
  if (static_cast<int>(inputs.size()) != node.num_inputs()) {
    return Internal(node.op(), " '", node.name(), "' must have ", node.num_inputs(),
                    " input values, got ", inputs.size());
  }
  int64_t input_bytes = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype() != node.input_type(static_cast<int>(i))) {
      return InvalidArgument(node.op(), " '", node.name(), "': input ", i, " must be ",
                             DTypeName(node.input_type(static_cast<int>(i))), ", got ",
                             DTypeName(inputs[i].dtype()));
    }
    input_bytes += inputs[i].TotalBytes();
  }
  MR_ASSIGN_OR_RETURN(const std::optional<int64_t> output_bytes, OutputBytes(node, inputs));
  if (output_bytes.value_or(input_bytes) > max_bytes_) {
    return NotHere(node, absl::StrCat("its result may have ", output_bytes.value_or(input_bytes),
                                      " bytes, more than ", max_bytes_));
  }

  const NamedAttrs attrs(node);
  KernelConstruction construction(attrs.attrs(), &node.op_entry()->def, &device_,
                                  node.input_types(), node.output_types(), kGraphVersion);
  StepContext step;
  step.device = &device_;
  step.arena = Arena::Default();
  step.io_pool = IoPool::Default();
  CancellationManager cancellation;
  step.cancellation = &cancellation;
  step.step_resources = device_.resources.get();
  std::vector<EdgeValue> in(inputs.begin(), inputs.end());
  std::vector<EdgeValue> out(static_cast<size_t>(node.num_outputs()));
  const KernelFrame frame{.step = &step,
                          .node_name = &node.name(),
                          .inputs = in.data(),
                          .outputs = out.data(),
                          .output_types = node.output_types().data(),
                          .num_inputs = static_cast<uint32_t>(in.size()),
                          .num_outputs = static_cast<uint32_t>(out.size())};
  KernelContext context(&frame);
  try {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<Kernel> kernel, MakeKernel(&construction));
    if (kernel->AsAsync() != nullptr) return NotHere(node, "its kernel waits");
    MR_RETURN_IF_ERROR(kernel->Compute(&context));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(node.op(), " '", node.name(), "': out of memory"));
  } catch (const std::exception& e) {
    return Internal(node.op(), " '", node.name(), "': ", e.what());
  }
  std::vector<Tensor> results;
  for (int i = 0; i < node.num_outputs(); ++i) {
    EdgeValue& value = out[static_cast<size_t>(i)];
    if (value.dtype() != node.output_type(i)) {
      return Internal(node.op(), " '", node.name(), "': output ", i, " must be ",
                      DTypeName(node.output_type(i)), ", got ",
                      value.has_value() ? DTypeName(value.dtype()) : "no value");
    }
    results.push_back(std::move(value));
  }
  return results;
}

bool KernelRegistrySupport::HasKernel(const tensorflow::NodeDef& node,
                                      absl::string_view device_type) const {
  return millrace::HasKernel(node, device_type);
}

std::string KernelRegistrySupport::DescribeKernels(absl::string_view op) const {
  return millrace::DescribeKernels(op);
}

}  // namespace millrace
