// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_OP_TEST_H_
#define MILLRACE_RUNTIME_TESTING_OP_TEST_H_

// op_test: what tests of op families use: one op, or a small graph, without a session.
//
//   auto y = RunOp(OpCall("MatMul").Input(a).Input(b).Attr("transpose_a", true));
//   EXPECT_SHAPE("MatMul", {{"transpose_b", true}}, {"[2,3]", "[?,3]"}, "[2,?]");
//   EXPECT_SHAPE_ERROR("MatMul", {}, {"[2,3]", "[4,5]"}, "must agree");
//   ExpectGradientsMatch([](const Scope& s, const std::vector<Output>& x) {
//     return MatMul(s, x[0], x[1]); }, {a, b});
//
// Whatever else a test looks at, RunOp makes the test fail when
//   * an output has another dtype than the op says, or is missing;
//   * the shape function contradicts the outputs: with shapes and constant values known, with
//     shapes known, and with nothing known;
//   * a stateless kernel changes an input that others share, or gives other results when its
//     inputs' memory is free to be reused.
// The test binary links the op families that it runs, and those that gradients use.
//
// Thread-safety: one thread at a time per OpTestDevice. Results that the caller asked for come as
// Status; broken rules of this file are reported to GoogleTest.

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/tensor.h"                  // IWYU pragma: export
#include "core/testing/tensor_testing.h"  // IWYU pragma: export
#include "graph/attr.h"
#include "graph/scope.h"  // IWYU pragma: export
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"      // IWYU pragma: export
#include "runtime/rendezvous.h"  // IWYU pragma: export
#include "runtime/resource_manager.h"
#include "runtime/step_context.h"      // IWYU pragma: export
#include "runtime/variable_storage.h"  // IWYU pragma: export

namespace millrace {

// A CPU device with what a step needs. Calls that share one see each other's resources.
class OpTestDevice {
 public:
  explicit OpTestDevice(int num_threads = 2);
  ~OpTestDevice();

  Device* device() { return &device_; }
  ResourceManager* resources() { return device_.resources.get(); }
  CancellationManager* cancellation() { return &cancellation_; }
  Rendezvous* rendezvous() { return rendezvous_.get(); }
  const StepContext& step() const { return step_; }
  // For what only some kernels use: args, results, session_handle.
  StepContext* mutable_step() { return &step_; }
  // Runs the functions of a graph that kernels call.
  FunctionRunner* functions() { return functions_.get(); }

  // Registers the resource and returns a scalar handle tensor for it.
  template <typename T>
  Tensor Handle(absl::string_view name, std::shared_ptr<T> resource) {
    const Status created = resources()->Create<T>("", name, resource);
    EXPECT_TRUE(created.ok()) << created;
    return Tensor::Scalar<ResourceHandle>(
        resources()->MakeHandle<T>("", name, std::move(resource)));
  }
  // A variable that holds `value`, with its handle (which knows dtype and shape).
  Tensor VariableHandle(absl::string_view name, const Tensor& value);

 private:
  Device device_;
  std::unique_ptr<Arena> arena_;
  CancellationManager cancellation_;
  std::shared_ptr<Rendezvous> rendezvous_;
  ResourceManager step_resources_;
  StepContext step_;
  std::unique_ptr<FunctionRunner> functions_;
};

// A variable that holds `value`, for reference inputs.
std::shared_ptr<VariableStorage> TestVariable(absl::string_view name, const Tensor& value);

// One input of an OpCall.
struct OpInput {
  OpInput(Tensor t) : dtype(t.dtype()), tensor(std::move(t)), has_value(true) {}  // NOLINT
  OpInput(std::shared_ptr<VariableStorage> variable)                              // NOLINT
      : dtype(RefOf(variable->dtype())), ref(std::move(variable)), has_value(true) {}
  static OpInput Dead(DType dtype) { return OpInput(dtype); }
  DType dtype;
  Tensor tensor;
  std::shared_ptr<VariableStorage> ref;
  bool has_value;

 private:
  explicit OpInput(DType t) : dtype(t), has_value(false) {}
};

class OpCall {
 public:
  explicit OpCall(absl::string_view op) : op_(op) {}

  OpCall& Input(OpInput input) {
    inputs_.push_back({false, {std::move(input)}});
    return *this;
  }
  // A list argument.
  OpCall& Inputs(std::vector<OpInput> inputs) {
    inputs_.push_back({true, std::move(inputs)});
    return *this;
  }
  OpCall& InputRef(std::shared_ptr<VariableStorage> variable) {
    return Input(OpInput(std::move(variable)));
  }
  // Needed only for attrs that the inputs do not determine.
  template <typename T>
  OpCall& Attr(absl::string_view name, const T& value) {
    tensorflow::AttrValue attr;
    SetAttr(value, &attr);
    attrs_.emplace_back(std::string(name), std::move(attr));
    return *this;
  }
  OpCall& Name(absl::string_view node_name) {
    name_ = std::string(node_name);
    return *this;
  }
  // Shared with other calls; a fresh device otherwise. Outlives the call.
  OpCall& On(OpTestDevice* device) {
    device_ = device;
    return *this;
  }
  // Outputs without a value are fine (Switch, Recv); they come as Tensor().
  OpCall& AllowDeadOutputs() {
    allow_dead_ = true;
    return *this;
  }

