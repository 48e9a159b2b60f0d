// SPDX-License-Identifier: Apache-2.0
//
// Small graphs and gradients of op_test.h.
#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/status.h"
#include "graph/central_difference.h"
#include "graph/copy.h"
#include "graph/function_body.h"
#include "graph/function_library.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/rewrite/calls.h"
#include "graph/shape_inference.h"
#include "runtime/function_runner.h"
#include "runtime/testing/op_test.h"
#include "runtime/testing/op_test_internal.h"

namespace millrace {

using op_test_internal::HandleDataOf;
using op_test_internal::MakeNodeKernel;
using op_test_internal::RunNode;
using op_test_internal::Trace;
using ::testing::ScopedTrace;

// --- Small graphs ------------------------------------------------------------------------------

namespace {

Output TestInputNode(const Scope& scope, DType dtype, const PartialShape& shape,
                     const std::optional<HandleData>& handle) {
  const Scope named = scope.WithName("input");
  NodeBuilder builder(named, "_OpTestInput");
  builder.Attr("dtype", dtype).Attr("shape", shape);
  if (handle) builder.Attr("handle_dtype", handle->dtype).Attr("handle_shape", handle->shape);
  return builder.Finish().output(0);
}

// Nodes in an order in which they can run one after the other, with their kernels. Calls of
// functions run as the nodes of these, in a copy of the graph.
class NodeOrder {
 public:
  NodeOrder(OpTestDevice* device) : device_(device) {}

  Status Build(absl::Span<const Output> fetches, absl::Span<const Output> feeds) {
    for (const Output& fetch : fetches) {
      if (!fetch.valid()) return absl::InvalidArgumentError("a fetch is no output of a node");
    }
    if (!fetches.empty()) MR_RETURN_IF_ERROR(InlineFunctions(fetches, feeds));
    return BuildOwn(fetches, feeds);
  }
  // Of a graph without calls; also the nodes of `others` run.
  Status BuildOwn(absl::Span<const Output> fetches, absl::Span<const Output> feeds,
                  absl::Span<Node* const> others = {}) {
    for (const Output& feed : feeds) fed_.insert(Own(feed));
    for (Node* const node : others) MR_RETURN_IF_ERROR(VisitNode(node));
    for (const Output& fetch : fetches) {
      fetches_.push_back(Own(fetch));
      MR_RETURN_IF_ERROR(Visit(fetches_.back()));
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<Tensor>> Run(const std::vector<std::pair<Output, Tensor>>& feeds) {
    absl::flat_hash_map<Output, EdgeValue> values;
    absl::flat_hash_map<const Node*, bool> dead_nodes;
    for (const auto& [output, tensor] : feeds) values[Own(output)] = tensor;
    for (const auto& step : steps_) {
      const Node& node = *step.node;
      std::vector<EdgeValue> inputs;
      size_t dead = 0;
      for (const OutputRef& in : node.inputs()) {
        inputs.push_back(values[Output(in.node, in.index)]);
        if (!inputs.back().has_value()) ++dead;
      }
      bool is_dead = node.is_merge() ? dead == inputs.size() : dead > 0;
      for (const Node* control : node.control_inputs()) {
        is_dead |= !node.is_merge() && dead_nodes[control];
      }
      dead_nodes[&node] = is_dead;
      if (is_dead) continue;
      std::unique_ptr<Kernel> fresh;
      const Kernel* kernel = step.kernel.get();
      if (kernel == nullptr) {  // stateful: each run begins anew
        MR_ASSIGN_OR_RETURN(fresh, MakeNodeKernel(node, device_));
        kernel = fresh.get();
      }
      StatusOr<std::vector<EdgeValue>> outputs = RunNode(node, *kernel, device_, std::move(inputs));
      if (!outputs.ok()) {
        return Prefixed(absl::StrCat(node.op(), " '", node.name(), "'"), outputs.status());
      }
      for (int i = 0; i < node.num_outputs(); ++i) {
        // Not what was fed.
        values.try_emplace(Output(step.node, i), (*outputs)[static_cast<size_t>(i)]);
      }
    }
    std::vector<Tensor> result;
    for (const Output& fetch : fetches_) {
      const EdgeValue& value = values[fetch];
      if (!value.has_value()) {
        return InvalidArgument("The tensor returned for ", fetch.name(), " was not valid.");
      }
      if (value.is_reference()) {
        MR_ASSIGN_OR_RETURN(Tensor read,
                            std::static_pointer_cast<VariableStorage>(value.reference())->Read());
        result.push_back(std::move(read));
      } else {
        result.push_back(value);
      }
    }
    return result;
  }

 private:
  struct Step {
    Node* node;
    std::unique_ptr<Kernel> kernel;  // null for stateful nodes
  };

  Status InlineFunctions(absl::Span<const Output> fetches, absl::Span<const Output> feeds) {
    const Graph& graph = *fetches[0].node()->graph();
    if (graph.library().empty()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(copy_, CopyGraph(graph));
    std::vector<std::string> keep;
    for (const absl::Span<const Output> outputs : {fetches, feeds}) {
      for (const Output& output : outputs) keep.push_back(output.node()->name());
    }
    return InlineAllCalls(copy_.get(), keep);
  }
  Output Own(const Output& output) const {
    if (copy_ == nullptr) return output;
    return Output(copy_->FindNode(output.node()->name()), output.index());
  }

  Status Visit(const Output& output) {
    return fed_.contains(output) ? absl::OkStatus() : VisitNode(output.node());
  }

  Status VisitNode(Node* node) {
    const auto [it, is_new] = state_.try_emplace(node, kOpen);
    if (!is_new) {
      if (it->second == kDone) return absl::OkStatus();
      return Unimplemented("'", node->name(), "' is part of a cycle: loops need a session");
    }
    if (node->op() == "_OpTestInput") {
      return InvalidArgument("'", node->name(), "' must be fed");
    }
    for (const OutputRef& in : node->inputs()) MR_RETURN_IF_ERROR(Visit(Output(in.node, in.index)));
    for (Node* control : node->control_inputs()) {
      if (!fed_.contains(Output(control, 0))) MR_RETURN_IF_ERROR(VisitNode(control));
    }
    if (node->op_entry() == nullptr) return FindOp(node->op()).status();
    Step step{node, nullptr};
    if (!node->is_stateful()) {
      StatusOr<std::unique_ptr<Kernel>> kernel = MakeNodeKernel(*node, device_);
      if (!kernel.ok()) return Prefixed(absl::StrCat("'", node->name(), "'"), kernel.status());
      step.kernel = *std::move(kernel);
    }
    steps_.push_back(std::move(step));
    state_[node] = kDone;
    return absl::OkStatus();
  }

  enum State { kOpen, kDone };
  OpTestDevice* device_;
  std::unique_ptr<Graph> copy_;  // null: there are no functions
  absl::flat_hash_set<Output> fed_;
  absl::flat_hash_map<Node*, State> state_;
  std::vector<Step> steps_;
  std::vector<Output> fetches_;
};

// A function of the graph's library, run node by node.
class TestFunction : public CalledFunction {
 public:
  TestFunction(std::shared_ptr<const FunctionBody> body,
               std::shared_ptr<const FunctionLibrary> library, OpTestDevice* device)
      : body_(std::move(body)), library_(std::move(library)), device_(device) {}

  absl::Span<const DType> argument_types() const override { return body_->argument_types; }
  absl::Span<const DType> result_types() const override { return body_->result_types; }
  void Run(const StepContext&, absl::Span<Tensor> arguments, absl::Span<Tensor> results,
           DoneCallback done) override {
    done(RunNodes(arguments, results));
  }
  std::shared_ptr<CalledFunction> Share() override {
    return std::make_shared<TestFunction>(body_, library_, device_);
  }

 private:
  Status RunNodes(absl::Span<Tensor> arguments, absl::Span<Tensor> results) const {
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, CopyGraph(*body_->graph));
    graph->set_library(library_);
    MR_RETURN_IF_ERROR(InlineAllCalls(graph.get(), {}));
    const auto own = [&](const Node* node) { return graph->FindNode(node->name()); };
    std::vector<Output> feeds, fetches;
    std::vector<std::pair<Output, Tensor>> values;
    for (size_t i = 0; i < body_->arguments.size(); ++i) {
      feeds.emplace_back(own(body_->arguments[i]), 0);
      values.emplace_back(feeds.back(), arguments[i]);
    }
    std::vector<Node*> effects;
    for (const Node* const node : body_->effects) {
      if (Node* const effect = own(node)) effects.push_back(effect);
    }
    for (const Node* const node : body_->results) {
      const OutputRef& source = own(node)->input(0);
      fetches.emplace_back(source.node, source.index);
    }
    NodeOrder order(device_);
    MR_RETURN_IF_ERROR(order.BuildOwn(fetches, feeds, effects));
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> out, order.Run(values));
    std::move(out.begin(), out.end(), results.begin());
    return absl::OkStatus();
  }

  const std::shared_ptr<const FunctionBody> body_;
  const std::shared_ptr<const FunctionLibrary> library_;
  OpTestDevice* const device_;
};

class TestFunctions : public FunctionRunner {
 public:
  explicit TestFunctions(OpTestDevice* device) : device_(device) {}
  StatusOr<CalledFunction*> Find(const tensorflow::NameAttrList& function,
                                 const Site& site) override {
    MR_ASSIGN_OR_RETURN(auto body, site.library->Body(function));
    found_.push_back(std::make_unique<TestFunction>(std::move(body), site.library, device_));
    return found_.back().get();
  }