 private:
  friend class OpRunner;
  struct Argument {
    bool is_list;
    std::vector<OpInput> inputs;
  };
  std::string op_;
  std::string name_ = "op";
  std::vector<Argument> inputs_;
  std::vector<std::pair<std::string, tensorflow::AttrValue>> attrs_;
  OpTestDevice* device_ = nullptr;
  bool allow_dead_ = false;
};

// Runs the kernel. For a reference output the value of the variable afterwards. The error is that
// of building the node (attrs), of building the kernel or of the kernel.
StatusOr<std::vector<Tensor>> RunOp(const OpCall& call,
                                    std::source_location where = std::source_location::current());
// The first output; a failed test and Tensor() when there is an error.
Tensor RunOp1(const OpCall& call, std::source_location where = std::source_location::current());
// The call must fail with this code and a message that contains `text`.
void ExpectOpError(const OpCall& call, absl::StatusCode code, absl::string_view text,
                   std::source_location where = std::source_location::current());

// --- Shape functions ---------------------------------------------------------------------------

// {"transpose_a", true}
struct OpAttr {
  template <typename T>
  OpAttr(absl::string_view n, const T& v) : name(n) {
    SetAttr(v, &value);
  }
  std::string name;
  tensorflow::AttrValue value;
};

// An input: its shape as text ("[2,?]", "<unknown>"), or a constant.
struct ShapeInput {
  ShapeInput(const char* text) : shape_text(text) {}             // NOLINT
  ShapeInput(std::string text) : shape_text(std::move(text)) {}  // NOLINT
  ShapeInput(Tensor value) : constant(std::move(value)) {}       // NOLINT
  // A resource handle: what it holds.
  ShapeInput(DType dtype, absl::string_view shape)
      : shape_text("[]"), handle_dtype(dtype), handle_shape(shape) {}
  std::string shape_text;
  Tensor constant;
  DType handle_dtype = DT_INVALID;
  std::string handle_shape;
};

// The output shapes as text, joined by ";". Type attrs that are not given: taken from constants,
// else the default, else float (or the first allowed type); N from the number of inputs.
StatusOr<std::string> InferShapeText(absl::string_view op, std::initializer_list<OpAttr> attrs,
                                     std::initializer_list<ShapeInput> inputs);
void ExpectShape(absl::string_view op, std::initializer_list<OpAttr> attrs,
                 std::initializer_list<ShapeInput> inputs, absl::string_view outputs,
                 std::source_location where = std::source_location::current());
void ExpectShapeError(absl::string_view op, std::initializer_list<OpAttr> attrs,
                      std::initializer_list<ShapeInput> inputs, absl::string_view text,
                      std::source_location where = std::source_location::current());
#define EXPECT_SHAPE(...) ::millrace::ExpectShape(__VA_ARGS__)
#define EXPECT_SHAPE_ERROR(...) ::millrace::ExpectShapeError(__VA_ARGS__)

// --- Small graphs ------------------------------------------------------------------------------

// A node whose value is fed.
Output TestInput(const Scope& scope, DType dtype, const PartialShape& shape = PartialShape());

// Values of `fetches`: nodes run one after the other in topological order. Conditionals are fine,
// loops are not. A fresh device when `device` is null.
StatusOr<std::vector<Tensor>> EvaluateGraph(const Scope& scope,
                                            const std::vector<std::pair<Output, Tensor>>& feeds,
                                            const std::vector<Output>& fetches,
                                            OpTestDevice* device = nullptr);

// --- Gradients ---------------------------------------------------------------------------------

struct GradientCheckOptions {
  // Step of the central difference; 0 = 1e-5 for double, 1e-2 for float and narrower.
  double eps = 0;
  // Of |analytic - numeric| / max(1, |analytic|, |numeric|); 0 = 1e-6 for double, 2e-2 otherwise.
  double tol = 0;
  // Inputs (by index) that get no gradient and are not checked, besides those of integer types.
  std::vector<int> constant_inputs = {};
  // The graph is checked with static shapes and, unless this is false, with unknown ones.
  bool also_unknown_shapes = true;
  // For inputs that are variable handles (VariableHandle of this device): checked by changing the
  // variable.
  OpTestDevice* device = nullptr;
};

using BuildOutput = std::function<Output(const Scope&, const std::vector<Output>&)>;
using BuildOutputs = std::function<std::vector<Output>(const Scope&, const std::vector<Output>&)>;

// The gradients that AddGradients makes of a random weighted sum of all output elements must equal
// finite differences in every element of every floating or complex input.
void ExpectGradientsMatch(const BuildOutputs& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options = {},
                          std::source_location where = std::source_location::current());
void ExpectGradientsMatch(const BuildOutput& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options = {},
                          std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_TESTING_OP_TEST_H_