 private:
  OpTestDevice* const device_;
  std::vector<std::unique_ptr<CalledFunction>> found_;
};

}  // namespace

std::unique_ptr<FunctionRunner> op_test_internal::MakeFunctionRunner(OpTestDevice* device) {
  return std::make_unique<TestFunctions>(device);
}

Output TestInput(const Scope& scope, DType dtype, const PartialShape& shape) {
  return TestInputNode(scope, dtype, shape, std::nullopt);
}

StatusOr<std::vector<Tensor>> EvaluateGraph(const Scope& scope,
                                            const std::vector<std::pair<Output, Tensor>>& feeds,
                                            const std::vector<Output>& fetches,
                                            OpTestDevice* device) {
  MR_RETURN_IF_ERROR(scope.status());
  std::unique_ptr<OpTestDevice> own_device;
  if (device == nullptr) {
    own_device = std::make_unique<OpTestDevice>();
    device = own_device.get();
  }
  std::vector<Output> fed;
  for (const auto& feed : feeds) fed.push_back(feed.first);
  NodeOrder order(device);
  MR_RETURN_IF_ERROR(order.Build(fetches, fed));
  return order.Run(feeds);
}

// --- Gradients ---------------------------------------------------------------------------------

namespace {

class GradientCheck {
 public:
  GradientCheck(const BuildOutputs& build, const std::vector<Tensor>& inputs,
                const GradientCheckOptions& options, bool known_shapes)
      : build_(build),
        inputs_(inputs),
        options_(options),
        known_shapes_(known_shapes),
        device_(options.device) {
    if (device_ == nullptr) {
      own_device_ = std::make_unique<OpTestDevice>();
      device_ = own_device_.get();
    }
  }

  Status Run() {
    for (const Tensor& input : inputs_) {
      xs_.push_back(TestInputNode(scope_, input.dtype(),
                                  known_shapes_ ? PartialShape(input.shape()) : PartialShape(),
                                  HandleDataOf(input)));
    }
    ys_ = build_(scope_, xs_);
    MR_RETURN_IF_ERROR(scope_.status());
    NodeOrder forward(device_);
    MR_RETURN_IF_ERROR(forward.Build(ys_, xs_));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> y, forward.Run(Feeds()));
    MR_RETURN_IF_ERROR(MakeWeights(y));
    MR_ASSIGN_OR_RETURN(const std::vector<Gradient> gradients, AddSymbolicGradients());
    for (size_t k = 0; k < checked_.size(); ++k) {
      MR_RETURN_IF_ERROR(CheckInput(checked_[k], gradients[k], &forward));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::pair<Output, Tensor>> Feeds() const {
    std::vector<std::pair<Output, Tensor>> feeds;
    for (size_t i = 0; i < xs_.size(); ++i) feeds.emplace_back(xs_[i], inputs_[i]);
    return feeds;
  }

  // Random gradients of the outputs: every output element counts differently.
  Status MakeWeights(const std::vector<Tensor>& y) {
    std::mt19937 random(
        static_cast<uint32_t>(1 + ::testing::UnitTest::GetInstance()->random_seed()));
    for (size_t i = 0; i < y.size(); ++i) {
      if (!IsTrainable(y[i].dtype())) {
        return InvalidArgument("test: output ", i, " must be floating or ", "complex, got ",
                               DTypeName(y[i].dtype()));
      }
      MR_ASSIGN_OR_RETURN(Tensor weight, DrawnWeights(y[i], &random));
      grad_ys_.push_back(TestInputNode(scope_, y[i].dtype(),
                                       known_shapes_ ? PartialShape(y[i].shape()) : PartialShape(),
                                       std::nullopt));
      weights_.push_back(std::move(weight));
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<Gradient>> AddSymbolicGradients() {
    std::vector<Output> wrt;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const DType dtype = inputs_[i].dtype();
      const auto& constant = options_.constant_inputs;
      if (!IsTrainable(dtype) && dtype != DT_RESOURCE) continue;
      if (std::count(constant.begin(), constant.end(), static_cast<int>(i)) > 0) continue;
      checked_.push_back(i);
      wrt.push_back(xs_[i]);
    }
    GradientOptions gradient_options;
    gradient_options.grad_ys = grad_ys_;
    MR_ASSIGN_OR_RETURN(std::vector<Gradient> gradients,
                        AddGradients(scope_, ys_, wrt, gradient_options));
    MR_RETURN_IF_ERROR(scope_.status());
    return gradients;
  }

  // What the finite difference moves: the input itself or the variable behind it.
  StatusOr<Tensor> Value(size_t input) const {
    if (inputs_[input].dtype() != DT_RESOURCE) return inputs_[input];
    MR_ASSIGN_OR_RETURN(auto variable, Variable(input));
    return variable->Read();
  }

  StatusOr<std::shared_ptr<VariableStorage>> Variable(size_t input) const {
    return device_->resources()->Resolve<VariableStorage>(inputs_[input].scalar<ResourceHandle>());
  }

  // sum(weight * y) with `value` as the input's value.
  StatusOr<double> Loss(NodeOrder* forward, size_t input, Tensor value) const {
    std::vector<std::pair<Output, Tensor>> feeds = Feeds();
    if (inputs_[input].dtype() == DT_RESOURCE) {
      MR_ASSIGN_OR_RETURN(auto variable, Variable(input));
      MR_RETURN_IF_ERROR(variable->Assign(std::move(value), false));
    } else {
      feeds[input].second = std::move(value);
    }
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> y, forward->Run(feeds));
    return WeightedSum(y, weights_);
  }

  Status CheckInput(size_t input, const Gradient& gradient, NodeOrder* forward) {
    MR_ASSIGN_OR_RETURN(const Tensor start, Value(input));
    Tensor analytic;  // no value: no gradient flows, so nothing may depend on the input
    if (HasGradient(gradient)) {
      const Output dense = DenseGradient(scope_, gradient);
      std::vector<std::pair<Output, Tensor>> feeds = Feeds();
      for (size_t i = 0; i < grad_ys_.size(); ++i) feeds.emplace_back(grad_ys_[i], weights_[i]);
      MR_ASSIGN_OR_RETURN(std::vector<Tensor> got, EvaluateGraph(scope_, feeds, {dense}, device_));
      analytic = std::move(got[0]);
      if (analytic.dtype() != start.dtype() || analytic.shape() != start.shape()) {
        return Internal("gradient of input ", input, " must be like the input, ",
                        DTypeName(start.dtype()), start.shape().ToString(), ", got ",
                        DTypeName(analytic.dtype()), analytic.shape().ToString());
      }
      const PartialShape inferred = scope_.shape(dense);
      EXPECT_TRUE(inferred.IsCompatibleWith(analytic.shape()))
          << "inferred " << inferred.ToString() << " for the gradient of input " << input
          << ", got " << analytic.shape().ToString();
    }
    const DifferenceScale scale = DifferenceScaleOf(start.dtype());
    const double eps = options_.eps > 0 ? options_.eps : scale.step;
    const double tol = options_.tol > 0 ? options_.tol : scale.tolerance;
    for (size_t c = 0; c < NumComponents(start); ++c) {
      MR_ASSIGN_OR_RETURN(const double numeric, CentralDifference(start, c, eps, [&](Tensor moved) {
                            return Loss(forward, input, std::move(moved));
                          }));
      const double symbolic = analytic.has_value() ? Component(analytic, c) : 0;
      EXPECT_LE(RelativeDifference(numeric, symbolic), tol)
          << "gradient of input " << input << " at component " << c << ": the graph gives "
          << symbolic << (analytic.has_value() ? "" : " (no gradient)")
          << ", the finite difference " << numeric;
    }
    if (inputs_[input].dtype() == DT_RESOURCE) {
      MR_ASSIGN_OR_RETURN(auto variable, Variable(input));
      MR_RETURN_IF_ERROR(variable->Assign(start, false));
    }
    return absl::OkStatus();
  }

  const BuildOutputs& build_;
  const std::vector<Tensor>& inputs_;
  const GradientCheckOptions& options_;
  const bool known_shapes_;
  std::unique_ptr<OpTestDevice> own_device_;
  OpTestDevice* device_;
  Scope scope_;
  std::vector<Output> xs_, ys_, grad_ys_;
  std::vector<Tensor> weights_;
  std::vector<size_t> checked_;  // inputs by index
};

}  // namespace

void ExpectGradientsMatch(const BuildOutputs& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options, std::source_location where) {
  const ScopedTrace trace = Trace(where);
  for (const bool known_shapes : {true, false}) {
    if (!known_shapes && !options.also_unknown_shapes) continue;
    const ScopedTrace shapes(__FILE__, __LINE__,
                             known_shapes ? "with static shapes" : "with unknown shapes");
    EXPECT_OK(GradientCheck(build, inputs, options, known_shapes).Run());
  }
}

void ExpectGradientsMatch(const BuildOutput& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options, std::source_location where) {
  ExpectGradientsMatch(BuildOutputs([&build](const Scope& scope, const std::vector<Output>& x) {
                         return std::vector<Output>{build(scope, x)};
                       }),
                       inputs, options, where);
}

}  // namespace millrace
